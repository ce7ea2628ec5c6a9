//! The parser of what a peer sends, without sockets, for `rackpool-fuzz`.

use rackpool_fabric::{FabricError, ReceiveRoom};

use crate::endpoint::Credits;
use crate::intake::Intake;
use crate::packet::Packet;

/// Takes a handshake packet from the front of some bytes and writes what it says as a packet again;
/// `None` when more has to come. A refusal is an error, with its text.
pub fn reencode_packet(bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, FabricError> {
    match Packet::take(bytes)? {
        Some(Packet::Refusal(reason)) => Err(FabricError::Refused { reason }),
        packet => Ok(packet.map(|packet| packet.encode())),
    }
}

/// One side's account of the messages of a connection.
#[derive(Debug)]
pub struct Account(Credits);

impl Default for Account {
    fn default() -> Self {
        let (most, _portion) = Intake::within(&ReceiveRoom::new(u64::MAX));
        Self(Credits::new(most, most))
    }
}

impl Account {
    /// Sends a message if the peer has room; whether it has.
    pub fn send(&mut self, is_large: bool) -> bool {
        let has_room = self.0.has_room(is_large);
        if has_room {
            self.0.send(is_large);
        }
        has_room
    }

    /// The peer says with this number what it has taken.
    pub fn told(&mut self, number: u32) -> Result<(), FabricError> {
        self.0.told(number)
    }
}
