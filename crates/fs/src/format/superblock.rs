//! The superblock of a volume.
//!
//! ```text
//!  0 magic "rackp-fs" | 8 version u32 | 12 zero | 16 table u64 | 24 seed of hashes u64
//! 32 XXH3-64 of bytes 0..32 | 40 first page of heads u64 | 48 place of the table u64 | 56 zero
//! 64 504 seats u64: the address of the superblock, or the token of the mount in the seat
//! ```
//!
//! While a volume is being created, the field at 16 is 0, and 32 holds the checksum that fits it. A
//! mount that opens such a volume completes it: it creates the table at its place and the first
//! entries, then stores the table at 16 and the checksum, each by a compare-and-swap.

use rackpool_client::GlobalAddr;
use rackpool_kv::{KvError, Memory};
use xxhash_rust::xxh3::xxh3_64;

/// The fixed fields. Only the table changes, once, when the volume is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeSuperblock {
    pub(crate) table: GlobalAddr,
    pub(crate) seed: u64,
}

/// Why bytes are no superblock of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    NotAVolume,
    Version(u32),
}

/// Returns the table of the volume whose superblock is at `addr`; `None` for an incomplete volume.
///
/// # Errors
/// [`KvError::Corrupt`](rackpool_kv::KvError) if there is no superblock, or the memory's own error.
pub fn table_of<M: Memory>(
    memory: &M,
    addr: GlobalAddr,
) -> Result<Option<GlobalAddr>, KvError<M::Error>> {
    let mut fixed = [0; VolumeSuperblock::FIXED];
    memory.read(addr, &mut fixed).map_err(KvError::Memory)?;
    match VolumeSuperblock::decode(&fixed) {
        Ok(superblock) => Ok(Some(superblock.table).filter(|table| !table.is_null())),
        Err(_) => Err(KvError::Corrupt { what: "superblock of a volume", addr }),
    }
}

/// Whether the bytes are the beginning of a volume's superblock.
#[must_use]
pub fn begins_volume(first: &[u8; 8]) -> bool {
    *first == VolumeSuperblock::MAGIC
}

impl VolumeSuperblock {
    pub(crate) const BYTES: usize = 4096;
    pub(crate) const FIXED: usize = 40;
    pub(crate) const VERSION: u32 = 1;
    /// The most mounts that a volume may have at a time.
    pub(crate) const SEATS: u16 = 504;
    const MAGIC: [u8; 8] = *b"rackp-fs";

    /// The checksum of a superblock of this version.
    pub(crate) fn check(self) -> u64 {
        let words = [u64::from(Self::VERSION), self.table.raw(), self.seed];
        let bytes: Vec<u8> =
            Self::MAGIC.into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes)).collect();
        xxh3_64(&bytes)
    }

    /// Encodes the superblock of a new volume at `addr`.
    pub(crate) fn encode(self, addr: GlobalAddr) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend_from_slice(&Self::MAGIC);
        bytes.extend_from_slice(&u64::from(Self::VERSION).to_le_bytes());
        bytes.extend_from_slice(&self.table.raw().to_le_bytes());
        bytes.extend_from_slice(&self.seed.to_le_bytes());
        bytes.extend_from_slice(&self.check().to_le_bytes());
        bytes.resize(64, 0);
        (0..Self::SEATS).for_each(|_| bytes.extend_from_slice(&addr.raw().to_le_bytes()));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::FIXED]) -> Result<Self, Foreign> {
        let word = |at: usize| {
            bytes[at..].first_chunk().map_or(0, |word: &[u8; 8]| u64::from_le_bytes(*word))
        };
        if bytes[..8] != Self::MAGIC {
            return Err(Foreign::NotAVolume);
        }
        match u32::try_from(word(8)) {
            Ok(Self::VERSION) => {}
            Ok(found) => return Err(Foreign::Version(found)),
            Err(_) => return Err(Foreign::NotAVolume),
        }
        let whole = Self { table: GlobalAddr::from_raw(word(16)), seed: word(24) };
        let begun = Self { table: GlobalAddr::NULL, ..whole };
        match word(32) {
            check if check == whole.check() => Ok(whole),
            // The table may be stored already and the checksum not yet.
            check if check == begun.check() => Ok(begun),
            _ => Err(Foreign::NotAVolume),
        }
    }

    /// The word that holds the table's address.
    pub(crate) const fn table_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 16)
    }

    /// The word of the checksum.
    pub(crate) const fn check_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 32)
    }

    /// The place at which the table is created.
    pub(crate) const fn place_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 48)
    }

    /// The word that leads to the first page of heads.
    pub(crate) const fn heads_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 40)
    }

    /// The word of a seat.
    pub(crate) const fn seat_addr(superblock: GlobalAddr, seat: u16) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 64 + 8 * seat as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went_and_any_other_byte_is_noticed() {
        let superblock = VolumeSuperblock { table: GlobalAddr::from_raw(1 << 30), seed: 7 };
        let bytes = superblock.encode(GlobalAddr::from_raw(4096));
        assert_eq!(bytes.len(), VolumeSuperblock::BYTES);
        let mut fixed = *bytes.first_chunk().unwrap();
        assert_eq!(VolumeSuperblock::decode(&fixed), Ok(superblock));
        fixed[20] ^= 1;
        assert_eq!(VolumeSuperblock::decode(&fixed), Err(Foreign::NotAVolume));
        fixed[8] = 9;
        assert_eq!(VolumeSuperblock::decode(&fixed), Err(Foreign::Version(9)));
    }
}
