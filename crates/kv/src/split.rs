use rackpool_client::GlobalAddr;

use crate::bucket::{slot_addr, slots_in, word_at};
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::life::Life;
use crate::memory::{Memory, ReadRequest};
use crate::placement::{Moving, place};
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::SlotWord;
use crate::words::{Swap, read_word, swap_word};

impl<M: Memory> Handle<M> {
    /// Makes the two successors of a frozen segment, as far as nobody else has. Both are settled
    /// before either is published: from then on objects are freed, and only then.
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
        let addr = segment.addr();
        self.settle_successor(segment, SegmentHeader::upper_addr(addr), depth + 1, upper, &ones)?;
        self.settle_successor(segment, SegmentHeader::lower_addr(addr), depth + 1, lower, &zeros)
    }

    /// Makes the only successor of a frozen segment: a copy without its dead slots.
    pub(crate) fn compact(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        moving: &[Moving],
    ) -> Result<(), KvError<M::Error>> {
        let depth = segment.depth();
        let suffix = KeyHash::from_raw(hash.suffix(depth));
        let at = SegmentHeader::lower_addr(segment.addr());
        self.settle_successor(segment, at, depth, suffix, moving)
    }

    /// Makes a successor and notes it at `at` in the old segment's header, unless there is one.
    fn settle_successor(
        &mut self,
        old: SegmentRef,
        at: GlobalAddr,
        depth: u8,
        suffix: KeyHash,
        moving: &[Moving],
    ) -> Result<(), KvError<M::Error>> {
        let unset = SegmentRef::unset(old.life()).raw();
        if read_word(&self.shared.memory, at)? != unset {
            return Ok(());
        }
        let made = self.make_segment(depth, suffix, moving)?;
        loop {
            match swap_word(&self.shared.memory, at, unset, made.raw())? {
                Swap::Done => return Ok(()),
                Swap::Lost => return self.push_segment(made.addr()),
                Swap::Unknown => {
                    let now = read_word(&self.shared.memory, at)?;
                    if now == made.raw() {
                        return Ok(());
                    }
                    if now != unset {
                        // Another client's; or `made` was used and the old segment has another
                        // life already. Nobody may use it.
                        self.unreclaimed += 1;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Lets the directory point to the successors of `old`, if they are settled; says whether
    /// they are, or `old` has been replaced already. Whoever takes `old` out of the directory
    /// puts it on the free stack.
    ///
    /// The upper successor comes first: until the lower one takes over the old entry, it is found
    /// by its depth.
    pub(crate) fn publish(
        &mut self,
        old: SegmentRef,
        hash: KeyHash,
    ) -> Result<bool, KvError<M::Error>> {
        let addr = old.addr();
        let (mut lower, mut upper, mut tag) = ([0; 8], [0; 8], [0; 8]);
        self.shared
            .memory
            .read_batch(&mut [
                ReadRequest { addr: SegmentHeader::lower_addr(addr), into: &mut lower },
                ReadRequest { addr: SegmentHeader::upper_addr(addr), into: &mut upper },
                ReadRequest { addr: SegmentHeader::tag_addr(addr), into: &mut tag },
            ])
            .map_err(KvError::Memory)?;
        if word_at(&tag, 0) != old.tag(hash) {
            self.refresh(hash, old)?;
            return Ok(true);
        }
        let lower = SegmentRef::from_raw(word_at(&lower, 0));
        if lower.is_none() {
            return Ok(false);
        }
        let suffix = hash.suffix(old.depth());
        if lower.depth() > old.depth() {
            let upper = SegmentRef::from_raw(word_at(&upper, 0));
            let index = suffix | 1 << old.depth();
            self.replace_entry(index, SegmentRef::NONE, upper)?;
        }
        if self.replace_entry(suffix, old, lower)? {
            self.push_segment(addr)?;
        }
        self.resolve(hash)?;
        Ok(true)
    }

    /// Replaces a directory entry if it still is `old`; says whether this handle did. If nobody
    /// can know, it says no, and the old segment is left behind.
    fn replace_entry(
        &mut self,
        index: u64,
        old: SegmentRef,
        new: SegmentRef,
    ) -> Result<bool, KvError<M::Error>> {
        let at = self.entry_addr(index);
        loop {
            match swap_word(&self.shared.memory, at, old.raw(), new.raw())? {
                Swap::Done => return Ok(true),
                Swap::Lost => return Ok(false),
                Swap::Unknown => {
                    if read_word(&self.shared.memory, at)? != old.raw() {
                        self.unreclaimed += u64::from(!old.is_none());
                        return Ok(false);
                    }
                }
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
        let tag = SegmentHeader::tag(life, depth, suffix.raw()).to_le_bytes();
        let tag_addr = SegmentHeader::tag_addr(addr);
        let memory = &self.shared.memory;
        let written = memory
            .write(tag_addr, &tag)
            .and_then(|()| {
                let rest = GlobalAddr::from_raw(tag_addr.raw() + 8);
                memory.write(rest, &SegmentHeader::after_tag(life))
            })
            .and_then(|()| memory.write(slot_addr(addr, 0), &bytes));
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
