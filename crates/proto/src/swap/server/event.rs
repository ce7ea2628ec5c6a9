use alloc::vec::Vec;

use rackpool_model::RackId;
use rackpool_wire::swap::ToServer;

use crate::directory::Moved;

/// An event at the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A rack sent a message.
    RackSent(RackId, ToServer),
    /// The batch is durable, and the directory contains it.
    Committed(u64),
    /// A commit of the store failed, of this machine's batch or another, and its result is unknown.
    /// The machine answers nothing any more; the shell restores a new one from the store.
    CommitFailed,
    /// The machine's deadline has passed.
    DeadlinePassed,
}

/// Directory entries that must become durable together: two for each swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapBatch {
    /// The batch's id, for [`ServerEvent::Committed`]. Counts from 1 in each boot.
    pub id: u64,
    /// The entries.
    pub moved: Vec<Moved>,
}
