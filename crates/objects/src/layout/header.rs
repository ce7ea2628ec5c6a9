use rackpool_client::{GlobalAddr, RackId};

use crate::options::StoreOptions;

/// The header of a store, to which its root leads.
///
/// ```text
///  0       8         12  16        40      48     56      64             72   128
/// +-------+---------+---+---------+-------+------+-------+--------------+---+---------------+
/// | magic | version | 0 | options | phase | seat | stamp | object table | 0 | replica table |
/// |       |         |   |         |       |      |       |              |   | of each rack: |
/// |       |         |   |         |       |      |       |              |   | 256 words     |
/// +-------+---------+---+---------+-------+------+-------+--------------+---+---------------+
/// ```
///
/// The options are three words: see [`StoreOptions::to_words`]. The seat is an object of 64 B that
/// the program borrows which removes the store. The stamp is random and tells the store from others
/// that had this memory before or have it afterwards. The tables are words that the hash table
/// keeps ([`open_or_create_at`](rackpool_kv::Table::open_or_create_at)).
pub(crate) struct StoreHeader;

impl StoreHeader {
    pub(crate) const BYTES: usize = Self::REPLICAS + 8 * RACKS as usize;
    const REPLICAS: usize = 128;
    pub(crate) const SEAT_BYTES: u64 = 64;
    pub(crate) const VERSION: u32 = 4;
    const MAGIC: [u8; 8] = *b"rackp-ob";

    /// A header without tables.
    pub(crate) fn encode(options: &StoreOptions, seat: GlobalAddr, stamp: u64) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..12].copy_from_slice(&Self::VERSION.to_le_bytes());
        bytes[16..40].copy_from_slice(&options.to_bytes());
        bytes[48..56].copy_from_slice(&seat.raw().to_le_bytes());
        bytes[56..64].copy_from_slice(&stamp.to_le_bytes());
        bytes
    }

    /// Where the options are.
    pub(crate) const fn options_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 16)
    }

    /// The word with the phase.
    pub(crate) const fn phase_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 40)
    }

    /// The word with the seat.
    pub(crate) const fn seat_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 48)
    }

    /// The tables that a header names.
    pub(crate) fn tables(header: &[u8]) -> impl Iterator<Item = GlobalAddr> {
        let words = header.get(StorePrefix::BYTES..).unwrap_or_default().as_chunks().0.iter();
        words.map(|word| GlobalAddr::from_raw(u64::from_le_bytes(*word))).filter(|at| !at.is_null())
    }

    /// The racks whose replica tables a header names.
    pub(crate) fn racks(header: &[u8]) -> impl Iterator<Item = RackId> {
        let words = header.get(Self::REPLICAS..).unwrap_or_default().as_chunks::<8>().0.iter();
        (0..RACKS).zip(words).filter(|(_, word)| **word != [0; 8]).map(|(rack, _)| RackId(rack))
    }

    /// The word of the object table.
    pub(crate) const fn objects_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 64)
    }

    /// The word of a rack's replica table.
    pub(crate) const fn replicas_at(header: GlobalAddr, rack: RackId) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + Self::REPLICAS as u64 + 8 * rack.0 as u64)
    }
}

/// How far the removal of a store has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorePhase {
    /// The store is used. Left by a removal, for ever.
    InUse,
    /// No operation succeeds any more; objects are deleted. Left once there are none. After a kill
    /// the next removal continues.
    Emptying,
    /// There are no objects; the tables are removed, the object table last. After a kill the next
    /// removal continues.
    Empty,
}

impl StorePhase {
    pub(crate) const fn to_word(self) -> u64 {
        match self {
            Self::InUse => 0,
            Self::Emptying => 1,
            Self::Empty => 2,
        }
    }

    /// `None` for a word that no release writes.
    const fn of(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::InUse),
            1 => Some(Self::Emptying),
            2 => Some(Self::Empty),
            _ => None,
        }
    }
}

/// The first part of a header, without the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StorePrefix {
    pub(crate) version: u32,
    pub(crate) options: StoreOptions,
    /// `None` if it is unknown to this release, or damaged.
    pub(crate) phase: Option<StorePhase>,
    /// The seat's address, or the token of the program that removes the store.
    pub(crate) seat: u64,
    pub(crate) stamp: u64,
}

impl StorePrefix {
    pub(crate) const BYTES: usize = 64;

    /// `None` if these bytes begin no store.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(<[u8]>::first_chunk);
            word.map(|word| u64::from_le_bytes(*word))
        };
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let version = u32::from_le_bytes(*rest.first_chunk()?);
        let options = bytes.get(16..40)?.first_chunk()?;
        (*magic == StoreHeader::MAGIC).then_some(Self {
            version,
            options: StoreOptions::decode(options),
            phase: StorePhase::of(word(40)?),
            seat: word(48)?,
            stamp: word(56)?,
        })
    }
}

/// Whether `first` are the first bytes of a store.
///
/// ```
/// assert!(rackpool_objects::begins_store(b"rackp-ob"));
/// ```
#[must_use]
pub fn begins_store(first: &[u8; 8]) -> bool {
    *first == StoreHeader::MAGIC
}

/// The most racks of a pool.
pub(crate) const RACKS: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_as_it_went() {
        let (seat, options) = (GlobalAddr::from_raw(640), StoreOptions::default());
        let mut bytes = StoreHeader::encode(&options, seat, 7);
        assert_eq!(bytes.len(), 2176);
        assert_eq!(StoreHeader::tables(&bytes).count(), 0);
        let mut with_tables = bytes.clone();
        for (rack, at) in [(0, 128), (255, 2168)] {
            assert_eq!(StoreHeader::replicas_at(seat, RackId(rack)).raw(), 640 + at);
            with_tables[usize::try_from(at).unwrap()] = 1;
        }
        assert!(StoreHeader::racks(&with_tables).eq([0, 255].map(RackId)));
        let prefix = |bytes: &[u8]| StorePrefix::decode(bytes.first_chunk().unwrap());
        let found = prefix(&bytes).unwrap();
        let phase = Some(StorePhase::InUse);
        let expected = StorePrefix { version: 4, options, phase, seat: 640, stamp: 7 };
        assert_eq!(found, expected);
        for phase in [StorePhase::InUse, StorePhase::Emptying, StorePhase::Empty] {
            bytes[40..48].copy_from_slice(&phase.to_word().to_le_bytes());
            assert_eq!(prefix(&bytes).unwrap().phase, Some(phase));
        }
        bytes[40] = 3;
        assert_eq!(prefix(&bytes).unwrap().phase, None);
        bytes[0] = 0;
        assert_eq!(prefix(&bytes), None);
    }
}
