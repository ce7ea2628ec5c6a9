use std::time::Instant;

use crate::bucket::{slot_addr, slots_in, word_at};
use crate::error::KvError;
use crate::find::Miss;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::{CasError, CasRequest, Memory, ReadRequest};
use crate::object::Object;
use crate::placement::Moving;
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::{SlotKind, SlotWord};
use crate::words::{Swap, swap_word};

/// So many words are read or swapped in one batch.
const BATCH: usize = 64;

impl<M: Memory> Handle<M> {
    /// Makes room in a segment whose path for `hash` is full.
    pub(crate) fn make_room(
        &mut self,
        miss: &Miss,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        let max_depth = self.shared.layout.max_depth;
        if miss.segment.depth() == max_depth && !miss.dead {
            return Err(KvError::TableFull { max_depth });
        }
        self.reshape(miss.segment, hash)
    }

    /// Replaces `segment`, which holds `hash`, by its two successors or by a copy without the dead
    /// slots; or sees that another client has done so. Doing it is a function of the frozen
    /// segment: any number of clients may do it at once, and any of them may stop anywhere.
    pub(crate) fn reshape(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        if !self.confirm(hash, segment)? {
            return Ok(());
        }
        if !self.claim(segment)? && self.wait_for_change(segment, hash)? {
            return Ok(());
        }
        let Some(slots) = self.freeze(segment, hash)? else {
            return self.refresh(hash, segment);
        };
        let moving = match self.read_hashes(&slots) {
            Ok(moving) => moving,
            // Objects are freed once the segment was replaced, and their pages with them.
            Err(_) if !self.confirm(hash, segment)? => return Ok(()),
            Err(error) => return Err(error),
        };
        if let Some(stray) = Self::stray(segment, hash, &moving) {
            if !self.confirm(hash, segment)? {
                return Ok(());
            }
            return Err(KvError::Corrupt { what: "entry", addr: stray.word.object().addr });
        }
        let dead = slots.iter().filter(|slot| slot.kind() == SlotKind::Dead).count();
        let max_depth = self.shared.layout.max_depth;
        if segment.depth() == max_depth || dead * 4 >= slots.len() {
            self.compact(segment, hash, &moving)?;
        } else {
            self.split(segment, hash, moving)?;
        }
        self.resolve(hash).map(drop)
    }

    /// Tells the others that this handle is at it; says whether nobody had before.
    fn claim(&self, segment: SegmentRef) -> Result<bool, KvError<M::Error>> {
        let at = SegmentHeader::claim_addr(segment.addr());
        Ok(swap_word(&self.shared.memory, at, 0, 1)? == Swap::Done)
    }

    /// Waits a moment for another client to replace `segment`; says whether it did.
    fn wait_for_change(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<bool, KvError<M::Error>> {
        let begin = Instant::now();
        while begin.elapsed() < self.shared.patience {
            if !self.confirm(hash, segment)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Freezes every slot and returns them, as they will stay; `None` when the segment's memory
    /// has another life.
    fn freeze(
        &self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Option<Vec<SlotWord>>, KvError<M::Error>> {
        let memory = &self.shared.memory;
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        loop {
            let mut tag = [0; 8];
            memory
                .read_batch(&mut [
                    ReadRequest { addr: slot_addr(segment.addr(), 0), into: &mut bytes },
                    ReadRequest { addr: SegmentHeader::tag_addr(segment.addr()), into: &mut tag },
                ])
                .map_err(KvError::Memory)?;
            if word_at(&tag, 0) != segment.tag(hash) {
                return Ok(None);
            }
            let requests: Vec<CasRequest> = slots_in(&bytes)
                .enumerate()
                .filter(|(_, slot)| !slot.is_frozen())
                .map(|(index, slot)| CasRequest {
                    addr: slot_addr(segment.addr(), index),
                    expected: slot.raw(),
                    new: slot.frozen().raw(),
                })
                .collect();
            if requests.is_empty() {
                return Ok(Some(slots_in(&bytes).collect()));
            }
            for batch in requests.chunks(BATCH) {
                match memory.compare_and_swap_batch(batch) {
                    // What happened shows when the slots are read again.
                    Ok(()) | Err(CasError::Indeterminate) => {}
                    Err(CasError::Failed(error)) => return Err(KvError::Memory(error)),
                }
            }
        }
    }

    /// The live slots of a frozen segment with their keys' hashes; these are nonsense if the
    /// segment was replaced meanwhile.
    fn read_hashes(&self, slots: &[SlotWord]) -> Result<Vec<Moving>, KvError<M::Error>> {
        let live: Vec<_> =
            slots.iter().enumerate().filter(|(_, slot)| slot.kind() == SlotKind::Live).collect();
        let mut bytes = vec![0; live.len() * 8];
        for (batch, bytes) in live.chunks(BATCH).zip(bytes.chunks_mut(BATCH * 8)) {
            let mut reads: Vec<ReadRequest<'_>> = batch
                .iter()
                .zip(bytes.chunks_exact_mut(8))
                .map(|((_, slot), into)| ReadRequest {
                    addr: Object::hash_addr(slot.object().addr),
                    into,
                })
                .collect();
            self.shared.memory.read_batch(&mut reads).map_err(KvError::Memory)?;
        }
        let moving = live.iter().enumerate().map(|(at, (index, slot))| Moving {
            hash: KeyHash::from_raw(word_at(&bytes, at)),
            word: **slot,
            index: *index,
        });
        Ok(moving.collect())
    }

    /// An entry that can't belong to the segment.
    fn stray(segment: SegmentRef, hash: KeyHash, moving: &[Moving]) -> Option<Moving> {
        let depth = segment.depth();
        let belongs = |entry: &&Moving| {
            entry.hash.suffix(depth) == hash.suffix(depth) && entry.word.may_hold(entry.hash)
        };
        moving.iter().find(|entry| !belongs(entry)).copied()
    }
}
