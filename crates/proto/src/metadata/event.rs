use alloc::string::String;
use alloc::vec::Vec;

use rackpool_model::{Incarnation, PageRange, RackId};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};

use super::Change;

/// A connection, numbered by the shell; no two connections ever have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionToken(pub u64);

/// A batch of changes, numbered from 1 in each life of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request has come in.
    Requested {
        /// On which connection.
        from: ConnectionToken,
        /// The requester's number for it.
        tag: u64,
        /// What is asked.
        request: MetadataRequest,
    },
    /// The batch is durable.
    Committed {
        /// The one given by [`Action::Persist`].
        batch: BatchId,
    },
    /// The batch could not be made durable. The shell must not write again until it has restored
    /// a new machine from the store, unless it knows that nothing of the batch was written.
    CommitFailed {
        /// The one given by [`Action::Persist`].
        batch: BatchId,
        /// For people.
        reason: String,
    },
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
    /// The shell did not run for a while, and requests that arrived meanwhile were not handed in:
    /// its process was stopped, or its host overloaded.
    StoodStill,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the changes durable, all or none, and then tell. There is never more than one batch
    /// under way.
    Persist {
        /// To be named in [`Event::Committed`] or [`Event::CommitFailed`].
        batch: BatchId,
        /// In this order.
        changes: Vec<Change>,
    },
    /// Answer a request. If the connection is gone, drop the answer.
    Reply {
        /// The connection the request came on.
        to: ConnectionToken,
        /// The requester's number for the request.
        tag: u64,
        /// The answer. The shell fills in `store_bytes` of a status and the `fabric_key` of a
        /// registration.
        reply: MetadataReply,
    },
    /// Send this to a peer unasked. If the connection is gone or the peer does not take what it
    /// gets, drop it: it is said again when it is asked for again.
    Push {
        /// The connection.
        to: ConnectionToken,
        /// What is said.
        reply: MetadataReply,
    },
    /// Tell the operator.
    Report(OperatorEvent),
}

/// Something an operator wants to know. It is true and durable when reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorEvent {
    /// A daemon serves the rack.
    Joined {
        /// The rack.
        rack: RackId,
        /// The daemon's life.
        incarnation: Incarnation,
        /// The rack's page ids.
        pages: PageRange,
        /// How many pages are lost because the rack has other memory than the one they lived in.
        lost: u64,
    },
    /// A daemon has stopped on purpose.
    Left {
        /// Its rack.
        rack: RackId,
    },
    /// A rack's lease has run out.
    Expired {
        /// The rack.
        rack: RackId,
    },
}

/// Whether a rack is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackState {
    /// It has a lease.
    Up,
    /// Its lease has run out.
    Down,
    /// Its daemon has given the lease back: it ended on purpose.
    Left,
}
