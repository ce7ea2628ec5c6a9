//! Operations on inodes: opening, reading, writing, lengths, attributes.

pub(crate) mod attributes;
pub(crate) mod contents;
pub(crate) mod open;
pub(crate) mod size;
pub(crate) mod unlinked_inodes;
