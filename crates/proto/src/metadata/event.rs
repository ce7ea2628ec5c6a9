use alloc::string::String;
use alloc::vec::Vec;

use rackpool_model::{Incarnation, PageRange, RackId};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};

use super::Change;

/// A connection, numbered by the shell. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionToken(pub u64);

/// A batch of changes, numbered from 1 in each boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// An event at the metadata server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request was received.
    Requested {
        /// The connection that carried it.
        from: ConnectionToken,
        /// The requester's tag.
        tag: u64,
        /// The request.
        request: MetadataRequest,
    },
    /// The batch is durable.
    Committed {
        /// The batch of [`Action::Persist`].
        batch: BatchId,
    },
    /// The batch could not be made durable. The shell must not write again until it has restored a
    /// new machine from the store, unless it knows that nothing of the batch was written.
    CommitFailed {
        /// The batch of [`Action::Persist`].
        batch: BatchId,
        /// The reason, for operators.
        reason: String,
    },
    /// The machine's deadline has passed.
    DeadlinePassed,
    /// The shell did not run for a while and did not pass on requests that arrived meanwhile: its
    /// process was stopped, or its host overloaded.
    StoodStill,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the changes durable, all or none, and report it. At most one batch is in progress.
    Persist {
        /// The batch's id, for [`Event::Committed`] or [`Event::CommitFailed`].
        batch: BatchId,
        /// The changes, in order.
        changes: Vec<Change>,
    },
    /// Answer a request. If the connection is closed, the shell drops the answer.
    Reply {
        /// The connection that carried the request.
        to: ConnectionToken,
        /// The requester's tag.
        tag: u64,
        /// The answer. The shell fills in `store_bytes` of a status and `fabric_key` of a
        /// registration.
        reply: MetadataReply,
    },
    /// Send an unsolicited message. If the connection is closed or congested, the shell drops it:
    /// peers ask again.
    Push {
        /// The connection.
        to: ConnectionToken,
        /// The message.
        reply: MetadataReply,
    },
    /// Report to the operator.
    Report(OperatorEvent),
}

/// An event for operators. It is durable when it is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorEvent {
    /// A daemon serves the rack.
    Joined {
        /// The rack.
        rack: RackId,
        /// The daemon's incarnation.
        incarnation: Incarnation,
        /// The rack's page ids.
        pages: PageRange,
        /// The number of pages lost because the rack has other memory than before.
        lost: u64,
    },
    /// A daemon has stopped regularly.
    Left {
        /// Its rack.
        rack: RackId,
    },
    /// A rack's lease has expired.
    Expired {
        /// The rack.
        rack: RackId,
    },
}

/// The state of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RackState {
    /// It has a valid lease.
    Up,
    /// Its lease has expired.
    Down,
    /// Its daemon has stopped regularly.
    Left,
}
