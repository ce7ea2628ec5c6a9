use rackpool_model::{Incarnation, RackId};

use crate::{FabricError, PROOF_BYTES};

/// Protocol version of everything that two TCP fabrics share: handshake and frames.
pub(super) const VERSION: u32 = 1;
/// The largest number of regions that a rack may export.
pub(super) const MAX_EXPORTS: usize = 16;

const MAGIC: [u8; 8] = *b"racktcp\0";
const START_BYTES: usize = 16;
const HELLO: u32 = 1;
const REFUSAL: u32 = 2;
const PROOF: u32 = 3;
const WELCOME: u32 = 4;
const HELLO_BYTES: usize = 80;
const REFUSAL_BYTES: usize = 18;
const MAX_REASON: usize = 256;

/// One of the two connections of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChannelNumber {
    /// Channel 1: the initiator posts, the acceptor serves.
    First,
    /// Channel 2: the acceptor posts, the initiator serves.
    Second,
}

/// The identity and exports of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rack: RackId,
    pub(super) incarnation: Incarnation,
    pub(super) channel: ChannelNumber,
    pub(super) has_key: bool,
    /// Equal on both channels of an endpoint; chosen at random by the initiator.
    pub(super) session: [u8; 16],
    pub(super) nonce: [u8; 32],
    /// Length of each exported region, in bytes.
    pub(super) regions: Vec<u64>,
}

/// A packet of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Packet {
    Hello(Hello),
    Refusal(String),
    Proof([u8; PROOF_BYTES]),
    Welcome,
}

impl ChannelNumber {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];
}

impl Packet {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello(hello) => hello.encode(),
            Self::Refusal(reason) => encode_refusal(reason),
            Self::Proof(proof) => [&start(PROOF)[..], proof].concat(),
            Self::Welcome => start(WELCOME),
        }
    }

    /// Length of the packet that begins with `bytes`, as far as they determine it. If it exceeds
    /// their number, the caller must read more and ask again.
    ///
    /// # Errors
    ///
    /// No valid packet begins with these bytes.
    pub(super) fn len(bytes: &[u8]) -> Result<usize, FabricError> {
        let Some((head, rest)) = bytes.split_first_chunk::<START_BYTES>() else {
            let common = bytes.len().min(MAGIC.len());
            if bytes[..common] != MAGIC[..common] {
                return Err(another_protocol());
            }
            return Ok(START_BYTES);
        };
        match kind(head)? {
            HELLO => match rest.get(2..4) {
                Some(&[low, high]) => {
                    Ok(HELLO_BYTES + 8 * export_count(u16::from_le_bytes([low, high]))?)
                }
                _ => Ok(HELLO_BYTES),
            },
            REFUSAL => match rest.get(..2) {
                Some(&[low, high]) => {
                    let len = usize::from(u16::from_le_bytes([low, high]));
                    if len > MAX_REASON {
                        return Err(FabricError::misbehaved("its refusal is too long"));
                    }
                    Ok(REFUSAL_BYTES + len)
                }
                _ => Ok(REFUSAL_BYTES),
            },
            PROOF => Ok(START_BYTES + PROOF_BYTES),
            WELCOME => Ok(START_BYTES),
            kind => {
                Err(FabricError::misbehaved(format!("a handshake packet of unknown kind {kind}")))
            }
        }
    }

    /// Decodes a whole packet of a peer.
    pub(super) fn decode(packet: &[u8]) -> Result<Self, FabricError> {
        let mut reader = Reader(packet);
        let decoded = match kind(&reader.take()?)? {
            HELLO => Self::Hello(reader.hello()?),
            REFUSAL => Self::Refusal(reader.reason()?),
            PROOF => Self::Proof(reader.take()?),
            WELCOME => Self::Welcome,
            kind => {
                return Err(FabricError::misbehaved(format!(
                    "a handshake packet of unknown kind {kind}"
                )));
            }
        };
        if !reader.0.is_empty() {
            return Err(FabricError::misbehaved("its handshake packet is too long"));
        }
        Ok(decoded)
    }
}

/// The kind of a packet, read from its first bytes after magic and version are checked.
fn kind(head: &[u8; START_BYTES]) -> Result<u32, FabricError> {
    let mut reader = Reader(head);
    if reader.take::<8>()? != MAGIC {
        return Err(another_protocol());
    }
    let kind = u32::from_le_bytes(reader.take()?);
    let version = u32::from_le_bytes(reader.take()?);
    if version != VERSION {
        return Err(FabricError::Version { ours: VERSION, theirs: version });
    }
    Ok(kind)
}

fn another_protocol() -> FabricError {
    FabricError::misbehaved("it speaks another protocol")
}

fn export_count(count: u16) -> Result<usize, FabricError> {
    let count = usize::from(count);
    if count == 0 || count > MAX_EXPORTS {
        return Err(FabricError::misbehaved(format!("it exports {count} regions")));
    }
    Ok(count)
}

fn start(kind: u32) -> Vec<u8> {
    [&MAGIC[..], &kind.to_le_bytes(), &VERSION.to_le_bytes()].concat()
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        let mut packet = start(HELLO);
        packet.extend(self.rack.0.to_le_bytes());
        packet.extend(u16::try_from(self.regions.len()).unwrap_or(0).to_le_bytes());
        packet.push(match self.channel {
            ChannelNumber::First => 1,
            ChannelNumber::Second => 2,
        });
        packet.push(u8::from(self.has_key));
        packet.extend([0; 2]);
        packet.extend(self.incarnation.0.to_le_bytes());
        packet.extend(self.session);
        packet.extend(self.nonce);
        for len in &self.regions {
            packet.extend(len.to_le_bytes());
        }
        packet
    }
}

fn encode_refusal(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut packet = start(REFUSAL);
    packet.extend(u16::try_from(end).unwrap_or(0).to_le_bytes());
    packet.extend(&reason.as_bytes()[..end]);
    packet
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FabricError> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(FabricError::misbehaved("its handshake packet is too short"));
        };
        self.0 = rest;
        Ok(*bytes)
    }

    fn hello(&mut self) -> Result<Hello, FabricError> {
        let rack = RackId(u16::from_le_bytes(self.take()?));
        let count = export_count(u16::from_le_bytes(self.take()?))?;
        let [channel, has_key, zeroes @ ..] = self.take::<4>()?;
        let channel = match channel {
            1 => ChannelNumber::First,
            2 => ChannelNumber::Second,
            _ => {
                return Err(FabricError::misbehaved(format!(
                    "it opens an unknown channel {channel}"
                )));
            }
        };
        if has_key > 1 || zeroes != [0; 2] {
            return Err(FabricError::misbehaved("its hello has unknown flags"));
        }
        let incarnation = Incarnation(u64::from_le_bytes(self.take()?));
        let (session, nonce) = (self.take()?, self.take()?);
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(u64::from_le_bytes(self.take()?));
        }
        Ok(Hello { rack, incarnation, channel, has_key: has_key == 1, session, nonce, regions })
    }

    fn reason(&mut self) -> Result<String, FabricError> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        if len != self.0.len() || len > MAX_REASON {
            return Err(FabricError::misbehaved("its refusal has the wrong length"));
        }
        // The text reaches logs and terminals: control characters are replaced.
        let text = String::from_utf8_lossy(std::mem::take(&mut self.0));
        Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that an unauthenticated peer can make this side store, in bytes:
    /// docs/design/tcp.md.
    const MAX_PACKET: usize = REFUSAL_BYTES + MAX_REASON;

    fn hello() -> Hello {
        Hello {
            rack: RackId(7),
            incarnation: Incarnation(9),
            channel: ChannelNumber::Second,
            has_key: true,
            session: [3; 16],
            nonce: [4; 32],
            regions: vec![4096, 1 << 40],
        }
    }

    fn packets() -> Vec<Packet> {
        let most = Hello { regions: vec![u64::MAX; MAX_EXPORTS], ..hello() };
        vec![
            Packet::Hello(hello()),
            Packet::Hello(most),
            Packet::Refusal("no".into()),
            Packet::Proof([5; PROOF_BYTES]),
            Packet::Welcome,
        ]
    }

    #[test]
    fn packets_come_back_and_say_their_length_from_the_start() {
        for packet in packets() {
            let bytes = packet.encode();
            assert!(bytes.len() <= MAX_PACKET);
            assert_eq!(Packet::decode(&bytes), Ok(packet));
            let mut have = 0;
            while have < bytes.len() {
                let wanted = Packet::len(&bytes[..have]).unwrap();
                assert!(wanted > have, "it would wait for ever");
                have = wanted;
            }
            assert_eq!(have, bytes.len());
            for len in 0..bytes.len() {
                assert!(Packet::decode(&bytes[..len]).is_err());
                assert!(Packet::len(&bytes[..len]).unwrap() <= bytes.len());
            }
            assert!(Packet::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn another_version_is_named_before_anything_else_is_read() {
        let mut packet = Packet::Hello(hello()).encode();
        packet.truncate(16);
        packet[12] = 99;
        let version = FabricError::Version { ours: VERSION, theirs: 99 };
        assert_eq!(Packet::len(&packet), Err(version.clone()));
        assert_eq!(Packet::decode(&packet), Err(version));
    }

    #[test]
    fn another_protocol_is_noticed_at_its_first_byte() {
        assert!(Packet::len(b"GET /").is_err());
        assert!(Packet::len(b"racktcp").is_ok());
    }

    #[test]
    fn refusal_is_bounded_and_printable() {
        let packet = Packet::Refusal(format!("no\x1b[2J{}", "ü".repeat(400))).encode();
        assert!(packet.len() <= MAX_PACKET);
        let Ok(Packet::Refusal(reason)) = Packet::decode(&packet) else { panic!() };
        assert!(reason.starts_with("no [2J") && reason.ends_with('ü'));
    }

    #[test]
    fn broken_hellos_are_errors() {
        let good = Packet::Hello(hello()).encode();
        for (at, value) in
            [(0, b'x'), (8, 5), (18, 0), (18, 17), (19, 255), (20, 3), (21, 2), (22, 1)]
        {
            let mut packet = good.clone();
            packet[at] = value;
            assert!(Packet::decode(&packet).is_err(), "{value} at {at}");
        }
    }
}
