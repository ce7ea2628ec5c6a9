//! For `rackpool-fuzz`: the parser of a peer's ring.

use std::sync::Arc;

use super::link::{self, SharedLink, Side};
use super::ring::{Receiver, Sender, entry_bytes};
use crate::{FabricError, MemoryRegion};

/// Size of the link memory, in bytes.
pub const LINK_BYTES: u64 = link::LINK_BYTES;

/// Both ends of one direction of a link, over memory of [`LINK_BYTES`].
pub struct Messages {
    filling: (SharedLink, Sender),
    emptying: (SharedLink, Receiver),
}

impl Messages {
    /// Creates a link on which the initiator sends to the acceptor.
    pub fn new(memory: Arc<dyn MemoryRegion>) -> Result<Self, FabricError> {
        Ok(Self {
            filling: (SharedLink::new(Arc::clone(&memory), Side::Initiator)?, Sender::new()),
            emptying: (SharedLink::new(memory, Side::Acceptor)?, Receiver::new()),
        })
    }

    /// Sends a message. Returns false if the ring has no room.
    pub fn push(&mut self, due_ns: u64, message: &[u8]) -> Result<bool, FabricError> {
        let (link, sender) = &mut self.filling;
        let has_room = sender.room(link)? >= entry_bytes(message);
        if has_room {
            sender.push(link, due_ns, message)?;
            sender.publish(link)?;
        }
        Ok(has_room)
    }

    /// Takes the next message if it is due by `now_ns`, and publishes the new head to the sender.
    pub fn pop(&mut self, now_ns: u64) -> Result<Option<Vec<u8>>, FabricError> {
        let (link, receiver) = &mut self.emptying;
        let message = receiver.pop(link, || now_ns)?;
        receiver.publish(link)?;
        Ok(message)
    }
}
