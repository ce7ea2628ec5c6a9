//! Bytes that a peer sends during the handshake of a fabric.

use rackpool_fabric::handshake::fuzzing::{PROTOCOL, reencode_packet};
use rackpool_fabric::handshake::{Handshake, Identity, START_BYTES, Step};
use rackpool_fabric::tcp::fuzzing::reencode_offer;
use rackpool_fabric::{FabricError, Role};
use rackpool_fabric_verbs::fuzzing::reencode_pair;
use rackpool_model::{FabricKey, Incarnation, RackId};

/// Decodes bytes of a peer and encodes what was decoded.
type Reencode = fn(&[u8]) -> Result<Vec<u8>, FabricError>;

/// Kind of a refusal.
const REFUSAL: u8 = 2;

/// A packet is refused, or is encoded again to the same bytes. Reading it piece by piece, as its
/// length requires, has the same result and never reads more. Whatever packets come, a side with a
/// key takes no peer for proven.
pub fn hello(bytes: &[u8]) {
    packet(bytes);
    for role in [Role::Initiator, Role::Acceptor] {
        unproven(role, bytes);
    }
}

fn packet(bytes: &[u8]) {
    let whole = reencode_packet(bytes);
    match &whole {
        // The text of a refusal is made printable.
        Ok(again) if bytes[8] == REFUSAL => {
            assert!(!again[START_BYTES..].iter().any(u8::is_ascii_control));
        }
        Ok(again) => assert_eq!(again, bytes),
        Err(_) => {}
    }
    let mut have = 0;
    loop {
        match PROTOCOL.len(&bytes[..have]) {
            Ok(len) if len > bytes.len() => {
                assert!(whole.is_err(), "it is complete and more is asked for");
                return;
            }
            Ok(len) if len > have => {
                assert!(len <= START_BYTES + 1024, "{len} B for a packet");
                have = len;
            }
            Ok(len) => {
                assert_eq!(len, have, "a length that has been passed");
                assert!(len < bytes.len() || reencode_packet(&bytes[..len]) == whole);
                return;
            }
            Err(_) => {
                assert!(whole.is_err(), "it is fine and not read to its end");
                return;
            }
        }
    }
}

fn unproven(role: Role, mut bytes: &[u8]) {
    let key = Some(FabricKey::new([7; 32])).into();
    let identity = Identity { rack: RackId(1), incarnation: Incarnation(1), key };
    let Ok(mut handshake) = Handshake::new(PROTOCOL, &identity, role) else { return };
    let mut answer = Vec::new();
    while let Ok(len) = PROTOCOL.len(bytes)
        && let Some((packet, rest)) = bytes.split_at_checked(len)
        && let Ok(step) = handshake.receive(&identity.key, packet, &mut answer)
    {
        assert!(step == Step::Wait && !handshake.is_proven(), "{step:?}");
        bytes = rest;
    }
    assert!(answer.len() <= 120, "one hello and one proof are the most that it gets");
}

/// The content of an offer is refused, or is encoded again to the same bytes.
pub fn offer(bytes: &[u8]) {
    let decoders: [Reencode; 2] = [reencode_offer, reencode_pair];
    for reencode in decoders {
        match reencode(bytes) {
            Ok(again) => assert_eq!(again, bytes),
            Err(error) => assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}"),
        }
    }
}
