//! What a side offers in a handshake: its queue pair, and the memory that it gives access to.

use rackpool_fabric::FabricError;
use rackpool_fabric::handshake::Reader;

use crate::error::misbehaved;

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

impl Window {
    fn encode(&self) -> Vec<u8> {
        [&self.address.to_le_bytes()[..], &self.len.to_le_bytes(), &self.key.to_le_bytes(), &[0; 4]]
            .concat()
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FabricError> {
        let (address, len, key) = (reader.u64()?, reader.u64()?, reader.u32()?);
        reader.zeroes::<4>()?;
        if len == 0 || address.checked_add(len).is_none() {
            return Err(misbehaved(format!("it offers {len} B of memory at {address:#x}")));
        }
        Ok(Self { address, len, key })
    }
}

impl Pair {
    /// The content of an offer.
    pub(crate) fn encode(&self) -> Vec<u8> {
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

    /// Decodes the content of a peer's offer.
    pub(crate) fn decode(content: &[u8]) -> Result<Self, FabricError> {
        let mut reader = Reader::new(content);
        let (number, psn, lid) = (reader.u32()?, reader.u32()?, reader.u16()?);
        let [mtu, reads_answered] = reader.take()?;
        if number >= 1 << 24 || psn >= 1 << 24 || !(1..=5).contains(&mtu) || reads_answered == 0 {
            return Err(misbehaved("its queue pair can't be"));
        }
        let count = reader.export_count()?;
        let (gid, slots) = (reader.take()?, Window::decode(&mut reader)?);
        let exports = (0..count).map(|_| Window::decode(&mut reader)).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self { number, psn, lid, mtu, reads_answered, gid, slots, exports })
    }
}

#[cfg(test)]
mod tests {
    use rackpool_fabric::handshake::MAX_EXPORTS;

    use super::*;

    fn pair() -> Pair {
        let window = Window { address: 0x7f00_0000_0000, len: 1 << 40, key: 77 };
        Pair {
            number: 17,
            psn: 0xff_ffff,
            lid: 3,
            mtu: 5,
            reads_answered: 16,
            gid: [5; 16],
            slots: Window { len: 1 << 20, ..window },
            exports: vec![window; MAX_EXPORTS],
        }
    }

    #[test]
    fn a_pair_comes_back_and_a_part_of_it_is_an_error() {
        let bytes = pair().encode();
        assert_eq!(Pair::decode(&bytes), Ok(pair()));
        for len in 0..bytes.len() {
            assert!(Pair::decode(&bytes[..len]).is_err());
        }
        assert!(Pair::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn broken_pairs_are_errors() {
        // Queue pair number, MTU, reads, exports, zeroes.
        for (at, value) in [(3, 1), (10, 6), (11, 0), (12, 17), (52, 1)] {
            let mut bytes = pair().encode();
            bytes[at] = value;
            assert!(Pair::decode(&bytes).is_err(), "{value} at {at}");
        }
        let mut no_memory = pair().encode();
        no_memory[40..48].fill(0);
        assert!(Pair::decode(&no_memory).is_err());
    }
}
