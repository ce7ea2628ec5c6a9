use rackpool_client::{GlobalAddr, ReadRequest};

use crate::bucket::word_at;
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::segment::SegmentRef;

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

impl<M: Memory> Handle<M> {
    /// The segment of `hash`, from the cache or else from the directory.
    #[inline]
    pub(crate) fn segment(&mut self, hash: KeyHash) -> Result<SegmentRef, KvError<M::Error>> {
        let cached = self.cache.get(hash);
        if cached.is_none() { self.resolve(hash) } else { Ok(cached) }
    }

    /// Reads the segment of `hash` from the directory and caches it. The segment was current at
    /// some point during the call.
    ///
    /// The shallowest match counts, and the entries are read from shallow to deep. An entry that
    /// does not match because its segment is too deep never matches again, and the sibling entry
    /// existed before the segment became that deep. So one pass finds the segment.
    pub(crate) fn resolve(&mut self, hash: KeyHash) -> Result<SegmentRef, KvError<M::Error>> {
        let layout = &self.shared.layout;
        let mut indexes: Vec<u64> =
            (0..=layout.max_depth).map(|depth| hash.suffix(depth)).collect();
        indexes.dedup();
        let mut bytes = vec![0; indexes.len() * 8];
        let mut reads: Vec<ReadRequest<'_>> = indexes
            .iter()
            .zip(bytes.chunks_exact_mut(8))
            .map(|(index, into)| ReadRequest { addr: layout.entry_addr(*index), into })
            .collect();
        self.shared.memory.read_batch(&mut reads).map_err(KvError::Memory)?;
        for (at, index) in indexes.iter().enumerate() {
            let segment = SegmentRef::from_raw(word_at(&bytes, at));
            if !segment.is_none()
                && segment.depth() <= layout.max_depth
                && hash.suffix(segment.depth()) == *index
            {
                self.cache.install(hash, segment);
                return Ok(segment);
            }
        }
        Err(KvError::Corrupt { what: "directory", addr: layout.directory })
    }

    /// Whether `segment` was the directory's segment of `hash` at some point during the call.
    pub(crate) fn confirm(
        &mut self,
        hash: KeyHash,
        segment: SegmentRef,
    ) -> Result<bool, KvError<M::Error>> {
        Ok(self.resolve(hash)? == segment)
    }

    /// Replaces a cached `segment` whose tag showed another life or suffix.
    pub(crate) fn refresh(
        &mut self,
        hash: KeyHash,
        segment: SegmentRef,
    ) -> Result<(), KvError<M::Error>> {
        if self.confirm(hash, segment)? {
            // The directory was read after the tag, and still names the segment whose tag is wrong.
            return Err(KvError::Corrupt { what: "segment header", addr: segment.addr() });
        }
        Ok(())
    }

    /// The address of the directory entry `index`.
    pub(crate) fn entry_addr(&self, index: u64) -> GlobalAddr {
        self.shared.layout.entry_addr(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::SegmentLife;

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
