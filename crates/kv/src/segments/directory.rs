use rackpool_client::{GlobalAddr, ReadRequest};

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::word_at;
use crate::layout::hash::KeyHash;
use crate::layout::segment::SegmentRef;
use crate::memory::Memory;

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

    /// The hash suffix at position `at` in the order of their reversed bits, in which the suffixes
    /// of one segment are consecutive. `None` after the last.
    pub(crate) fn suffix_at(&self, at: u64) -> Option<KeyHash> {
        let bits = u32::from(self.shared.layout.max_depth);
        if at >> bits != 0 {
            return None;
        }
        Some(KeyHash::from_raw(at.reverse_bits().checked_shr(64 - bits).unwrap_or(0)))
    }

    /// The number of suffixes of a segment.
    pub(crate) fn suffixes_of(&self, segment: SegmentRef) -> u64 {
        1 << (self.shared.layout.max_depth - segment.depth())
    }
}
