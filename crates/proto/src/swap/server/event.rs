use alloc::vec::Vec;

use rackpool_model::RackId;
use rackpool_wire::swap::ToServer;

use crate::directory::Moved;

/// What has happened at the metadata server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A rack has sent a message.
    RackSent(RackId, ToServer),
    /// The batch is durable, and the directory knows it.
    Committed(u64),
    /// What became of a batch is not known, be it this machine's: it says no more, and the shell
    /// restores a new one from the store.
    CommitFailed,
    /// The time named by the machine's deadline has come.
    DeadlinePassed,
}

/// New entries of the directory that must become durable together: two of each swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapBatch {
    /// To be named when it is done. Counts from 1 in each life.
    pub id: u64,
    /// The entries.
    pub moved: Vec<Moved>,
}
