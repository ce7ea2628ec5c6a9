//! The bytes of a volume in the pool. These modules only encode and decode.

pub(crate) mod acl;
pub(crate) mod codec;
pub(crate) mod directory_node;
pub(crate) mod file_locks;
pub(crate) mod inode;
pub(crate) mod keys;
pub(crate) mod lock_record;
pub(crate) mod orphans;
pub(crate) mod session;
pub(crate) mod superblock;
pub(crate) mod word;
