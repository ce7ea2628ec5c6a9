use rackpool_client::GlobalAddr;

use crate::bucket::{slot_addr, slots_in, word_at};
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::life::Life;
use crate::memory::Memory;
use crate::placement::{Moving, place};
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::SlotWord;
use crate::words::{Swap, read_word, swap_word};

impl<M: Memory> Handle<M> {
    /// Replaces a frozen segment by its two successors: first the upper one gets its entry, which
    /// was empty and which nobody finds yet; then the lower one takes over the old entry. This
    /// is the moment at which both become current.
    pub(crate) fn split(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        moving: Vec<Moving>,
    ) -> Result<(), KvError<M::Error>> {
        let depth = segment.depth();
        let lower = KeyHash::from_raw(hash.suffix(depth));
        let upper = KeyHash::from_raw(lower.raw() | 1 << depth);
        let (ones, zeros): (Vec<_>, Vec<_>) =
            moving.into_iter().partition(|entry| entry.hash.suffix(depth + 1) == upper.raw());
        let beside = read_word(&self.shared.memory, self.entry_addr(upper.raw()))?;
        if beside == SegmentRef::NONE.raw() {
            let made = self.make_segment(depth + 1, upper, &ones)?;
            self.publish(upper, SegmentRef::NONE, made)?;
        }
        self.replace(segment, depth + 1, lower, &zeros)
    }

    /// Replaces a frozen segment by a copy without its dead slots.
    pub(crate) fn compact(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        moving: &[Moving],
    ) -> Result<(), KvError<M::Error>> {
        let suffix = KeyHash::from_raw(hash.suffix(segment.depth()));
        self.replace(segment, segment.depth(), suffix, moving)
    }

    /// Puts a new segment into the entry of `old`, and `old` on the free stack.
    fn replace(
        &mut self,
        old: SegmentRef,
        depth: u8,
        suffix: KeyHash,
        moving: &[Moving],
    ) -> Result<(), KvError<M::Error>> {
        if !self.confirm(suffix, old)? {
            return Ok(());
        }
        let made = self.make_segment(depth, suffix, moving)?;
        if self.publish(suffix, old, made)? {
            self.push_segment(old.addr())?;
        }
        Ok(())
    }

    /// Replaces the directory entry of `suffix`; says whether this handle did. If another client
    /// was faster, `made` is given back.
    fn publish(
        &mut self,
        suffix: KeyHash,
        old: SegmentRef,
        made: SegmentRef,
    ) -> Result<bool, KvError<M::Error>> {
        let at = self.entry_addr(suffix.raw());
        loop {
            match swap_word(&self.shared.memory, at, old.raw(), made.raw())? {
                Swap::Done => return Ok(true),
                Swap::Lost => {
                    self.push_segment(made.addr())?;
                    return Ok(false);
                }
                Swap::Unknown => {}
            }
            let now = SegmentRef::from_raw(read_word(&self.shared.memory, at)?);
            if now == made {
                return Ok(true);
            }
            if now != old {
                // Perhaps `made` was there and was split meanwhile: nobody may use it, or `old`.
                self.unreclaimed += 2;
                return Ok(false);
            }
        }
    }

    /// Makes a segment with the given entries, which nobody points to yet.
    pub(crate) fn make_segment(
        &mut self,
        depth: u8,
        suffix: KeyHash,
        moving: &[Moving],
    ) -> Result<SegmentRef, KvError<M::Error>> {
        let shape = self.shared.layout.shape;
        let mut slots = vec![SlotWord::from_raw(0); shape.slots()];
        let popped = self.pop_segment()?;
        let (addr, life) = match popped {
            Some(addr) => (addr, self.read_retired(addr, &mut slots)?.next()),
            None => {
                (self.shared.memory.allocate(shape.bytes()).map_err(KvError::Memory)?, Life::FIRST)
            }
        };
        let Some(made) = SegmentRef::new(addr, depth, life) else {
            self.free(addr);
            return Err(KvError::Address { addr });
        };
        let mut words: Vec<SlotWord> = slots.iter().map(|old| old.emptied(life)).collect();
        for (entry, index) in moving.iter().zip(place(shape, moving)) {
            words[index] = slots[index].moved_here(entry.word);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.raw().to_le_bytes()).collect();
        // The tag first: who still sees the old one afterwards has seen only the old life.
        let header = SegmentHeader::bytes(SegmentHeader::tag(life, depth, suffix.raw()));
        let memory = &self.shared.memory;
        let written =
            memory.write(addr, &header).and_then(|()| memory.write(slot_addr(addr, 0), &bytes));
        if let Err(error) = written {
            self.unreclaimed += 1;
            return Err(KvError::Memory(error));
        }
        Ok(made)
    }

    /// Reads the slots of a segment from the free stack; returns its last life.
    fn read_retired(
        &mut self,
        addr: GlobalAddr,
        slots: &mut [SlotWord],
    ) -> Result<Life, KvError<M::Error>> {
        let mut bytes = vec![0; SegmentHeader::BYTES + slots.len() * 8];
        if let Err(error) = self.shared.memory.read(addr, &mut bytes) {
            self.unreclaimed += 1;
            return Err(KvError::Memory(error));
        }
        let (header, rest) = bytes.split_at(SegmentHeader::BYTES);
        slots.iter_mut().zip(slots_in(rest)).for_each(|(slot, word)| *slot = word);
        SegmentHeader::life_in(word_at(header, 0))
            .ok_or(KvError::Corrupt { what: "retired segment", addr })
    }
}
