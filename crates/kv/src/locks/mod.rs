//! What transactions store in a table: the lock on an entry and the record of a transaction. These
//! modules only encode and decode.

pub(crate) mod commit_record;
pub(crate) mod entry_lock;
pub(crate) mod id;
