use rackpool_client::GlobalAddr;

use crate::bucket::word_at;
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::{Memory, ReadRequest};
use crate::segment::SegmentRef;

/// A handle's own copy of the directory, flattened: entry `i` is the segment of the hashes that
/// end in `i`. It may be out of date; using it shows.
#[derive(Debug)]
pub(crate) struct DirectoryCache {
    entries: Vec<SegmentRef>,
}

impl DirectoryCache {
    /// A cache that knows nothing.
    pub(crate) fn new() -> Self {
        Self { entries: vec![SegmentRef::NONE] }
    }

    /// The segment that was last known to hold `hash`, or none.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the mask is that of a Vec's length")]
    pub(crate) fn get(&self, hash: KeyHash) -> SegmentRef {
        let index = hash.raw() as usize & (self.entries.len() - 1);
        self.entries[index]
    }

    /// Remembers that `segment` holds `hash`, and all hashes that end like it.
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
    /// The segment of `hash`, as cached or, failing that, as the directory says.
    #[inline]
    pub(crate) fn segment(&mut self, hash: KeyHash) -> Result<SegmentRef, KvError<M::Error>> {
        let cached = self.cache.get(hash);
        if cached.is_none() { self.resolve(hash) } else { Ok(cached) }
    }

    /// Asks the directory for the segment of `hash` and caches the answer: it was true at some
    /// moment during the call.
    ///
    /// The shallowest match counts, and the entries are read in that order. An entry that does
    /// not match because its segment is too deep never will again, and the entry beside it was
    /// there before it became so: one pass finds the segment.
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

    /// Whether the directory still says, at some moment during the call, that `segment` holds
    /// `hash`.
    pub(crate) fn confirm(
        &mut self,
        hash: KeyHash,
        segment: SegmentRef,
    ) -> Result<bool, KvError<M::Error>> {
        Ok(self.resolve(hash)? == segment)
    }

    /// Replaces a cached `segment` that proved to be another one's memory by now.
    pub(crate) fn refresh(
        &mut self,
        hash: KeyHash,
        segment: SegmentRef,
    ) -> Result<(), KvError<M::Error>> {
        if self.confirm(hash, segment)? {
            // The memory was used again before it was looked at, the directory read after.
            return Err(KvError::Corrupt { what: "segment header", addr: segment.addr() });
        }
        Ok(())
    }

    /// Where the directory entry `index` is.
    pub(crate) fn entry_addr(&self, index: u64) -> GlobalAddr {
        self.shared.layout.entry_addr(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::Life;

    fn segment(raw: u64, depth: u8) -> SegmentRef {
        SegmentRef::new(GlobalAddr::from_raw(raw), depth, Life::FIRST).unwrap()
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
