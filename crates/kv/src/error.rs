use rackpool_client::GlobalAddr;

use crate::entry::ValueKind;

/// Why an operation on a table failed. `E` is the error of the underlying memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError<E> {
    /// The underlying memory failed. No entry was changed.
    #[error("the pool's memory failed: {0}")]
    Memory(#[source] E),
    /// The home's daemon became unreachable during the deciding step: the change may have been
    /// made. Read the key to find out. At most one object of the pool may have been leaked.
    #[error("a rack daemon went away during the change: read the key to learn whether it was made")]
    OutcomeUnknown,
    /// The entries that an optimistic transaction read never existed together: begin it again.
    #[error("another change came between: begin the transaction again")]
    Conflict,
    /// The key is longer than 65535 bytes.
    #[error("a key of {bytes} B: keys have at most 65535 bytes")]
    KeyLength {
        /// The key's length in bytes.
        bytes: usize,
    },
    /// Header, key and value do not fit into one page of the pool.
    #[error(
        "key and value need {bytes} B, an entry may have {max} B: a pool with larger pages \
             allows more, or store the value elsewhere and its address here"
    )]
    TooLarge {
        /// The length of header, key and value together, in bytes.
        bytes: u64,
        /// The page size in bytes.
        max: u64,
    },
    /// The operation works on strings, and the value is of another kind.
    #[error("the value under this key is of kind {}, not a string: read it with the service that stored it", found.0)]
    OtherKind {
        /// The kind of the value.
        found: ValueKind,
    },
    /// All slots of the key's path are in use, and its segment is at the maximum depth.
    #[error(
        "the table is full at its maximum depth {max_depth}: copy it to a table created with \
             a larger max_depth (at most 18) or larger segments"
    )]
    TableFull {
        /// The maximum depth that the table was created with.
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
        /// The version of the table.
        found: u32,
        /// The version that this library reads and writes.
        supported: u32,
    },
    /// Bytes of the table are not what any version of this library writes there.
    #[error(
        "the table is damaged: {what} at {addr}. Some other program wrote to its memory, or \
             a page was lost: copy what `Handle::scan` still reads to a new table"
    )]
    Corrupt {
        /// The part of the table that could not be decoded.
        what: &'static str,
        /// The address of this part.
        addr: GlobalAddr,
    },
    /// The table cannot be destroyed while a client holds a borrowed segment, or was killed holding
    /// one and its daemon has not recovered it yet.
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
        /// The name of the option.
        name: &'static str,
        /// The given value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The pool allocated memory at an address that a slot cannot encode.
    #[error("the pool gave memory at {addr}: a table needs 64 B alignment below 2^48")]
    Address {
        /// The address of the memory.
        addr: GlobalAddr,
    },
}
