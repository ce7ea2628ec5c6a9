//! For `rackpool-fuzz`: the parser of a peer's handshake packets, without sockets.

use rackpool_fabric::{FabricError, ReceiveRoom};

use crate::endpoint::Credits;
use crate::intake::Intake;
use crate::packet::Packet;

/// Removes a handshake packet from the front of `bytes` and encodes it again. Returns `None` if the
/// packet is incomplete.
///
/// # Errors
///
/// The peer's refusal with its text, or the fault of the packet.
pub fn reencode_packet(bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, FabricError> {
    match Packet::take(bytes)? {
        Some(Packet::Refusal(reason)) => Err(FabricError::Refused { reason }),
        packet => Ok(packet.map(|packet| packet.encode())),
    }
}

/// One side's credit account for the messages of a connection.
#[derive(Debug)]
pub struct Account(Credits);

impl Default for Account {
    fn default() -> Self {
        let (most, _portion) = Intake::within(&ReceiveRoom::new(u64::MAX));
        Self(Credits::new(most, most))
    }
}

impl Account {
    /// Sends a message. Returns false if the peer has no room.
    pub fn send(&mut self, is_large: bool) -> bool {
        let has_room = self.0.has_room(is_large);
        if has_room {
            self.0.send(is_large);
        }
        has_room
    }

    /// Processes the credits in an immediate value of the peer.
    pub fn told(&mut self, number: u32) -> Result<(), FabricError> {
        self.0.told(number)
    }
}
