//! For `rackpool-fuzz`: the parser of a peer's handshake packets, without sockets.

use super::Protocol;
use crate::FabricError;

/// The protocol of the packets.
pub const PROTOCOL: &Protocol = &Protocol { magic: *b"rackfuzz", name: "rackpool fuzz" };

/// Decodes a handshake packet and encodes it again.
///
/// # Errors
///
/// The fault of the packet.
pub fn reencode_packet(packet: &[u8]) -> Result<Vec<u8>, FabricError> {
    Ok(PROTOCOL.encode(&PROTOCOL.decode(packet)?))
}
