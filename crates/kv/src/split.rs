use rackpool_client::{PublishCas, PublishMode};

use crate::bucket::slot_addr;
use crate::error::KvError;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::{Memory, Reservation};
use crate::placement::{Moving, place};
use crate::reshape::Supply;
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::SlotWord;
use crate::spare_segments::Taken;
use crate::words::read_word;

/// A segment that nobody points to yet.
pub(crate) struct Made<D> {
    segment: SegmentRef,
    reservation: D,
}

/// What is in the directory entry of the upper half.
pub(crate) enum Beside {
    /// The upper half, made of this very segment.
    Upper,
    /// Nothing, or what a split has left there that a compaction was faster than.
    Other(SegmentRef),
    /// The segment was replaced meanwhile.
    Late,
}

impl<M: Memory> Handle<M> {
    /// Looks at the entry of the upper half of a segment that is to be split, and which is no one's
    /// shallowest match as long as `segment` is in the directory.
    pub(crate) fn look_beside(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Beside, KvError<M::Error>> {
        let at = self.entry_addr(Self::upper_of(segment, hash).raw());
        let mut beside = SegmentRef::from_raw(read_word(&self.shared.memory, at)?);
        let (mut owner, mut is_upper) = (0, false);
        while !beside.is_none() {
            let mut header = [0; SegmentHeader::BYTES];
            self.shared.memory.read(beside.addr(), &mut header).map_err(KvError::Memory)?;
            owner = SegmentHeader::owner_in(&header);
            is_upper = SegmentHeader::origin_in(&header) == segment;
            // What was read is its own only if it stood there all the while.
            let now = SegmentRef::from_raw(read_word(&self.shared.memory, at)?);
            if now == beside {
                break;
            }
            beside = now;
        }
        if !self.confirm(hash, segment)? {
            return Ok(Beside::Late);
        }
        // From here on: one with another origin is not found by anybody, nor will it be.
        if !beside.is_none() && is_upper {
            return Ok(Beside::Upper);
        }
        if !beside.is_none() && owner != 0 {
            self.clear_owner(SegmentHeader::owner_addr(beside.addr()), owner)?;
        }
        Ok(Beside::Other(beside))
    }

    /// The upper one of the two hashes that the segment of `hash` will be divided between.
    fn upper_of(segment: SegmentRef, hash: KeyHash) -> KeyHash {
        let depth = segment.depth();
        KeyHash::from_raw(hash.suffix(depth) | 1 << depth)
    }

    /// Replaces a frozen segment by its two successors: first the upper one gets its entry, which
    /// nobody finds yet; then the lower one takes over the old entry. This is the moment at which
    /// both become current.
    pub(crate) fn split(
        &mut self,
        (segment, hash): (SegmentRef, KeyHash),
        moving: Vec<Moving>,
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let depth = segment.depth();
        let (lower, upper) = (KeyHash::from_raw(hash.suffix(depth)), Self::upper_of(segment, hash));
        let is_upper = |entry: &Moving| entry.hash.raw() >> depth & 1 == 1;
        loop {
            let beside = match self.look_beside(segment, hash)? {
                Beside::Late => return Ok(()),
                Beside::Upper => {
                    let zeros: Vec<_> =
                        moving.into_iter().filter(|entry| !is_upper(entry)).collect();
                    return self.replace((segment, lower), depth + 1, &zeros, supply);
                }
                Beside::Other(beside) => beside,
            };
            if supply.len() < 2 {
                return self.compact((segment, hash), &moving, supply);
            }
            let ones: Vec<_> = moving.iter().filter(|entry| is_upper(entry)).copied().collect();
            if let Some(taken) = supply.pop() {
                let made = self.make_segment(taken, segment, depth + 1, upper, &ones)?;
                self.publish_segment(upper, beside, made)?;
            }
        }
    }

    /// Replaces a frozen segment by a copy without its dead slots.
    pub(crate) fn compact(
        &mut self,
        (segment, hash): (SegmentRef, KeyHash),
        moving: &[Moving],
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let suffix = KeyHash::from_raw(hash.suffix(segment.depth()));
        self.replace((segment, suffix), segment.depth(), moving, supply)
    }

    /// Puts a new segment into the entry of `old`, and `old` on the list of spare segments in its
    /// place.
    fn replace(
        &mut self,
        (old, suffix): (SegmentRef, KeyHash),
        depth: u8,
        moving: &[Moving],
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        // It must count as published, whoever published it, before it is taken out of the
        // directory. The owner is that one only if it still is there afterwards.
        let owner_at = SegmentHeader::owner_addr(old.addr());
        let owner = read_word(&self.shared.memory, owner_at)?;
        if !self.confirm(suffix, old)? {
            return Ok(());
        }
        if owner != 0 {
            self.clear_owner(owner_at, owner)?;
        }
        let Some(taken) = supply.pop() else { return Ok(()) };
        let made = self.make_segment(taken, old, depth, suffix, moving)?;
        self.publish_segment(suffix, old, made).map(drop)
    }

    /// Replaces the directory entry of `suffix`, unless another client was faster; says whether it
    /// did. What is not in the directory then, `old` or what was made, stands on the list of spare
    /// segments again.
    pub(crate) fn publish_segment(
        &mut self,
        suffix: KeyHash,
        old: SegmentRef,
        made: Made<M::Reservation>,
    ) -> Result<bool, KvError<M::Error>> {
        let Made { segment, mut reservation } = made;
        let link = PublishCas {
            addr: self.entry_addr(suffix.raw()),
            expected: old.raw(),
            new: segment.raw(),
            mask: u64::MAX,
            replaced: (!old.is_none()).then(|| old.addr()),
            mode: PublishMode::Plain,
        };
        let published = self.publish_once(&mut reservation, &link);
        self.finish(reservation);
        published
    }

    /// Makes a segment with the given entries of `origin`, which nobody points to yet.
    pub(crate) fn make_segment(
        &mut self,
        taken: Taken<M::Reservation>,
        origin: SegmentRef,
        depth: u8,
        suffix: KeyHash,
        moving: &[Moving],
    ) -> Result<Made<M::Reservation>, KvError<M::Error>> {
        let shape = self.shared.layout.shape;
        let Taken { reservation, life, slots } = taken;
        let (addr, life) = (reservation.addr(), life.next());
        let Some(segment) = SegmentRef::new(addr, depth, life) else {
            self.finish(reservation);
            return Err(KvError::Address { addr });
        };
        let mut words: Vec<SlotWord> = slots.iter().map(|old| old.emptied(life)).collect();
        for (entry, index) in moving.iter().zip(place(shape, moving)) {
            words[index] = slots[index].pointing_like(entry.word);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.raw().to_le_bytes()).collect();
        // The tag first: who still sees the old one afterwards has seen only the old life.
        let tag = SegmentHeader::tag(life, depth, suffix.raw());
        let header = SegmentHeader::bytes(tag, origin, reservation.token());
        let memory = &self.shared.memory;
        let written =
            memory.write(addr, &header).and_then(|()| memory.write(slot_addr(addr, 0), &bytes));
        if let Err(error) = written {
            self.finish(reservation);
            return Err(KvError::Memory(error));
        }
        Ok(Made { segment, reservation })
    }
}
