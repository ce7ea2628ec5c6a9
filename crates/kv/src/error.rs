use rackpool_client::GlobalAddr;

use crate::entry::Kind;

/// Why an operation on a table failed. `E` is the error of the memory below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError<E> {
    /// The memory below failed. Nothing was changed.
    #[error("the pool's memory failed: {0}")]
    Memory(#[source] E),
    /// A home daemon went away during the deciding step: the change was made or was not. Read the
    /// key to learn which. At most one object of the pool may have been left behind.
    #[error("a rack daemon went away during the change: read the key to learn whether it was made")]
    OutcomeUnknown,
    /// What an optimistic transaction has read is not of one moment: it has to begin again.
    #[error("another change came between: begin the transaction again")]
    Conflict,
    /// A key has at most 65535 bytes.
    #[error("a key of {bytes} B: keys have at most 65535 bytes")]
    KeyLength {
        /// The key's length in bytes.
        bytes: usize,
    },
    /// Header, key and value must fit into one page of the pool.
    #[error(
        "key and value need {bytes} B, an entry may have {max} B: a pool with larger pages \
             allows more, or store the value elsewhere and its address here"
    )]
    TooLarge {
        /// Header, key and value together, in bytes.
        bytes: u64,
        /// The page size in bytes.
        max: u64,
    },
    /// The value is not what the operation works on.
    #[error("the value under this key is of kind {}, not a string: read it with the service that stored it", found.0)]
    OtherKind {
        /// What it is.
        found: Kind,
    },
    /// No slot is free for a key and its segment cannot be split any further.
    #[error(
        "the table is full at its maximum depth {max_depth}: copy it to a table created with \
             a larger max_depth (at most 18) or larger segments"
    )]
    TableFull {
        /// The depth the table was created with.
        max_depth: u8,
    },
    /// There is no table at the address.
    #[error("there is no table at {addr}: check that the address is what Table::addr() gave")]
    NotATable {
        /// The address that was opened.
        addr: GlobalAddr,
    },
    /// The table was written by another version of this library.
    #[error(
        "the table at {addr} has format {found}, this library reads {supported}: use the \
             release that created it"
    )]
    Version {
        /// The table's address.
        addr: GlobalAddr,
        /// The format found.
        found: u32,
        /// The format this library reads and writes.
        supported: u32,
    },
    /// Bytes of the table are not what any version of this library writes there.
    #[error(
        "the table is damaged: {what} at {addr}. Some other program wrote to its memory, or \
             a page was lost: copy what `Handle::scan` still reads to a new table"
    )]
    Corrupt {
        /// What was to be read.
        what: &'static str,
        /// Where it is.
        addr: GlobalAddr,
    },
    /// The table was to be destroyed, and a client splits a segment, or was killed doing so.
    #[error(
        "the table at {addr} is in use: end its clients, wait a second until what killed ones \
             held is back, and try again"
    )]
    InUse {
        /// The table's address.
        addr: GlobalAddr,
    },
    /// An option of [`Table::create`](crate::Table::create) is out of its range.
    #[error("option {name} is {value}: it must be {allowed}")]
    Option {
        /// The option.
        name: &'static str,
        /// What was given.
        value: u64,
        /// What may be given.
        allowed: &'static str,
    },
    /// The pool gave memory that a slot can't point to.
    #[error("the pool gave memory at {addr}: a table needs 64 B alignment below 2^48")]
    Address {
        /// Where the memory is.
        addr: GlobalAddr,
    },
}
