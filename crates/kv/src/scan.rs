use crate::bucket::{BUCKET_BYTES, BUCKET_SLOTS, slot_addr, slots_in};
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::Memory;
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::{SlotKind, SlotWord};
use crate::verify::Peek;
use crate::words::read_word;

/// The entries of one segment, copied out of the pool.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Length of key and of value, in the order of `bytes`.
    lens: Vec<(usize, usize)>,
}

/// After so many looks at bytes that make no sense they are not a race any more.
const MAX_DAMAGED: u32 = 64;

impl<M: Memory> Handle<M> {
    /// Calls `visit` with the key and value of every entry, in no particular order.
    ///
    /// The table may be used meanwhile. Every key that is there from begin to end is visited
    /// exactly once, with a value that it had at some moment between; keys that come or go may be
    /// visited or not, and one that goes and comes back may be visited twice.
    pub fn for_each(
        &mut self,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError<M::Error>> {
        let mut batch = Batch::default();
        let mut damaged = 0;
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.resolve(hash)?;
            match self.copy_segment(segment, hash, &mut batch) {
                Ok(true) => {}
                Ok(false) => {
                    self.refresh(hash, segment)?;
                    continue;
                }
                Err(KvError::Corrupt { .. }) if damaged < MAX_DAMAGED => {
                    damaged += 1;
                    continue;
                }
                Err(error) => return Err(error),
            }
            let mut rest = &batch.bytes[..];
            for (key, value) in &batch.lens {
                let (entry, next) = rest.split_at(key + value);
                visit(&entry[..*key], &entry[*key..]);
                rest = next;
            }
            at += self.suffixes_of(segment);
        }
        Ok(())
    }

    /// The `at`th of all hash suffixes, sorted by their reversed bits: those of one segment
    /// follow each other. `None` after the last.
    pub(crate) fn suffix_at(&self, at: u64) -> Option<KeyHash> {
        let bits = u32::from(self.shared.layout.max_depth);
        if at >> bits != 0 {
            return None;
        }
        Some(KeyHash::from_raw(at.reverse_bits().checked_shr(64 - bits).unwrap_or(0)))
    }

    /// How many suffixes a segment has.
    pub(crate) fn suffixes_of(&self, segment: SegmentRef) -> u64 {
        1 << (self.shared.layout.max_depth - segment.depth())
    }

    /// Copies the entries of a segment; false when it was replaced meanwhile.
    fn copy_segment(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        batch: &mut Batch,
    ) -> Result<bool, KvError<M::Error>> {
        batch.bytes.clear();
        batch.lens.clear();
        for first in (0..self.shared.layout.shape.slots()).step_by(BUCKET_SLOTS) {
            let mut line = [0; BUCKET_BYTES];
            let addr = slot_addr(segment.addr(), first);
            self.shared.memory.read(addr, &mut line).map_err(KvError::Memory)?;
            for (index, slot) in slots_in(&line).enumerate() {
                let mut now = slot;
                loop {
                    if now.is_frozen() {
                        // Its upper half may be published and changed already.
                        self.reshape(segment, hash)?;
                        return Ok(false);
                    }
                    match self.copy_entry(segment, hash, first + index, now, batch)? {
                        Some(true) => break,
                        Some(false) => return Ok(false),
                        None => {
                            let addr = slot_addr(segment.addr(), first + index);
                            now = SlotWord::from_raw(read_word(&self.shared.memory, addr)?);
                        }
                    }
                }
            }
        }
        let tag = read_word(&self.shared.memory, SegmentHeader::tag_addr(segment.addr()))?;
        Ok(tag == segment.tag(hash))
    }

    /// Copies the entry of one slot, if it has any. `None` when the slot changed, `Some(false)`
    /// when the whole segment did.
    fn copy_entry(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        index: usize,
        word: SlotWord,
        batch: &mut Batch,
    ) -> Result<Option<bool>, KvError<M::Error>> {
        match word.kind() {
            SlotKind::Live => {}
            SlotKind::Dead => return Ok(Some(true)),
            SlotKind::Empty(life) => return Ok(Some(life == segment.life())),
        }
        match self.peek(slot_addr(segment.addr(), index), word, segment, hash)? {
            Peek::Whole(parts, now) => {
                if now.is_frozen() {
                    return Ok(None);
                }
                batch.lens.push((parts.key.len(), parts.value.len()));
                batch.bytes.extend_from_slice(&self.scratch[parts.key]);
                batch.bytes.extend_from_slice(&self.scratch[parts.value]);
                Ok(Some(true))
            }
            Peek::Changed => Ok(None),
            Peek::Stale => Ok(Some(false)),
            Peek::Damaged => Err(KvError::Corrupt { what: "entry", addr: word.object().addr }),
        }
    }
}
