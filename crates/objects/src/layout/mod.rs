//! The bytes of a store in the pool. All numbers are little-endian.

pub(crate) mod filling;
pub(crate) mod head;
pub(crate) mod header;
pub(crate) mod keys;
pub(crate) mod registration;
