//! Reading the values of several keys at once. What is in other racks is read in batches: the
//! buckets of all keys, then their objects. A key whose entry is not found there as it mostly is -
//! in one of its first two buckets, unlocked, decided and not changing - has its own search.

use rackpool_client::{GlobalAddr, ReadRequest};

use crate::entry::ValueKind;
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in, word_at};
use crate::layout::hash::KeyHash;
use crate::layout::object::EntryObject;
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::SlotWord;
use crate::memory::Memory;

/// The most keys of a batch.
const BATCH: usize = 128;
/// Bytes of the objects of a batch beyond which each further one is read alone.
const BATCH_BYTES: usize = 1 << 20;
/// The buckets of a key's path that are looked through in batches.
const BUCKETS: usize = 2;

/// A key and the segment of its table.
#[derive(Clone, Copy)]
struct Sought {
    /// Its index in the batch.
    key: usize,
    hash: KeyHash,
    segment: SegmentRef,
    /// Whether the segment is in this rack.
    is_near: bool,
}

/// A slot that may be a key's, and the place of its object in the bytes of the batch. The slot or
/// the object is in another rack.
struct Candidate {
    sought: Sought,
    at: GlobalAddr,
    word: SlotWord,
    is_near: bool,
    start: usize,
    bytes: usize,
    /// The index of its segment's tag in the bytes of the batch.
    tag: usize,
}

/// What was read for some candidates.
struct BatchBytes {
    /// Their objects, one after the other.
    objects: Vec<u8>,
    /// Their slots, in their order.
    words: Vec<[u8; 8]>,
    /// The tags of their segments, one for each segment.
    tags: Vec<[u8; 8]>,
}

impl<M: Memory> Handle<M> {
    /// Reads the values of `keys` and calls `visit` once for each key, in any order, with its index
    /// and its value; `None` if the key is absent. Each key is read as by [`get`](Self::get), at
    /// some time during the call.
    ///
    /// Where buckets and entries are in other racks, they are read in a few batches for 128 keys,
    /// instead of two round trips for each.
    ///
    /// ```
    /// use rackpool_kv::{Handle, KvError, Memory};
    ///
    /// fn lengths<M: Memory>(
    ///     handle: &mut Handle<M>,
    ///     keys: &[&[u8]],
    /// ) -> Result<Vec<Option<usize>>, KvError<M::Error>> {
    ///     let mut all = vec![None; keys.len()];
    ///     handle.get_many(keys, |index, value| all[index] = value.map(<[u8]>::len))?;
    ///     Ok(all)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Handle::get`] for any of the keys; the others may have been visited or not.
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), KvError<M::Error>> {
        let mut value = Vec::new();
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            let first = batch * BATCH;
            let mut is_visited = [false; BATCH];
            if self.view.is_none() {
                self.get_batch(keys, |key, value| {
                    is_visited[key] = true;
                    visit(first + key, Some(value));
                })?;
            }
            for (index, key) in keys.iter().enumerate().filter(|(index, _)| !is_visited[*index]) {
                let is_there = self.get(key, &mut value)?;
                visit(first + index, is_there.then_some(&value));
            }
        }
        Ok(())
    }

    /// Visits those of the keys whose entries are found in batches of reads.
    fn get_batch(
        &mut self,
        keys: &[&[u8]],
        mut visit: impl FnMut(usize, &[u8]),
    ) -> Result<(), KvError<M::Error>> {
        let mut sought = Vec::with_capacity(keys.len());
        for (key, bytes) in keys.iter().enumerate() {
            let hash = Self::hash(bytes)?;
            let segment = self.segment(hash)?;
            let is_near = self.shared.memory.is_near(segment.addr());
            sought.push(Sought { key, hash, segment, is_near });
        }
        let mut candidates = self.find_candidates(sought);
        if candidates.len() < 2 {
            return Ok(());
        }
        // After an error each key's own search says what it is.
        let Ok(found) = self.read_candidates(&mut candidates) else { return Ok(()) };
        for (index, candidate) in candidates.iter().enumerate() {
            let Candidate { sought, word, start, bytes, tag, .. } = candidate;
            let Sought { key, hash, segment, .. } = *sought;
            let now = SlotWord::from_raw(word_at(&found.words[index], 0));
            let is_linked = word_at(&found.tags[*tag], 0) == segment.tag(hash)
                && now.is_unchanged(*word)
                && !now.is_frozen();
            let object = &found.objects[*start..start + bytes];
            let Some(parts) = EntryObject::decode(object).filter(|_| is_linked) else { continue };
            let is_string = parts.form.kind == ValueKind::STRING && !parts.form.is_over();
            let is_decided = EntryObject::owner_in(object) == 0;
            if is_string && is_decided && object[parts.key] == *keys[key] {
                if let Some(uses) = &self.recent_use {
                    uses.note(hash);
                }
                visit(key, &object[parts.value]);
            }
        }
        Ok(())
    }

    /// The address of a bucket of a key's path.
    fn bucket(&self, sought: &Sought, level: usize) -> GlobalAddr {
        let path = self.shared.layout.shape.path(sought.hash);
        let bucket = path.buckets().get(level).copied().unwrap_or_default() as usize;
        slot_addr(sought.segment.addr(), bucket * BUCKET_SLOTS)
    }

    /// Looks through the first buckets of the keys' paths.
    fn find_candidates(&self, mut sought: Vec<Sought>) -> Vec<Candidate> {
        let (mut candidates, mut later, mut all) = (Vec::new(), Vec::new(), 0);
        // Reads of one rack are under way together only if none of another rack is between them.
        sought.sort_by_key(|one| !one.is_near);
        for level in 0..BUCKETS {
            let mut lines = vec![[0; BUCKET_BYTES]; sought.len()];
            let addrs: Vec<GlobalAddr> = sought.iter().map(|one| self.bucket(one, level)).collect();
            let mut reads: Vec<ReadRequest<'_>> = addrs
                .iter()
                .zip(&mut lines)
                .map(|(addr, into)| ReadRequest { addr: *addr, into })
                .collect();
            if reads.is_empty() || self.shared.memory.read_batch(&mut reads).is_err() {
                break;
            }
            for ((sought, line), bucket) in
                std::mem::take(&mut sought).into_iter().zip(&lines).zip(addrs)
            {
                let mut slots = slots_in(line).enumerate();
                let Some((index, word)) = slots.find(|(_, slot)| slot.may_hold(sought.hash)) else {
                    later.push(sought);
                    continue;
                };
                let is_near = self.shared.memory.is_near(word.object().addr);
                let bytes = word.object().whole_bytes();
                let bytes = bytes.filter(|bytes| all + bytes <= BATCH_BYTES);
                if let Some(bytes) = bytes.filter(|_| !is_near || !sought.is_near) {
                    let at = GlobalAddr::from_raw(bucket.raw() + index as u64 * 8);
                    candidates.push(Candidate {
                        sought,
                        at,
                        word,
                        is_near,
                        start: 0,
                        bytes,
                        tag: 0,
                    });
                    all += bytes;
                }
            }
            std::mem::swap(&mut sought, &mut later);
        }
        candidates.sort_by_key(|one| !one.is_near);
        let mut start = 0;
        for candidate in &mut candidates {
            candidate.start = start;
            start += candidate.bytes;
        }
        candidates
    }

    /// Reads the candidates' objects, then their slots and the tags of their segments again: what
    /// has not changed was linked all the time.
    fn read_candidates(&self, candidates: &mut [Candidate]) -> Result<BatchBytes, M::Error> {
        let len = candidates.last().map_or(0, |last| last.start + last.bytes);
        let segments = segments_of(candidates);
        let mut found = BatchBytes {
            objects: vec![0; len],
            words: vec![[0; 8]; candidates.len()],
            tags: vec![[0; 8]; segments.len()],
        };
        let mut reads = Vec::with_capacity(2 * candidates.len() + segments.len());
        let mut rest = &mut found.objects[..];
        for candidate in &*candidates {
            let (into, next) = rest.split_at_mut(candidate.bytes);
            reads.push(ReadRequest { addr: candidate.word.object().addr, into });
            rest = next;
        }
        // The slots of this rack are last: objects and slots of one rack follow each other. A tag
        // is read after the slots of its segment, as in a search for one key.
        let slots = candidates.iter().zip(&mut found.words);
        let slots = slots.map(|(one, into)| (one.sought.is_near, one.at, into));
        let (mut near, mut far): (Vec<_>, Vec<_>) = slots.partition(|(is_near, ..)| *is_near);
        for (segment, into) in segments.iter().zip(&mut found.tags) {
            let half = if segment.is_near { &mut near } else { &mut far };
            half.push((segment.is_near, SegmentHeader::tag_addr(segment.segment.addr()), into));
        }
        let all = far.into_iter().chain(near);
        reads.extend(all.map(|(_, addr, into)| ReadRequest { addr, into }));
        self.shared.memory.read_batch(&mut reads)?;
        Ok(found)
    }
}

/// One key of each segment. Notes in the candidates which one is theirs.
fn segments_of(candidates: &mut [Candidate]) -> Vec<Sought> {
    let mut segments: Vec<Sought> = Vec::new();
    for candidate in candidates {
        let addr = candidate.sought.segment.addr();
        let known = segments.iter().position(|one| one.segment.addr() == addr);
        candidate.tag = known.unwrap_or(segments.len());
        match known {
            // Its slots are read with the others of the segment, before the tag.
            Some(known) => candidate.sought.is_near = segments[known].is_near,
            None => segments.push(candidate.sought),
        }
    }
    segments
}
