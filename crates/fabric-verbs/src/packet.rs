//! The packets of the handshake, and their parser.

use rackpool_fabric::{FabricError, PROOF_BYTES};
use rackpool_model::{Incarnation, RackId};

use crate::error::misbehaved;

/// Protocol version of everything that two verbs fabrics share: handshake, immediates, message
/// sizes.
pub(crate) const VERSION: u32 = 1;
/// The largest number of regions that a rack may export.
pub(crate) const MAX_EXPORTS: usize = 16;

const MAGIC: [u8; 8] = *b"rackverb";
const START_BYTES: usize = 20;
const MAX_BODY: usize = 1024;
const MAX_REASON: usize = 256;
const GREETING: u32 = 1;
const PROOF: u32 = 2;
const PAIR: u32 = 3;
const READY: u32 = 4;
const GOODBYE: u32 = 5;
const REFUSAL: u32 = 6;

/// The identity of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) rack: RackId,
    pub(crate) incarnation: Incarnation,
    pub(crate) has_key: bool,
    pub(crate) nonce: [u8; 32],
}

/// Memory that the peer may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
}

/// A side's queue pair, and the memory that can be accessed through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) number: u32,
    /// First packet sequence number: 24 bits.
    pub(crate) psn: u32,
    pub(crate) lid: u16,
    /// 1 to 5 for 256 to 4096 B.
    pub(crate) mtu: u8,
    pub(crate) reads_answered: u8,
    pub(crate) gid: [u8; 16],
    /// The slots that receive large messages.
    pub(crate) slots: Window,
    pub(crate) exports: Vec<Window>,
}

/// A packet of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    Greeting(Greeting),
    Proof([u8; PROOF_BYTES]),
    Pair(Pair),
    Ready,
    Goodbye,
    Refusal(String),
}

impl Packet {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Greeting(greeting) => (GREETING, greeting.encode()),
            Self::Proof(proof) => (PROOF, proof.to_vec()),
            Self::Pair(pair) => (PAIR, pair.encode()),
            Self::Ready => (READY, Vec::new()),
            Self::Goodbye => (GOODBYE, Vec::new()),
            Self::Refusal(reason) => (REFUSAL, cut(reason).into()),
        };
        let len = u32::try_from(body.len()).unwrap_or(0).to_le_bytes();
        [&MAGIC[..], &kind.to_le_bytes(), &VERSION.to_le_bytes(), &len, &body].concat()
    }

    /// Removes a packet from the front of `bytes`. Returns `None` if the packet is incomplete.
    pub(crate) fn take(bytes: &mut Vec<u8>) -> Result<Option<Self>, FabricError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(misbehaved("it speaks another protocol"));
        }
        let Some(start) = bytes.first_chunk::<START_BYTES>() else { return Ok(None) };
        let mut reader = Reader(&start[MAGIC.len()..]);
        let (kind, version, len) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if version != VERSION {
            return Err(FabricError::Version { ours: VERSION, theirs: version });
        }
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_BODY {
            return Err(misbehaved(format!("a handshake packet of {len} B")));
        }
        let Some(body) = bytes.get(START_BYTES..START_BYTES + len) else { return Ok(None) };
        let packet = Self::decode(kind, body)?;
        bytes.drain(..START_BYTES + len);
        Ok(Some(packet))
    }

    fn decode(kind: u32, body: &[u8]) -> Result<Self, FabricError> {
        let mut reader = Reader(body);
        let packet = match kind {
            GREETING => Self::Greeting(reader.greeting()?),
            PROOF => Self::Proof(reader.take()?),
            PAIR => Self::Pair(reader.pair()?),
            READY => Self::Ready,
            GOODBYE => Self::Goodbye,
            REFUSAL => Self::Refusal(reader.reason()),
            kind => {
                return Err(misbehaved(format!("a handshake packet of unknown kind {kind}")));
            }
        };
        if !reader.0.is_empty() {
            return Err(misbehaved("its handshake packet is too long"));
        }
        Ok(packet)
    }

    /// Name of the packet's kind, for errors.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Greeting(_) => "greeting",
            Self::Proof(_) => "proof",
            Self::Pair(_) => "pair",
            Self::Ready => "ready",
            Self::Goodbye => "goodbye",
            Self::Refusal(_) => "refusal",
        }
    }
}

impl Greeting {
    fn encode(&self) -> Vec<u8> {
        let mut body = self.rack.0.to_le_bytes().to_vec();
        body.extend([u8::from(self.has_key), 0, 0, 0, 0, 0]);
        body.extend(self.incarnation.0.to_le_bytes());
        body.extend(self.nonce);
        body
    }
}

impl Window {
    fn encode(&self) -> Vec<u8> {
        [&self.address.to_le_bytes()[..], &self.len.to_le_bytes(), &self.key.to_le_bytes(), &[0; 4]]
            .concat()
    }
}

impl Pair {
    fn encode(&self) -> Vec<u8> {
        let mut body = self.number.to_le_bytes().to_vec();
        body.extend(self.psn.to_le_bytes());
        body.extend(self.lid.to_le_bytes());
        body.extend([self.mtu, self.reads_answered]);
        body.extend(u32::try_from(self.exports.len()).unwrap_or(0).to_le_bytes());
        body.extend(self.gid);
        for window in std::iter::once(&self.slots).chain(&self.exports) {
            body.extend(window.encode());
        }
        body
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

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FabricError> {
        let Some((bytes, rest)) = self.0.split_first_chunk() else {
            return Err(misbehaved("its handshake packet is too short"));
        };
        self.0 = rest;
        Ok(*bytes)
    }

    fn u16(&mut self) -> Result<u16, FabricError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FabricError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FabricError> {
        self.take().map(u64::from_le_bytes)
    }

    fn zeroes<const N: usize>(&mut self) -> Result<(), FabricError> {
        if self.take::<N>()? == [0; N] {
            return Ok(());
        }
        Err(misbehaved("its handshake packet has something where zeroes must be"))
    }

    fn greeting(&mut self) -> Result<Greeting, FabricError> {
        let rack = RackId(self.u16()?);
        let [has_key] = self.take()?;
        if has_key > 1 {
            return Err(misbehaved("its greeting has unknown flags"));
        }
        self.zeroes::<5>()?;
        let incarnation = Incarnation(self.u64()?);
        Ok(Greeting { rack, incarnation, has_key: has_key == 1, nonce: self.take()? })
    }

    fn window(&mut self) -> Result<Window, FabricError> {
        let (address, len, key) = (self.u64()?, self.u64()?, self.u32()?);
        self.zeroes::<4>()?;
        if len == 0 || address.checked_add(len).is_none() {
            return Err(misbehaved(format!("it offers {len} B of memory at {address:#x}")));
        }
        Ok(Window { address, len, key })
    }

    fn pair(&mut self) -> Result<Pair, FabricError> {
        let (number, psn, lid) = (self.u32()?, self.u32()?, self.u16()?);
        let [mtu, reads_answered] = self.take()?;
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        if number >= 1 << 24 || psn >= 1 << 24 || !(1..=5).contains(&mtu) || reads_answered == 0 {
            return Err(misbehaved("its queue pair can't be"));
        }
        if count == 0 || count > MAX_EXPORTS {
            return Err(misbehaved(format!("it exports {count} regions")));
        }
        let (gid, slots) = (self.take()?, self.window()?);
        let exports = (0..count).map(|_| self.window()).collect::<Result<_, _>>()?;
        Ok(Pair { number, psn, lid, mtu, reads_answered, gid, slots, exports })
    }

    fn reason(&mut self) -> String {
        // The text reaches logs and terminals: control characters are replaced.
        let text = String::from_utf8_lossy(std::mem::take(&mut self.0));
        let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
        plain.take(MAX_REASON).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<Packet> {
        let greeting = Greeting {
            rack: RackId(7),
            incarnation: Incarnation(9),
            has_key: true,
            nonce: [4; 32],
        };
        let window = Window { address: 0x7f00_0000_0000, len: 1 << 40, key: 77 };
        let pair = Pair {
            number: 17,
            psn: 0xff_ffff,
            lid: 3,
            mtu: 5,
            reads_answered: 16,
            gid: [5; 16],
            slots: Window { len: 1 << 20, ..window },
            exports: vec![window; MAX_EXPORTS],
        };
        vec![
            Packet::Greeting(greeting),
            Packet::Proof([8; 32]),
            Packet::Pair(pair),
            Packet::Ready,
            Packet::Goodbye,
            Packet::Refusal("no".into()),
        ]
    }

    fn one(bytes: &[u8]) -> Result<Option<Packet>, FabricError> {
        Packet::take(&mut bytes.to_vec())
    }

    #[test]
    fn packets_come_back_one_after_the_other() {
        let mut bytes: Vec<u8> = packets().iter().flat_map(Packet::encode).collect();
        for packet in packets() {
            assert_eq!(Packet::take(&mut bytes), Ok(Some(packet)));
        }
        assert_eq!(Packet::take(&mut bytes), Ok(None));
    }

    #[test]
    fn a_packet_that_is_not_whole_is_waited_for() {
        for packet in packets() {
            let bytes = packet.encode();
            assert!(bytes.len() <= START_BYTES + MAX_BODY);
            for len in 0..bytes.len() {
                assert_eq!(one(&bytes[..len]), Ok(None), "{len} B of {packet:?}");
            }
        }
    }

    #[test]
    fn another_protocol_or_version_is_noticed_at_once() {
        assert!(one(b"GET /").is_err());
        let mut bytes = Packet::Ready.encode();
        bytes[12] = 99;
        assert_eq!(one(&bytes), Err(FabricError::Version { ours: VERSION, theirs: 99 }));
    }

    #[test]
    fn refusal_is_bounded_and_printable() {
        let bytes = Packet::Refusal(format!("no\x1b[2J{}", "ü".repeat(400))).encode();
        let Ok(Some(Packet::Refusal(reason))) = one(&bytes) else { panic!() };
        assert!(reason.starts_with("no [2J") && reason.ends_with('ü') && reason.len() <= 256);
    }

    #[test]
    fn broken_packets_are_errors() {
        let [greeting, _, pair, ready, ..] = &packets()[..] else { panic!() };
        let changes: [(&Packet, usize, u8); 10] = [
            (ready, 8, 9),    // kind
            (ready, 16, 255), // length: more than a ready packet has
            (ready, 18, 1),   // length: too long
            (greeting, 22, 2),
            (greeting, 23, 1),
            (pair, 23, 1),  // queue pair number
            (pair, 30, 6),  // MTU
            (pair, 31, 0),  // reads
            (pair, 32, 17), // exports
            (pair, 72, 1),  // zeroes
        ];
        for (packet, at, value) in changes {
            let mut bytes = packet.encode();
            bytes[at] = value;
            bytes.resize(bytes.len() + 255, 0);
            assert!(one(&bytes).is_err(), "{value} at {at} of a {}", packet.name());
        }
        let mut no_memory = pair.encode();
        no_memory[60..68].fill(0);
        assert!(one(&no_memory).is_err());
    }
}
