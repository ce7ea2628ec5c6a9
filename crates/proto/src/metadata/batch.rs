use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rackpool_model::{RackId, StorePosition};
use rackpool_wire::metadata::MetadataReply;

use super::{Action, BatchId, Change, ConnectionToken, OperatorEvent};

/// Changes that become durable together, and what is done once they are.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) id: BatchId,
    pub(super) changes: Vec<Change>,
    pub(super) leases: BTreeMap<RackId, LeaseChange>,
    pub(super) events: Vec<OperatorEvent>,
    /// The connections over which daemons have registered.
    pub(super) registered: BTreeMap<RackId, ConnectionToken>,
    /// The id of the batch of swap commits among the changes.
    pub(super) swaps: Option<u64>,
    pub(super) answers: Vec<Answer>,
}

/// The change of a rack's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeaseChange {
    /// True: a new lease begins. False: the lease ends.
    pub(super) granted: bool,
    /// Whether the rack registered with a new incarnation or new addresses.
    pub(super) changed: bool,
}

/// An answer to be sent when its batch is durable.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: ConnectionToken,
    pub(super) tag: u64,
    pub(super) reply: MetadataReply,
}

impl Answer {
    /// Stores the durable position in the answer to a registration.
    pub(super) fn at(mut self, durable: StorePosition) -> Self {
        if let MetadataReply::Registered { position, .. } = &mut self.reply {
            *position = durable;
        }
        self
    }

    pub(super) fn into_action(self) -> Action {
        let Self { to, tag, reply } = self;
        Action::Reply { to, tag, reply }
    }
}

impl Batch {
    pub(super) const fn new(id: BatchId) -> Self {
        Self {
            id,
            changes: Vec::new(),
            leases: BTreeMap::new(),
            events: Vec::new(),
            registered: BTreeMap::new(),
            swaps: None,
            answers: Vec::new(),
        }
    }
}
