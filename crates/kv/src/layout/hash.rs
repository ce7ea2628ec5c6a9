use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of the key hash, equal for all tables and part of the format.
const SEED: u64 = 0x7261_636b_706f_6f6c;

/// The hash of a key. Its parts come from disjoint bits:
///
/// ```text
///  63       56 55          37 36          18 17        0
/// +-----------+--------------+--------------+-----------+
/// |fingerprint|  second main |  first main  |  suffix   |
/// +-----------+--------------+--------------+-----------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

/// The two main buckets of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MainBuckets {
    pub(crate) first: u64,
    pub(crate) second: u64,
}

impl KeyHash {
    const MAIN_BITS: u32 = 19;
    const FIRST_SHIFT: u32 = 18;
    const SECOND_SHIFT: u32 = 37;
    const FINGERPRINT_SHIFT: u32 = 56;

    #[inline]
    pub(crate) fn of(key: &[u8]) -> Self {
        Self(xxh3_64_with_seed(key, SEED))
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    /// The low `depth` bits, which select a segment of that depth.
    #[inline]
    pub(crate) const fn suffix(self, depth: u8) -> u64 {
        self.0 & ((1 << depth) - 1)
    }

    #[inline]
    pub(crate) const fn fingerprint(self) -> u8 {
        (self.0 >> Self::FINGERPRINT_SHIFT) as u8
    }

    /// The bucket of the hash among `buckets`, a power of two.
    #[inline]
    pub(crate) const fn bucket_of(self, buckets: usize) -> usize {
        (self.0 >> Self::FIRST_SHIFT) as usize & (buckets - 1)
    }

    /// The main buckets: different, and both below `mains`, which is at least 2.
    #[inline]
    pub(crate) const fn mains(self, mains: u64) -> MainBuckets {
        let first = Self::scale(self.0 >> Self::FIRST_SHIFT, mains);
        let second = Self::scale(self.0 >> Self::SECOND_SHIFT, mains);
        let second = if first != second {
            second
        } else if second + 1 == mains {
            0
        } else {
            second + 1
        };
        MainBuckets { first, second }
    }

    const fn scale(bits: u64, range: u64) -> u64 {
        ((bits & ((1 << Self::MAIN_BITS) - 1)) * range) >> Self::MAIN_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mains_differ_and_are_in_range() {
        for mains in [2, 10, 340] {
            for key in 0..1000u32 {
                let MainBuckets { first, second } = KeyHash::of(&key.to_le_bytes()).mains(mains);
                assert!(first < mains && second < mains && first != second);
            }
        }
    }

    #[test]
    fn the_hash_is_part_of_the_format() {
        assert_eq!(KeyHash::of(b"rackpool").raw(), 264_444_476_611_131_151);
        assert_eq!(KeyHash::from_raw(0b1011).suffix(2), 0b11);
        assert_eq!(KeyHash::from_raw(u64::MAX).suffix(0), 0);
    }
}
