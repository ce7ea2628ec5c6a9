//! The durable records of exchanges.

use alloc::vec::Vec;

use rackpool_model::{GlobalAddr, MemoryId};

/// The most objects in a record.
pub const BATCH: usize = 32;

/// What an exchange does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Allocates objects of this size.
    #[default]
    Allocate,
    /// Frees objects.
    Free,
}

/// The state of the requester's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AskedState {
    /// The record holds nothing. A new exchange leaves this state.
    #[default]
    Idle,
    /// The record owns the objects to be freed; cells, or another record, may hold them too.
    /// Nothing was sent. After a crash they are removed there, and the request is sent.
    Owned,
    /// The request may have been sent. Only the record holds the objects to be freed. The answer
    /// leaves this state. After a crash the request is sent again. By then the other rack may have
    /// freed the objects, and clients of this rack may have got them again.
    Sent,
    /// The allocated objects have arrived, and perhaps are in an inbox. After a crash the objects
    /// that no cell holds are freed by the next exchange.
    Received,
    /// The other rack does not have the pages of these objects. The state ends when each of them is
    /// freed, or in the record of another rack. After a crash the homes are asked for again.
    Moved,
}

/// The requester's record of the last exchange with a rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedRecord {
    /// Its state.
    pub state: AskedState,
    /// The number of the exchange.
    pub sequence: u64,
    /// What the exchange does.
    pub kind: ExchangeKind,
    /// The size of each object to allocate.
    pub bytes: u64,
    /// The number of objects to allocate.
    pub count: u64,
    /// The objects: allocated, or to be freed.
    pub addrs: Vec<GlobalAddr>,
}

/// The state of the server's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServedState {
    /// The exchange is done; a repeated request is answered from the record.
    #[default]
    Done,
    /// The fields are being written and mean nothing. After a crash the request counts as new.
    Writing,
    /// The exchange is being executed. After a crash it is completed.
    Doing,
}

/// The server's record of the last exchange that a rack requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedRecord {
    /// Its state.
    pub state: ServedState,
    /// The memory of the requester; 0 for none.
    pub memory: MemoryId,
    /// The number of the exchange in that memory's sequence.
    pub sequence: u64,
    /// What the exchange does.
    pub kind: ExchangeKind,
    /// The objects that were allocated or freed.
    pub addrs: Vec<GlobalAddr>,
    /// The objects that were not freed because their pages were not here.
    pub moved: Vec<GlobalAddr>,
}

impl Default for ServedRecord {
    fn default() -> Self {
        Self {
            state: ServedState::Done,
            memory: MemoryId(0),
            sequence: 0,
            kind: ExchangeKind::Free,
            addrs: Vec::new(),
            moved: Vec::new(),
        }
    }
}

/// The records of the exchanges with one other rack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerRecord {
    /// Exchanges that this rack requests.
    pub asked: AskedRecord,
    /// Exchanges that the other rack requests.
    pub served: ServedRecord,
}
