use rackpool_model::{Incarnation, RackId};

use super::Reader;
use crate::{FabricError, PROOF_BYTES};

/// Version of the handshake and of everything that two fabrics share after it.
pub const VERSION: u32 = 2;
/// Length of the start of a packet, in bytes.
pub const START_BYTES: usize = 20;

const MAX_BODY: usize = 1024;
const MAX_REASON: usize = 256;
const HELLO: u32 = 1;
const REFUSAL: u32 = 2;
const PROOF: u32 = 3;
const OFFER: u32 = 4;
const READY: u32 = 5;
const GOODBYE: u32 = 6;

/// The protocol of a fabric: its packets begin with the magic, its proofs contain the name.
#[derive(Debug)]
pub struct Protocol {
    /// The first bytes of each packet.
    pub magic: [u8; 8],
    /// Part of what a proof authenticates.
    pub name: &'static str,
}

/// The identity of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rack.
    pub rack: RackId,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
    /// Whether the side has a key to prove, and expects a proof.
    pub has_key: bool,
    /// Random bytes, which make each proof valid for one handshake.
    pub nonce: [u8; 32],
}

/// A packet of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The identity of the sender.
    Hello(Hello),
    /// The acceptor's reason for ending the handshake.
    Refusal(String),
    /// The proof that the sender has the key.
    Proof([u8; PROOF_BYTES]),
    /// What the peer needs to reach the sender's memory, with a proof that covers it.
    Offer {
        /// Covers both hellos and the content.
        proof: [u8; PROOF_BYTES],
        /// Defined by each fabric; at least one byte.
        content: Vec<u8>,
    },
    /// The initiator has reached the acceptor's memory.
    Ready,
    /// The sender ends the connection.
    Goodbye,
}

impl Protocol {
    /// Encodes a packet. A refusal is cut to at most 256 B.
    #[must_use]
    pub fn encode(&self, packet: &Packet) -> Vec<u8> {
        let (kind, body) = match packet {
            Packet::Hello(hello) => (HELLO, hello.encode()),
            Packet::Refusal(reason) => (REFUSAL, cut(reason).into()),
            Packet::Proof(proof) => (PROOF, proof.to_vec()),
            Packet::Offer { proof, content } => (OFFER, [&proof[..], content].concat()),
            Packet::Ready => (READY, Vec::new()),
            Packet::Goodbye => (GOODBYE, Vec::new()),
        };
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&self.magic[..], &[kind, VERSION, len].map(u32::to_le_bytes).concat(), &body].concat()
    }

    /// Length of the packet that begins with `bytes`, as far as they determine it. If it exceeds
    /// their number, the caller must read more and ask again.
    ///
    /// # Errors
    ///
    /// No valid packet begins with these bytes.
    pub fn len(&self, bytes: &[u8]) -> Result<usize, FabricError> {
        let known = bytes.len().min(self.magic.len());
        if bytes[..known] != self.magic[..known] {
            return Err(FabricError::misbehaved("it speaks another protocol"));
        }
        let Some(start) = bytes.first_chunk::<START_BYTES>() else { return Ok(START_BYTES) };
        let mut reader = Reader::new(&start[self.magic.len()..]);
        let (_, version, len) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if version != VERSION {
            return Err(FabricError::Version { ours: VERSION, theirs: version });
        }
        match usize::try_from(len) {
            Ok(len) if len <= MAX_BODY => Ok(START_BYTES + len),
            _ => Err(FabricError::misbehaved(format!("a handshake packet of {len} B"))),
        }
    }

    /// Decodes a whole packet of a peer.
    pub fn decode(&self, packet: &[u8]) -> Result<Packet, FabricError> {
        let Some(body) = packet.get(START_BYTES..).filter(|_| self.len(packet) == Ok(packet.len()))
        else {
            self.len(packet)?;
            return Err(FabricError::misbehaved("its handshake packet has another length"));
        };
        let mut kind = Reader::new(&packet[self.magic.len()..]);
        let mut reader = Reader::new(body);
        let packet = match kind.u32()? {
            HELLO => Packet::Hello(Hello::decode(&mut reader)?),
            REFUSAL => Packet::Refusal(printable(reader.rest())?),
            PROOF => Packet::Proof(reader.take()?),
            OFFER => Packet::Offer { proof: reader.take()?, content: content(&mut reader)? },
            READY => Packet::Ready,
            GOODBYE => Packet::Goodbye,
            kind => {
                return Err(FabricError::misbehaved(format!(
                    "a handshake packet of unknown kind {kind}"
                )));
            }
        };
        reader.end()?;
        Ok(packet)
    }
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut body = self.rack.0.to_le_bytes().to_vec();
        body.extend([u8::from(self.has_key), 0, 0, 0, 0, 0]);
        body.extend(self.incarnation.0.to_le_bytes());
        body.extend(self.nonce);
        body
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FabricError> {
        let rack = RackId(reader.u16()?);
        let [has_key] = reader.take()?;
        if has_key > 1 {
            return Err(FabricError::misbehaved("its hello has unknown flags"));
        }
        reader.zeroes::<5>()?;
        let incarnation = Incarnation(reader.u64()?);
        Ok(Self { rack, incarnation, has_key: has_key == 1, nonce: reader.take()? })
    }
}

/// The content of an offer. Without content its proof would be that of a proof packet, which a
/// third party can repeat.
fn content(reader: &mut Reader<'_>) -> Result<Vec<u8>, FabricError> {
    match reader.rest() {
        [] => Err(FabricError::misbehaved("its offer is empty")),
        content => Ok(content.to_vec()),
    }
}

/// The start of a text, cut to the maximum length of a refusal.
fn cut(reason: &str) -> &str {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

/// The text of a refusal. It reaches logs and terminals: control characters are replaced.
fn printable(text: &[u8]) -> Result<String, FabricError> {
    if text.len() > MAX_REASON {
        return Err(FabricError::misbehaved("its refusal is too long"));
    }
    let text = String::from_utf8_lossy(text);
    Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Protocol = Protocol { magic: *b"racktest", name: "test" };

    fn packets() -> Vec<Packet> {
        let (rack, incarnation) = (RackId(7), Incarnation(9));
        vec![
            Packet::Hello(Hello { rack, incarnation, has_key: true, nonce: [4; 32] }),
            Packet::Refusal("no".into()),
            Packet::Proof([5; PROOF_BYTES]),
            Packet::Offer { proof: [6; PROOF_BYTES], content: vec![7; MAX_BODY - PROOF_BYTES] },
            Packet::Ready,
            Packet::Goodbye,
        ]
    }

    #[test]
    fn packets_come_back_and_say_their_length_from_the_start() {
        for packet in packets() {
            let bytes = TEST.encode(&packet);
            assert!(bytes.len() <= START_BYTES + MAX_BODY);
            assert_eq!(TEST.decode(&bytes), Ok(packet));
            for len in 0..bytes.len() {
                let wanted = TEST.len(&bytes[..len]).unwrap();
                assert_eq!(wanted, if len < START_BYTES { START_BYTES } else { bytes.len() });
                assert!(TEST.decode(&bytes[..len]).is_err());
            }
            assert_eq!(TEST.len(&bytes), Ok(bytes.len()));
            assert!(TEST.decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn another_version_is_named_before_anything_else_is_read() {
        let mut packet = TEST.encode(&packets()[0]);
        packet[12] = 99;
        let version = FabricError::Version { ours: VERSION, theirs: 99 };
        assert_eq!(TEST.len(&packet), Err(version.clone()));
        assert_eq!(TEST.decode(&packet), Err(version));
    }

    #[test]
    fn another_protocol_is_noticed_at_its_first_byte() {
        assert!(TEST.len(b"GET /").is_err());
        assert!(TEST.len(b"racktest").is_ok());
    }

    #[test]
    fn refusal_is_bounded_and_printable() {
        let packet = TEST.encode(&Packet::Refusal(format!("no\x1b[2J{}", "ü".repeat(400))));
        assert!(packet.len() <= START_BYTES + MAX_REASON);
        let Ok(Packet::Refusal(reason)) = TEST.decode(&packet) else { panic!() };
        assert!(reason.starts_with("no [2J") && reason.ends_with('ü'));
        let long = START_BYTES + MAX_REASON + 1;
        let mut packet = [&packet[..], &[b'!'; MAX_REASON]].concat();
        packet.truncate(long);
        let len = u32::try_from(MAX_REASON + 1).unwrap();
        packet[16..20].copy_from_slice(&len.to_le_bytes());
        assert!(TEST.decode(&packet).is_err());
    }

    #[test]
    fn a_proof_repeated_as_an_offer_without_content_is_refused() {
        let (proof, content) = ([6; PROOF_BYTES], Vec::new());
        assert!(TEST.decode(&TEST.encode(&Packet::Offer { proof, content })).is_err());
    }

    #[test]
    fn broken_packets_are_errors() {
        // Kind, length, flags, zeroes.
        for (at, value) in [(0, b'x'), (8, 77), (8, 3), (16, 47), (18, 1), (22, 2), (23, 1)] {
            let mut packet = TEST.encode(&packets()[0]);
            packet[at] = value;
            assert!(TEST.decode(&packet).is_err(), "{value} at {at}");
        }
    }
}
