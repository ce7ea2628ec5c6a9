//! Where a volume begins.
//!
//! ```text
//!  0 magic "rackp-fs" | 8 version u32 | 12 zero | 16 table u64 | 24 seed of hashes u64
//! 32 XXH3-64 of bytes 0..32 | 40 first page of heads u64 | 48 place of the table u64 | 56 zero
//! 64 504 seats u64: the address of the superblock, or the token of who sits there
//! ```
//!
//! While the volume is made the table at 16 is 0, and 32 has the checksum with a table of 0.
//! Whoever opens it completes it: creates the table at its place, makes the first entries, and
//! stores the table at 16 and the checksum, each by a compare-and-swap.

use rackpool_client::GlobalAddr;
use rackpool_kv::{KvError, Memory};
use xxhash_rust::xxh3::xxh3_64;

/// What does not change of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) table: GlobalAddr,
    pub(crate) seed: u64,
}

/// What the bytes of no superblock of this version are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    NotAVolume,
    Version(u32),
}

/// Where the table of the volume is whose superblock is at `addr`; `None` of one that is not
/// complete.
///
/// # Errors
/// [`KvError::Corrupt`](rackpool_kv::KvError) for what is no superblock, or the memory's own error.
pub fn table_of<M: Memory>(
    memory: &M,
    addr: GlobalAddr,
) -> Result<Option<GlobalAddr>, KvError<M::Error>> {
    let mut fixed = [0; Superblock::FIXED];
    memory.read(addr, &mut fixed).map_err(KvError::Memory)?;
    match Superblock::decode(&fixed) {
        Ok(superblock) => Ok(Some(superblock.table).filter(|table| !table.is_null())),
        Err(_) => Err(KvError::Corrupt { what: "superblock of a volume", addr }),
    }
}

/// Whether the superblock of a volume begins with these bytes.
#[must_use]
pub fn begins_volume(first: &[u8; 8]) -> bool {
    *first == Superblock::MAGIC
}

impl Superblock {
    pub(crate) const BYTES: usize = 4096;
    pub(crate) const FIXED: usize = 40;
    pub(crate) const VERSION: u32 = 1;
    /// How many mounts a volume may have at a time.
    pub(crate) const SEATS: u16 = 504;
    const MAGIC: [u8; 8] = *b"rackp-fs";

    /// The checksum of a superblock of this version.
    pub(crate) fn check(self) -> u64 {
        let words = [u64::from(Self::VERSION), self.table.raw(), self.seed];
        let bytes: Vec<u8> =
            Self::MAGIC.into_iter().chain(words.into_iter().flat_map(u64::to_le_bytes)).collect();
        xxh3_64(&bytes)
    }

    /// The whole superblock of a new volume at `addr`.
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
            // The table may be there and the checksum not yet.
            check if check == begun.check() => Ok(begun),
            _ => Err(Foreign::NotAVolume),
        }
    }

    /// The word that holds the table of a complete volume.
    pub(crate) const fn table_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 16)
    }

    /// The word of the checksum.
    pub(crate) const fn check_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 32)
    }

    /// The word that the table is created at.
    pub(crate) const fn place_addr(superblock: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(superblock.raw() + 48)
    }

    /// The word that leads to the heads of files.
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
        let superblock = Superblock { table: GlobalAddr::from_raw(1 << 30), seed: 7 };
        let bytes = superblock.encode(GlobalAddr::from_raw(4096));
        assert_eq!(bytes.len(), Superblock::BYTES);
        let mut fixed = *bytes.first_chunk().unwrap();
        assert_eq!(Superblock::decode(&fixed), Ok(superblock));
        fixed[20] ^= 1;
        assert_eq!(Superblock::decode(&fixed), Err(Foreign::NotAVolume));
        fixed[8] = 9;
        assert_eq!(Superblock::decode(&fixed), Err(Foreign::Version(9)));
    }
}
