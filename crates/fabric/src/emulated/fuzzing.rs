//! For `rackpool-fuzz`: the parsers of a peer's handshake packets and rings, without sockets.

use std::sync::Arc;

use super::hello;
use super::link::{self, SharedLink, Side};
use super::ring::{Receiver, Sender, entry_bytes};
use crate::{FabricError, MemoryRegion};

/// Size of the link memory, in bytes.
pub const LINK_BYTES: u64 = link::LINK_BYTES;

/// Decodes a handshake packet and encodes it again.
///
/// # Errors
///
/// The peer's refusal, or the fault of the packet.
pub fn reencode_hello(packet: &[u8]) -> Result<Vec<u8>, FabricError> {
    Ok(hello::decode(packet)?.encode())
}

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
