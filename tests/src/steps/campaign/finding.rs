//! What the oracle can find.

use std::fmt;

use rackpool_client::GlobalAddr;

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// In use, and nobody's.
    Leaked {
        /// The object.
        addr: GlobalAddr,
        /// What it takes.
        bytes: u64,
    },
    /// Somebody's, and free: the next one gets it as well.
    Free {
        /// The object.
        addr: GlobalAddr,
        /// Who has it.
        whose: String,
    },
    /// Handed out twice.
    Twice {
        /// The object.
        addr: GlobalAddr,
        /// Who has it.
        whose: [String; 2],
    },
    /// Bytes that nobody has written like that.
    Torn(String),
    /// As many objects of the size of entries are in use as there are not entries.
    Entries {
        /// Objects.
        objects: usize,
        /// Entries.
        entries: usize,
    },
    /// The file of a client that has ended, when all of it was taken back.
    Body(String),
    /// `alloc` did not keep to the order in which objects change hands.
    Hand(String),
    /// The daemons' figures of what is in use are not what their metadata says.
    Figures {
        /// Bytes in use as the daemons say, of both racks.
        said: u64,
        /// As the metadata says.
        counted: u64,
    },
    /// What clients had that have ended was not taken back in time.
    Overdue,
    /// A daemon found something odd.
    Log(String),
    /// The pool refused what it should not have.
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
            Self::Body(what) => write!(f, "the file of one that has ended: {what}"),
            Self::Hand(what) => write!(f, "{what}"),
            Self::Figures { said, counted } => {
                write!(f, "{counted} B are in use, and the daemons say {said} B")
            }
            Self::Overdue => write!(f, "what killed clients had was not taken back in time"),
            Self::Log(line) => write!(f, "a daemon says: {line}"),
            Self::Refused(what) => write!(f, "refused: {what}"),
        }
    }
}
