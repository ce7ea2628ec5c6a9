//! The bytes of a table in the pool: hashes, words, objects, segments, the header. These modules
//! only encode and decode.

pub(crate) mod bucket;
pub(crate) mod condition;
pub(crate) mod hash;
pub(crate) mod header;
pub(crate) mod life;
pub(crate) mod object;
pub(crate) mod placement;
pub(crate) mod segment;
pub(crate) mod slot;
pub(crate) mod spare_block;
pub(crate) mod table_options;
