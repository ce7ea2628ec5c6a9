//! For `rackpool-fuzz`: the parsers of a peer's offer and credits, without a device.

use rackpool_fabric::{FabricError, ReceiveRoom};

use crate::endpoint::Credits;
use crate::intake::Intake;
use crate::pair::Pair;

/// Decodes the content of an offer and encodes it again.
///
/// # Errors
///
/// The fault of the content.
pub fn reencode_pair(content: &[u8]) -> Result<Vec<u8>, FabricError> {
    Ok(Pair::decode(content)?.encode())
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
