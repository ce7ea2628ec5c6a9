//! The parsers of what a peer sends and writes, without sockets, for `rackpool-fuzz`.

use std::sync::Arc;

use super::hello;
use super::link::{self, SharedLink, Side};
use super::ring::{Receiver, Sender, entry_bytes};
use crate::{FabricError, MemoryRegion};

/// Bytes of the memory of a link.
pub const LINK_BYTES: u64 = link::LINK_BYTES;

/// Reads a handshake packet and writes what it says as a packet again. An error is the peer's
/// refusal, or what is wrong with the packet.
pub fn reencode_hello(packet: &[u8]) -> Result<Vec<u8>, FabricError> {
    Ok(hello::decode(packet)?.encode())
}

/// One direction of a link with both of its ends, over memory of [`LINK_BYTES`].
pub struct Messages {
    filling: (SharedLink, Sender),
    emptying: (SharedLink, Receiver),
}

impl Messages {
    /// A link whose initiator sends to its acceptor.
    pub fn new(memory: Arc<dyn MemoryRegion>) -> Result<Self, FabricError> {
        Ok(Self {
            filling: (SharedLink::new(Arc::clone(&memory), Side::Initiator)?, Sender::new()),
            emptying: (SharedLink::new(memory, Side::Acceptor)?, Receiver::new()),
        })
    }

    /// Sends a message if there is room; whether there was.
    pub fn push(&mut self, due_ns: u64, message: &[u8]) -> Result<bool, FabricError> {
        let (link, sender) = &mut self.filling;
        let has_room = sender.room(link)? >= entry_bytes(message);
        if has_room {
            sender.push(link, due_ns, message)?;
            sender.publish(link)?;
        }
        Ok(has_room)
    }

    /// Takes the next message if it has arrived by now, and says so to the sender.
    pub fn pop(&mut self, now_ns: u64) -> Result<Option<Vec<u8>>, FabricError> {
        let (link, receiver) = &mut self.emptying;
        let message = receiver.pop(link, || now_ns)?;
        receiver.publish(link)?;
        Ok(message)
    }
}
