use rackpool_client::GlobalAddr;

use crate::layout::hash::{KeyHash, MainBuckets};
use crate::layout::slot::SlotWord;

/// A bucket is one cache line of eight slots.
pub(crate) const BUCKET_BYTES: usize = 64;
pub(crate) const BUCKET_SLOTS: usize = 8;
/// The most buckets in a key's path.
pub(crate) const PATH_BUCKETS: usize = 4;

/// The division of a segment of a given size: one line of header, then groups of three buckets. The
/// outer buckets of a group are main buckets; the middle one is the overflow of both.
///
/// ```text
/// | header | main 0 | overflow 0 | main 1 | main 2 | overflow 1 | main 3 | …
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentShape {
    groups: u32,
    bits: u8,
}

/// The buckets of a key in search order: its two main buckets, then their overflows (one, if both
/// main buckets share it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketPath {
    buckets: [u32; PATH_BUCKETS],
    len: u8,
}

impl SegmentShape {
    pub(crate) const MIN_BITS: u8 = 8;
    pub(crate) const MAX_BITS: u8 = 20;

    /// The shape of segments of `1 << bits` bytes; `None` if that is out of range.
    pub(crate) const fn new(bits: u8) -> Option<Self> {
        if bits < Self::MIN_BITS || bits > Self::MAX_BITS {
            return None;
        }
        Some(Self { groups: ((1 << (bits - 6)) - 1) / 3, bits })
    }

    pub(crate) const fn bits(self) -> u8 {
        self.bits
    }

    pub(crate) const fn bytes(self) -> u64 {
        1 << self.bits
    }

    /// The number of slots in a segment.
    pub(crate) const fn slots(self) -> usize {
        self.groups as usize * 3 * BUCKET_SLOTS
    }

    #[inline]
    pub(crate) const fn path(self, hash: KeyHash) -> BucketPath {
        let MainBuckets { first, second } = hash.mains(self.groups as u64 * 2);
        let (first, second) = (Self::main(first), Self::main(second));
        let (third, fourth) = (Self::overflow(first), Self::overflow(second));
        let len = if third == fourth { 3 } else { 4 };
        BucketPath { buckets: [first, second, third, fourth], len }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a segment has fewer than 2^14 buckets")]
    const fn main(index: u64) -> u32 {
        (index / 2 * 3 + index % 2 * 2) as u32
    }

    const fn overflow(main: u32) -> u32 {
        main / 3 * 3 + 1
    }
}

impl BucketPath {
    #[inline]
    pub(crate) fn buckets(&self) -> &[u32] {
        &self.buckets[..usize::from(self.len)]
    }

    /// The slot indices of the path within the segment, in search order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.buckets().iter().flat_map(|bucket| {
            let first = *bucket as usize * BUCKET_SLOTS;
            first..first + BUCKET_SLOTS
        })
    }
}

/// The address of slot `index` of the segment at `segment`.
#[inline]
pub(crate) const fn slot_addr(segment: GlobalAddr, index: usize) -> GlobalAddr {
    GlobalAddr::from_raw(segment.raw() + BUCKET_BYTES as u64 + index as u64 * 8)
}

/// The word with index `index` in bytes read from the pool.
#[inline]
pub(crate) fn word_at(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// The slots in bytes read from the pool.
pub(crate) fn slots_in(bytes: &[u8]) -> impl Iterator<Item = SlotWord> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| SlotWord::from_raw(u64::from_le_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_and_never_name_a_bucket_twice() {
        for bits in [8, 9, 10, 15] {
            let shape = SegmentShape::new(bits).unwrap();
            for key in 0..2000u32 {
                let path = shape.path(KeyHash::of(&key.to_le_bytes()));
                let mut slots: Vec<_> = path.slots().collect();
                assert!(slots.iter().all(|slot| *slot < shape.slots()));
                slots.sort_unstable();
                slots.dedup();
                assert_eq!(slots.len(), path.buckets().len() * BUCKET_SLOTS);
            }
        }
    }

    #[test]
    fn a_segment_of_32_kib_has_170_groups() {
        let shape = SegmentShape::new(15).unwrap();
        assert_eq!(shape.slots(), 4080);
        assert_eq!(SegmentShape::new(7), None);
    }
}
