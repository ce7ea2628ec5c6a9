use std::time::Instant;

use crate::bucket::{slot_addr, slots_in, word_at};
use crate::condition::Condition;
use crate::error::KvError;
use crate::find::Miss;
use crate::handle::Handle;
use crate::hash::KeyHash;
use crate::memory::{CasError, CasRequest, Memory, ReadRequest};
use crate::object::Object;
use crate::placement::Moving;
use crate::segment::{SegmentHeader, SegmentRef};
use crate::slot::{ObjectRef, SlotKind, SlotWord};
use crate::spare_segments::Taken;
use crate::words::{Swap, swap_word};

/// The entries of a segment, and those of which the owner word is not 0.
type Heads = (Vec<Moving>, Vec<Unsettled>);

/// An entry whose object does not count as published, or does not count at all.
pub(crate) struct Unsettled {
    /// Which of the entries.
    entry: usize,
    object: ObjectRef,
    owner: u64,
    condition: Option<Condition>,
}

/// What is known of the path that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// All of its slots have entries.
    Live,
    /// Some of its slots are dead, or nobody knows.
    HasDead,
}

/// What a segment's entries move to.
pub(crate) type Supply<D> = Vec<Taken<D>>;

/// So many times as long as for a split does one wait for a segment that others have taken.
const LONG: u32 = 50;
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
        let path = if miss.dead { Path::HasDead } else { Path::Live };
        self.reshape_for(path, miss.segment, hash)
    }

    /// Replaces `segment`, which holds `hash`, by its two successors or by a copy without the dead
    /// slots; or sees that another client has done so. Any number of clients may do it at once, and
    /// any of them may stop anywhere.
    pub(crate) fn reshape(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        self.reshape_for(Path::HasDead, segment, hash)
    }

    fn reshape_for(
        &mut self,
        path: Path,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        if !self.confirm(hash, segment)? {
            return Ok(());
        }
        if !self.claim(segment)? && self.wait_for_change(segment, hash)? {
            return Ok(());
        }
        let Some(mut supply) = self.gather(path, segment, hash)? else { return Ok(()) };
        let reshaped = self.reshape_with(path, (segment, hash), &mut supply);
        for unused in supply {
            self.finish(unused.reservation);
        }
        reshaped?;
        self.resolve(hash).map(drop)
    }

    /// Takes the segments that the entries are to move to, before anything is frozen: two, or one
    /// if that is enough. `None`: another client was faster.
    ///
    /// So who gets none leaves the segment as it is. And if it is frozen, somebody had one for it,
    /// which is on the list of spare segments now, or will be: with that at least it can be copied.
    fn gather(
        &mut self,
        path: Path,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Option<Supply<M::Reservation>>, KvError<M::Error>> {
        let begin = Instant::now();
        loop {
            let Some(slots) = self.look(segment, hash)? else {
                return self.refresh(hash, segment).map(|()| None);
            };
            let is_frozen = slots.iter().any(|slot| slot.is_frozen());
            let first = match self.take_segment() {
                Ok(first) => first,
                Err(_) if is_frozen && begin.elapsed() < self.shared.lock_wait * LONG => {
                    if self.wait_for_change(segment, hash)? {
                        return Ok(None);
                    }
                    continue;
                }
                Err(error) => return self.give_up(segment, error),
            };
            if !self.has_to_split(path, segment, &slots) {
                return Ok(Some(vec![first]));
            }
            return match self.take_segment() {
                Ok(second) => Ok(Some(vec![first, second])),
                Err(_) if is_frozen => Ok(Some(vec![first])),
                Err(error) => {
                    self.finish(first.reservation);
                    self.give_up(segment, error)
                }
            };
        }
    }

    /// Nobody is at it any more.
    fn give_up<R>(
        &self,
        segment: SegmentRef,
        error: KvError<M::Error>,
    ) -> Result<R, KvError<M::Error>> {
        // If this fails the next one waits a moment for nobody.
        let _ = swap_word(&self.shared.memory, SegmentHeader::claim_addr(segment.addr()), 1, 0);
        Err(error)
    }

    /// Whether a segment with these slots is to be divided, not copied.
    ///
    /// A key that comes and goes fills its path with dead slots while the segment is nearly empty.
    /// That is no reason to divide it: the table would grow to its greatest depth for one key.
    fn has_to_split(&self, path: Path, segment: SegmentRef, slots: &[SlotWord]) -> bool {
        let of = |kind| slots.iter().filter(|slot| slot.kind() == kind).count();
        let (dead, live) = (of(SlotKind::Dead), of(SlotKind::Live));
        let is_needed = path == Path::Live || dead == 0 || live * 2 >= slots.len();
        segment.depth() < self.shared.layout.max_depth && dead * 4 < slots.len() && is_needed
    }

    fn reshape_with(
        &mut self,
        path: Path,
        (segment, hash): (SegmentRef, KeyHash),
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let Some(slots) = self.freeze(segment, hash)? else {
            return self.refresh(hash, segment);
        };
        let (mut moving, mut unsettled) = match self.read_heads(&slots) {
            Ok(heads) => heads,
            // Objects are freed once the segment was replaced, and their pages with them.
            Err(_) if !self.confirm(hash, segment)? => return Ok(()),
            Err(error) => return Err(error),
        };
        // An object that can't be the segment's is damaged. Its entry moves as it is: it may be
        // replaced or deleted.
        unsettled.retain(|unsettled| Self::belongs(segment, hash, &moving[unsettled.entry]));
        // Where they go they count as published. What was read is the truth only if the segment was
        // current all the while.
        if !unsettled.is_empty() && !self.confirm(hash, segment)? {
            return Ok(());
        }
        let settled = self.settle_heads(&mut moving, &unsettled);
        if settled.is_err() && !self.confirm(hash, segment)? {
            return Ok(());
        }
        settled?;
        if self.has_to_split(path, segment, &slots) {
            self.split((segment, hash), moving, supply)
        } else {
            self.compact((segment, hash), &moving, supply)
        }
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
        while begin.elapsed() < self.shared.lock_wait {
            if !self.confirm(hash, segment)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// All slots, or `None` when the segment's memory has another life.
    fn look(
        &self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Option<Vec<SlotWord>>, KvError<M::Error>> {
        let (mut bytes, mut tag) = (vec![0; self.shared.layout.shape.slots() * 8], [0; 8]);
        self.shared
            .memory
            .read_batch(&mut [
                ReadRequest { addr: slot_addr(segment.addr(), 0), into: &mut bytes },
                ReadRequest { addr: SegmentHeader::tag_addr(segment.addr()), into: &mut tag },
            ])
            .map_err(KvError::Memory)?;
        Ok((word_at(&tag, 0) == segment.tag(hash)).then(|| slots_in(&bytes).collect()))
    }

    /// Freezes every slot and returns them, as they will stay; `None` when the segment's memory
    /// has another life.
    fn freeze(
        &self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<Option<Vec<SlotWord>>, KvError<M::Error>> {
        let memory = &self.shared.memory;
        loop {
            let Some(slots) = self.look(segment, hash)? else { return Ok(None) };
            let requests: Vec<CasRequest> = slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| !slot.is_frozen())
                .map(|(index, slot)| CasRequest {
                    addr: slot_addr(segment.addr(), index),
                    expected: slot.raw(),
                    new: slot.frozen().raw(),
                })
                .collect();
            if requests.is_empty() {
                return Ok(Some(slots));
            }
            for batch in requests.chunks(BATCH) {
                match memory.compare_and_swap_batch(batch) {
                    // What happened shows when the slots are read again.
                    Ok(()) | Err(CasError::Indeterminate) => {}
                    Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                        return Err(KvError::Memory(error));
                    }
                }
            }
        }
    }

    /// Makes all entries count as published; one that does not count at all gives way to what it
    /// stands for.
    pub(crate) fn settle_heads(
        &self,
        moving: &mut [Moving],
        unsettled: &[Unsettled],
    ) -> Result<(), KvError<M::Error>> {
        for Unsettled { entry, object, owner, condition } in unsettled {
            match *condition {
                None => self.clear_owner(object.addr, *owner)?,
                Some(condition) => {
                    let counts = !Condition::is_aborted(*owner)
                        && self.decide_condition(object.addr, *owner, condition)?;
                    if !counts {
                        moving[*entry].word = condition.word;
                    }
                }
            }
        }
        Ok(())
    }

    /// The live slots of a frozen segment with their keys' hashes, and what there is to settle. All
    /// are nonsense if the segment was replaced meanwhile.
    pub(crate) fn read_heads(&self, slots: &[SlotWord]) -> Result<Heads, KvError<M::Error>> {
        let live: Vec<_> =
            slots.iter().enumerate().filter(|(_, slot)| slot.kind() == SlotKind::Live).collect();
        let mut bytes = vec![0; live.len() * Object::HEADER];
        for (batch, bytes) in live.chunks(BATCH).zip(bytes.chunks_mut(BATCH * Object::HEADER)) {
            let mut reads: Vec<ReadRequest<'_>> = batch
                .iter()
                .zip(bytes.chunks_exact_mut(Object::HEADER))
                .map(|((_, slot), into)| ReadRequest { addr: slot.object().addr, into })
                .collect();
            self.shared.memory.read_batch(&mut reads).map_err(KvError::Memory)?;
        }
        let mut moving = Vec::with_capacity(live.len());
        let mut unsettled = Vec::new();
        for ((index, slot), head) in live.iter().zip(bytes.chunks_exact(Object::HEADER)) {
            let (object, owner) = (slot.object(), Object::owner_in(head));
            if owner != 0 {
                let condition = self.read_condition(object, head)?;
                unsettled.push(Unsettled { entry: moving.len(), object, owner, condition });
            }
            moving.push(Moving { hash: Object::hash_in(head), word: **slot, index: *index });
        }
        Ok((moving, unsettled))
    }

    /// The condition of an object with this header, if it has one.
    fn read_condition(
        &self,
        object: ObjectRef,
        head: &[u8],
    ) -> Result<Option<Condition>, KvError<M::Error>> {
        let len = Object::len_in(head).filter(|len| *len as u64 <= self.shared.memory.page_bytes());
        let Some(len) = len.filter(|_| Object::is_conditional(head)) else { return Ok(None) };
        let mut bytes = vec![0; len];
        self.shared.memory.read(object.addr, &mut bytes).map_err(KvError::Memory)?;
        Ok(Object::decode(&bytes).and_then(|parts| Object::condition_in(&bytes, &parts)))
    }

    /// Whether an entry can be one of the segment.
    fn belongs(segment: SegmentRef, hash: KeyHash, entry: &Moving) -> bool {
        let depth = segment.depth();
        entry.hash.suffix(depth) == hash.suffix(depth) && entry.word.may_hold(entry.hash)
    }
}
