//! The faults that the oracle can find.

use std::fmt;

use rackpool_client::GlobalAddr;

/// A fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The object is in use and has no owner.
    Leaked {
        /// The object.
        addr: GlobalAddr,
        /// Bytes that it takes.
        bytes: u64,
    },
    /// The object has an owner and is free: the next allocation may return it as well.
    Free {
        /// The object.
        addr: GlobalAddr,
        /// Its owner.
        whose: String,
    },
    /// The object was handed out twice.
    Twice {
        /// The object.
        addr: GlobalAddr,
        /// Its owners.
        whose: [String; 2],
    },
    /// Bytes that no client has written.
    Torn(String),
    /// The number of objects of the size of entries differs from the number of entries.
    Entries {
        /// Objects in use.
        objects: usize,
        /// Entries in the tables.
        entries: usize,
    },
    /// An entry is left in a table of the store, and all objects were deleted.
    Stale {
        /// The entry.
        addr: GlobalAddr,
        /// The table.
        table: GlobalAddr,
    },
    /// A fault in the file of an ended client, after everything it held was reclaimed.
    Body(String),
    /// `alloc` did not follow the order in which objects change owners.
    Hand(String),
    /// The bytes in use that the daemons report are not those of their metadata.
    Counts {
        /// Bytes in use that the daemons of both racks report.
        said: u64,
        /// Bytes in use by the metadata.
        counted: u64,
    },
    /// What ended clients held was not reclaimed in time.
    Overdue,
    /// A daemon logged an unexpected message.
    Log(String),
    /// The pool refused an operation that it must not refuse.
    Refused(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaked { addr, bytes } => write!(f, "{addr}, {bytes} B: in use, and nobody's"),
            Self::Free { addr, whose } => write!(f, "{addr}: {whose} has it, and it is free"),
            Self::Twice { addr, whose: [one, other] } => {
                write!(f, "{addr}: handed out twice, to {one} and to {other}")
            }
            Self::Torn(what) => write!(f, "torn: {what}"),
            Self::Entries { objects, entries } => {
                write!(f, "{objects} objects of the size of entries, and {entries} entries")
            }
            Self::Stale { addr, table } => {
                write!(f, "{addr} is left in the table {table} of a store without objects")
            }
            Self::Body(what) => write!(f, "the file of one that has ended: {what}"),
            Self::Hand(what) => write!(f, "{what}"),
            Self::Counts { said, counted } => {
                write!(f, "{counted} B are in use, and the daemons say {said} B")
            }
            Self::Overdue => write!(f, "what killed clients had was not taken back in time"),
            Self::Log(line) => write!(f, "a daemon says: {line}"),
            Self::Refused(what) => write!(f, "refused: {what}"),
        }
    }
}
