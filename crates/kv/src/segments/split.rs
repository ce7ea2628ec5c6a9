use rackpool_client::{PublishCas, PublishMode};

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::slot_addr;
use crate::layout::hash::KeyHash;
use crate::layout::placement::{Moving, place};
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::SlotWord;
use crate::memory::words::read_word;
use crate::memory::{Memory, ReservedObject};
use crate::segments::reshape::Supply;
use crate::segments::spare::BorrowedSegment;

/// A new segment that is written and not yet in the directory.
pub(crate) struct NewSegment<D> {
    segment: SegmentRef,
    reservation: D,
}

/// The content of the directory entry for the upper half of a split.
pub(crate) enum Beside {
    /// The upper half, made from this segment.
    Upper,
    /// Nothing, or the remains of a split that lost to a compaction.
    Other(SegmentRef),
    /// The segment has been replaced meanwhile.
    Late,
}

impl<M: Memory> Handle<M> {
    /// Reads the directory entry for the upper half of `segment`, which is to be split. While
    /// `segment` is in the directory, this entry is no hash's shallowest match.
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
            // The header belongs to the entry only if the entry was the same before and after the
            // read.
            let now = SegmentRef::from_raw(read_word(&self.shared.memory, at)?);
            if now == beside {
                break;
            }
            beside = now;
        }
        if !self.confirm(hash, segment)? {
            return Ok(Beside::Late);
        }
        // `segment` was current after the entry was read. So no search finds an entry with another
        // origin, now or later.
        if !beside.is_none() && is_upper {
            return Ok(Beside::Upper);
        }
        if !beside.is_none() && owner != 0 {
            self.clear_owner(SegmentHeader::owner_addr(beside.addr()), owner)?;
        }
        Ok(Beside::Other(beside))
    }

    /// The suffix of the upper half, as a hash.
    fn upper_of(segment: SegmentRef, hash: KeyHash) -> KeyHash {
        let depth = segment.depth();
        KeyHash::from_raw(hash.suffix(depth) | 1 << depth)
    }

    /// Splits a frozen segment. First the upper half is published into its entry, where no search
    /// finds it yet. Then the lower half replaces the old entry. This second step makes both halves
    /// current.
    pub(crate) fn split(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        moving: Vec<Moving>,
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let depth = segment.depth();
        let (lower, upper) = (KeyHash::from_raw(hash.suffix(depth)), Self::upper_of(segment, hash));
        // A lost entry goes to the lower half: in both it would take twice the slots at each split.
        let is_upper = |entry: &Moving| entry.hash.is_some_and(|hash| hash.raw() >> depth & 1 == 1);
        loop {
            let beside = match self.look_beside(segment, hash)? {
                Beside::Late => return Ok(()),
                Beside::Upper => {
                    let zeros: Vec<_> =
                        moving.into_iter().filter(|entry| !is_upper(entry)).collect();
                    return self.replace(segment, lower, depth + 1, &zeros, supply);
                }
                Beside::Other(beside) => beside,
            };
            if supply.len() < 2 {
                return self.compact(segment, hash, &moving, supply);
            }
            let ones: Vec<_> = moving.iter().filter(|entry| is_upper(entry)).copied().collect();
            if let Some(taken) = supply.pop() {
                let made = self.make_segment(taken, segment, depth + 1, upper, &ones)?;
                self.publish_segment(upper, beside, made)?;
            }
        }
    }

    /// Replaces a frozen segment by a copy without dead slots.
    pub(crate) fn compact(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
        moving: &[Moving],
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let suffix = KeyHash::from_raw(hash.suffix(segment.depth()));
        self.replace(segment, suffix, segment.depth(), moving, supply)
    }

    /// Replaces `old` in the directory by a new segment. `old` takes the new segment's place among
    /// the spare segments.
    fn replace(
        &mut self,
        old: SegmentRef,
        suffix: KeyHash,
        depth: u8,
        moving: &[Moving],
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        // The owner word must be 0 before the segment leaves the directory (I5). The word that was
        // read belongs to this life only if the segment is current afterwards.
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

    /// Swaps the directory entry of `suffix` from `old` to the new segment; returns whether it did.
    /// Whichever of the two is then not in the directory goes back to the spare segments.
    pub(crate) fn publish_segment(
        &mut self,
        suffix: KeyHash,
        old: SegmentRef,
        made: NewSegment<M::Reservation>,
    ) -> Result<bool, KvError<M::Error>> {
        let NewSegment { segment, mut reservation } = made;
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

    /// Writes a segment with the given entries of `origin`; it is not yet in the directory.
    pub(crate) fn make_segment(
        &mut self,
        taken: BorrowedSegment<M::Reservation>,
        origin: SegmentRef,
        depth: u8,
        suffix: KeyHash,
        moving: &[Moving],
    ) -> Result<NewSegment<M::Reservation>, KvError<M::Error>> {
        let shape = self.shared.layout.shape;
        let BorrowedSegment { reservation, life, slots } = taken;
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
        // The tag is written before the slots. So a client that still reads the old tag after it
        // read a slot has read a slot of the old life.
        let tag = SegmentHeader::tag(life, depth, suffix.raw());
        let header = SegmentHeader::bytes(tag, origin, reservation.token());
        let memory = &self.shared.memory;
        let written =
            memory.write(addr, &header).and_then(|()| memory.write(slot_addr(addr, 0), &bytes));
        if let Err(error) = written {
            self.finish(reservation);
            return Err(KvError::Memory(error));
        }
        Ok(NewSegment { segment, reservation })
    }
}
