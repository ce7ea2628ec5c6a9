use alloc::vec::Vec;

use rackpool_model::{ClientId, GlobalAddr, PageId, RackId};

use crate::exchange::ClientThread;

/// The position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordPlace {
    /// The thread that wrote it.
    pub owner: ClientThread,
    /// Its index among the thread's records.
    pub record: u16,
}

/// An access to a word of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordAccess {
    /// Reads it.
    Read,
    /// Compare-and-swap. Every swap of the recovery may be repeated without further effect.
    Swap {
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
}

/// The answer to an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordAnswer {
    /// It was executed; the word had this value before.
    Value(u64),
    /// The page is there and free.
    NotAllocated,
    /// The page is not in that rack.
    NotHere,
    /// The page moves or is shared; the access was not executed.
    Busy,
    /// The page was lost on its way there.
    Lost,
    /// The address names no word.
    Invalid,
    /// The rack did not answer, and will not execute the access any more.
    Unanswered,
}

/// An event for the recovery of reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryEvent {
    /// A client has gone. Operations that its daemon has begun for it may be under way.
    ClientGone(ClientId),
    /// None of the gone client's operations is under way any more: transfers posted for it have
    /// ended, and other racks have answered its requests or will not execute them.
    OperationsEnded(ClientId),
    /// The answer to [`RecoveryAction::AccessWord`]. It is not trusted.
    WordAnswered {
        /// The number of the question.
        question: u64,
        /// The answer.
        answer: WordAnswer,
    },
}

/// A store in a record. It is durable against the end of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The swap was made: the state becomes replaced.
    Replaced,
    /// The swap was not made: the state becomes held.
    Held,
    /// Nothing is left to be done: the state becomes free.
    Free,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// Access a word in this rack or in another one, and report [`RecoveryEvent::WordAnswered`].
    /// Accesses of one record are executed in order.
    AccessWord {
        /// The number of the question.
        question: u64,
        /// The rack.
        rack: RackId,
        /// The address of the word.
        addr: GlobalAddr,
        /// The access.
        access: WordAccess,
    },
    /// Ask the metadata server for the page's home. The question may be lost.
    Locate(PageId),
    /// Store a decision in a record.
    Decide(RecordPlace, Decision),
    /// Report that a gone client has left a record about which nothing can be known. Its objects
    /// stay in use.
    ReportUnknown(ClientId),
    /// None of the client's records is unresolved any more.
    Resolved(ClientId),
    /// The objects that cells of this thread hold have to be freed.
    /// [`RackMachine`](crate::rack::RackMachine) handles this itself.
    Return(ClientThread, Vec<GlobalAddr>),
    /// A page that is perhaps shared has to be writable.
    /// [`RackMachine`](crate::rack::RackMachine) handles this itself.
    NeedPage(PageId),
}
