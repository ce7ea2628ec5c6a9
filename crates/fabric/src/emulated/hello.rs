use rackpool_model::{Incarnation, RackId};

use crate::FabricError;

/// Protocol version of everything that two emulated fabrics share: hello, link memory, rings.
pub(super) const VERSION: u32 = 1;
/// The largest number of regions that a rack may export.
pub(super) const MAX_EXPORTS: usize = 16;
/// The largest packet of the handshake, in bytes.
pub(super) const MAX_PACKET: usize = 512;

const MAGIC: [u8; 8] = *b"rackfab\0";
const HELLO: u32 = 1;
const REFUSAL: u32 = 2;
const MAX_REASON: usize = 256;

/// The identity and exports of one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) rack: RackId,
    pub(super) incarnation: Incarnation,
    /// Length of each exported region, in bytes.
    pub(super) regions: Vec<u64>,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut packet = start(HELLO);
        packet.extend(self.rack.0.to_le_bytes());
        packet.extend(u16::try_from(self.regions.len()).unwrap_or(0).to_le_bytes());
        packet.extend([0; 4]);
        packet.extend(self.incarnation.0.to_le_bytes());
        for len in &self.regions {
            packet.extend(len.to_le_bytes());
        }
        packet
    }
}

/// Encodes a refusal packet with `reason`, cut to at most 256 B.
pub(super) fn encode_refusal(reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut packet = start(REFUSAL);
    packet.extend(u16::try_from(end).unwrap_or(0).to_le_bytes());
    packet.extend(&reason.as_bytes()[..end]);
    packet
}

/// Decodes a handshake packet of a peer.
///
/// # Errors
///
/// The peer's refusal, or the fault of the packet.
pub(super) fn decode(packet: &[u8]) -> Result<Hello, FabricError> {
    let mut reader = Reader(packet);
    if reader.take::<8>()? != MAGIC {
        return Err(FabricError::misbehaved("it speaks another protocol"));
    }
    let kind = u32::from_le_bytes(reader.take()?);
    let version = u32::from_le_bytes(reader.take()?);
    if version != VERSION {
        return Err(FabricError::Version { ours: VERSION, theirs: version });
    }
    match kind {
        HELLO => reader.hello(),
        REFUSAL => Err(FabricError::Refused { reason: reader.reason()? }),
        _ => Err(FabricError::misbehaved(format!("a handshake packet of unknown kind {kind}"))),
    }
}

fn start(kind: u32) -> Vec<u8> {
    [&MAGIC[..], &kind.to_le_bytes(), &VERSION.to_le_bytes()].concat()
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

    fn hello(mut self) -> Result<Hello, FabricError> {
        let rack = RackId(u16::from_le_bytes(self.take()?));
        let count = usize::from(u16::from_le_bytes(self.take()?));
        let _reserved = self.take::<4>()?;
        let incarnation = Incarnation(u64::from_le_bytes(self.take()?));
        if count == 0 || count > MAX_EXPORTS {
            return Err(FabricError::misbehaved(format!("it exports {count} regions")));
        }
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            regions.push(u64::from_le_bytes(self.take()?));
        }
        if !self.0.is_empty() {
            return Err(FabricError::misbehaved("its hello is too long"));
        }
        Ok(Hello { rack, incarnation, regions })
    }

    fn reason(mut self) -> Result<String, FabricError> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        if len != self.0.len() || len > MAX_REASON {
            return Err(FabricError::misbehaved("its refusal has the wrong length"));
        }
        // The text reaches logs and terminals: control characters are replaced.
        let text = String::from_utf8_lossy(self.0);
        Ok(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { rack: RackId(7), incarnation: Incarnation(9), regions: vec![4096, 1 << 40] }
    }

    #[test]
    fn hello_comes_back() {
        assert_eq!(decode(&hello().encode()), Ok(hello()));
        let most = Hello { regions: vec![u64::MAX; MAX_EXPORTS], ..hello() };
        assert_eq!(decode(&most.encode()), Ok(most.clone()));
        assert!(most.encode().len() <= MAX_PACKET);
    }

    #[test]
    fn another_version_is_named_before_anything_else_is_read() {
        let mut packet = hello().encode();
        packet.truncate(16);
        packet[12] = 99;
        assert_eq!(decode(&packet), Err(FabricError::Version { ours: VERSION, theirs: 99 }));
    }

    #[test]
    fn refusal_is_bounded_and_printable() {
        let packet = encode_refusal(&format!("no\x1b[2J{}", "ü".repeat(400)));
        assert!(packet.len() <= MAX_PACKET);
        let Err(FabricError::Refused { reason }) = decode(&packet) else { panic!() };
        assert!(reason.starts_with("no [2J") && reason.ends_with('ü'));
    }

    #[test]
    fn broken_packets_are_errors() {
        let good = hello().encode();
        for len in 0..good.len() {
            assert!(decode(&good[..len]).is_err());
        }
        assert!(decode(&[&good[..], &[0]].concat()).is_err());
        for (at, value) in [(0, b'x'), (8, 3), (18, 0), (18, 17), (19, 255)] {
            let mut packet = good.clone();
            packet[at] = value;
            assert!(decode(&packet).is_err());
        }
    }
}
