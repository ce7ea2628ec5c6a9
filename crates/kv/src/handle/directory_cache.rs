use crate::layout::hash::KeyHash;
use crate::layout::segment::SegmentRef;

/// A handle's own copy of the directory, flattened: entry `i` is the segment of the hashes that end
/// in `i`. The copy may be stale; a segment's tag reveals that.
#[derive(Debug)]
pub(crate) struct DirectoryCache {
    entries: Vec<SegmentRef>,
}

impl DirectoryCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        Self { entries: vec![SegmentRef::NONE] }
    }

    /// The cached segment of `hash`; `NONE` if there is none.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask is that of a Vec's length")]
    pub(crate) fn get(&self, hash: KeyHash) -> SegmentRef {
        let index = hash.raw() as usize & (self.entries.len() - 1);
        self.entries[index]
    }

    /// Caches `segment` for `hash` and for all other hashes that belong to the segment.
    #[expect(clippy::cast_possible_truncation, reason = "a suffix has at most 18 bits")]
    pub(crate) fn install(&mut self, hash: KeyHash, segment: SegmentRef) {
        let step = 1 << segment.depth();
        while self.entries.len() < step {
            self.entries.extend_from_within(..);
        }
        let first = hash.suffix(segment.depth()) as usize;
        self.entries[first..].iter_mut().step_by(step).for_each(|entry| *entry = segment);
    }
}

#[cfg(test)]
mod tests {
    use rackpool_client::GlobalAddr;

    use super::*;
    use crate::layout::life::SegmentLife;

    fn segment(raw: u64, depth: u8) -> SegmentRef {
        SegmentRef::new(GlobalAddr::from_raw(raw), depth, SegmentLife::FIRST).unwrap()
    }

    #[test]
    fn a_deeper_segment_takes_its_share() {
        let mut cache = DirectoryCache::new();
        assert!(cache.get(KeyHash::from_raw(5)).is_none());
        cache.install(KeyHash::from_raw(5), segment(64, 0));
        cache.install(KeyHash::from_raw(5), segment(128, 2));
        for (hash, expected) in [(0, 64), (1, 128), (2, 64), (3, 64), (5, 128), (9, 128)] {
            assert_eq!(cache.get(KeyHash::from_raw(hash)).addr().raw(), expected, "{hash}");
        }
        cache.install(KeyHash::from_raw(2), segment(192, 1));
        assert_eq!(cache.get(KeyHash::from_raw(0)).addr().raw(), 192);
        assert_eq!(cache.get(KeyHash::from_raw(3)).addr().raw(), 64);
    }
}
