use std::time::Instant;

use rackpool_client::{GlobalAddr, ReadRequest};

use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::{slot_addr, slots_in, word_at};
use crate::layout::condition::Condition;
use crate::layout::hash::KeyHash;
use crate::layout::object::EntryObject;
use crate::layout::placement::Moving;
use crate::layout::segment::{SegmentHeader, SegmentRef};
use crate::layout::slot::{ObjectRef, SlotKind, SlotWord};
use crate::memory::words::{CasOutcome, swap_word};
use crate::memory::{CasError, CasRequest, Memory};
use crate::segments::spare::BorrowedSegment;

/// The entries of a segment.
pub(crate) struct LiveEntries {
    pub(crate) moving: Vec<Moving>,
    /// Those of them whose owner word is not 0.
    pub(crate) unsettled: Vec<Unsettled>,
}

/// An entry whose object has an owner word that is not 0: unresolved, or aborted.
pub(crate) struct Unsettled {
    /// The index of the entry.
    entry: usize,
    object: ObjectRef,
    owner: u64,
    condition: Option<Condition>,
}

/// The state of the full path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathState {
    /// All slots are live.
    Live,
    /// Some slots are dead, or the path was not examined.
    HasDead,
}

/// The borrowed segments that the entries move to.
pub(crate) type Supply<D> = Vec<BorrowedSegment<D>>;

/// The factor on the lock wait for a segment that other clients have borrowed: 100 ms by default.
const LONG: u32 = 50;
/// The number of words that are read or swapped in one batch.
const BATCH: usize = 64;

impl<M: Memory> Handle<M> {
    /// Replaces `segment`, to which `hash` belongs, by two halves or by a copy without dead slots,
    /// or observes that another client has replaced it. Any number of clients may do this
    /// concurrently, and each may stop at any point.
    pub(crate) fn reshape(
        &mut self,
        segment: SegmentRef,
        hash: KeyHash,
    ) -> Result<(), KvError<M::Error>> {
        self.reshape_for(PathState::HasDead, segment, hash)
    }

    pub(crate) fn reshape_for(
        &mut self,
        path: PathState,
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
        let reshaped = self.reshape_with(path, segment, hash, &mut supply);
        for unused in supply {
            self.finish(unused.reservation);
        }
        reshaped?;
        self.resolve(hash).map(drop)
    }

    /// Borrows the segments that the entries will move to, before anything is frozen: two, or one
    /// if that is enough. `None`: another client has replaced `segment`.
    ///
    /// A client that gets no segment leaves `segment` as it is. If `segment` is frozen, the client
    /// that froze it had borrowed one, which is a spare segment now or will be when its borrower
    /// continues or dies. With that one `segment` can at least be copied.
    fn gather(
        &mut self,
        path: PathState,
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

    /// Clears the claim word and returns the error.
    fn give_up<R>(
        &self,
        segment: SegmentRef,
        error: KvError<M::Error>,
    ) -> Result<R, KvError<M::Error>> {
        // If this fails, the next client waits for a split that nobody performs.
        let _ = swap_word(&self.shared.memory, SegmentHeader::claim_addr(segment.addr()), 1, 0);
        Err(error)
    }

    /// Whether a segment with these slots is to be split, not compacted.
    ///
    /// A key that is inserted and deleted repeatedly fills its path with dead slots while the
    /// segment is nearly empty. A split would then deepen the table to its maximum for one key.
    fn has_to_split(&self, path: PathState, segment: SegmentRef, slots: &[SlotWord]) -> bool {
        let of = |kind| slots.iter().filter(|slot| slot.kind() == kind).count();
        let (dead, live) = (of(SlotKind::Dead), of(SlotKind::Live));
        let is_needed = path == PathState::Live || dead == 0 || live * 2 >= slots.len();
        segment.depth() < self.shared.layout.max_depth && dead * 4 < slots.len() && is_needed
    }

    fn reshape_with(
        &mut self,
        path: PathState,
        segment: SegmentRef,
        hash: KeyHash,
        supply: &mut Supply<M::Reservation>,
    ) -> Result<(), KvError<M::Error>> {
        let Some(slots) = self.freeze(segment, hash)? else {
            return self.refresh(hash, segment);
        };
        let LiveEntries { mut moving, mut unsettled } = match self.read_heads(&slots) {
            Ok(heads) => heads,
            // Once the segment is replaced, its objects may be freed, and their pages with them.
            Err(_) if !self.confirm(hash, segment)? => return Ok(()),
            Err(error) => return Err(error),
        };
        // An object that cannot belong to the segment is damaged. Its entry moves unchanged; a put
        // or a deletion may replace it.
        unsettled.retain(|unsettled| Self::belongs(segment, hash, &moving[unsettled.entry]));
        // Entries must have cleared owner words in the new segment. The words that were read are
        // valid only if the segment was current throughout.
        if !unsettled.is_empty() && !self.confirm(hash, segment)? {
            return Ok(());
        }
        let settled = self.settle_heads(&mut moving, &unsettled);
        if settled.is_err() && !self.confirm(hash, segment)? {
            return Ok(());
        }
        settled?;
        if self.has_to_split(path, segment, &slots) {
            self.split(segment, hash, moving, supply)
        } else {
            self.compact(segment, hash, &moving, supply)
        }
    }

    /// Sets the claim word; returns whether it was 0.
    fn claim(&self, segment: SegmentRef) -> Result<bool, KvError<M::Error>> {
        let at = SegmentHeader::claim_addr(segment.addr());
        Ok(swap_word(&self.shared.memory, at, 0, 1)? == CasOutcome::Done)
    }

    /// Waits up to the lock wait for another client to replace `segment`; returns whether one did.
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

    /// Reads all slots; `None` if the segment's memory is in another life.
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

    /// Freezes every slot and returns the frozen slots; `None` if the segment's memory is in
    /// another life.
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
                    // The next read of the slots shows which swaps were made.
                    Ok(()) | Err(CasError::Indeterminate) => {}
                    Err(CasError::GivenUp(error) | CasError::Failed(error)) => {
                        return Err(KvError::Memory(error));
                    }
                }
            }
        }
    }

    /// Clears or resolves the owner words of these entries. An aborted object is replaced by the
    /// one that it stands for.
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

    /// Reads the headers of the live slots of a frozen segment: the hashes of their keys, and the
    /// owner words that are not 0. The result is meaningless if the segment was replaced meanwhile.
    pub(crate) fn read_heads(&self, slots: &[SlotWord]) -> Result<LiveEntries, KvError<M::Error>> {
        let live: Vec<_> =
            slots.iter().enumerate().filter(|(_, slot)| slot.kind() == SlotKind::Live).collect();
        let mut bytes = vec![0; live.len() * EntryObject::HEADER];
        let mut lost = Vec::new();
        for (batch, bytes) in live.chunks(BATCH).zip(bytes.chunks_mut(BATCH * EntryObject::HEADER))
        {
            let mut reads: Vec<ReadRequest<'_>> = batch
                .iter()
                .zip(bytes.chunks_exact_mut(EntryObject::HEADER))
                .map(|((_, slot), into)| ReadRequest { addr: slot.object().addr, into })
                .collect();
            match self.shared.memory.read_batch(&mut reads) {
                Ok(()) => {}
                Err(error) if self.shared.memory.is_lost(&error) => {
                    lost.extend(self.read_all_but_lost(&mut reads)?);
                }
                Err(error) => return Err(KvError::Memory(error)),
            }
        }
        let mut moving = Vec::with_capacity(live.len());
        let mut unsettled = Vec::new();
        for ((index, slot), head) in live.iter().zip(bytes.chunks_exact(EntryObject::HEADER)) {
            let (object, owner) = (slot.object(), EntryObject::owner_in(head));
            if lost.contains(&object.addr) {
                moving.push(Moving { hash: None, word: **slot, index: *index });
                continue;
            }
            if owner != 0 {
                let condition = self.read_condition(object, head)?;
                unsettled.push(Unsettled { entry: moving.len(), object, owner, condition });
            }
            let hash = Some(EntryObject::hash_in(head));
            moving.push(Moving { hash, word: **slot, index: *index });
        }
        Ok(LiveEntries { moving, unsettled })
    }

    /// Makes these reads one by one. Returns the addresses whose memory is lost.
    fn read_all_but_lost(
        &self,
        reads: &mut [ReadRequest<'_>],
    ) -> Result<Vec<GlobalAddr>, KvError<M::Error>> {
        let memory = &self.shared.memory;
        let mut lost = Vec::new();
        for ReadRequest { addr, into } in reads {
            match memory.read(*addr, into) {
                Ok(()) => {}
                Err(error) if memory.is_lost(&error) => lost.push(*addr),
                Err(error) => return Err(KvError::Memory(error)),
            }
        }
        Ok(lost)
    }

    /// The condition of the object with the header `head`, if it has one.
    fn read_condition(
        &self,
        object: ObjectRef,
        head: &[u8],
    ) -> Result<Option<Condition>, KvError<M::Error>> {
        let len =
            EntryObject::len_in(head).filter(|len| *len as u64 <= self.shared.memory.page_bytes());
        let Some(len) = len.filter(|_| EntryObject::is_conditional(head)) else { return Ok(None) };
        let mut bytes = vec![0; len];
        self.shared.memory.read(object.addr, &mut bytes).map_err(KvError::Memory)?;
        Ok(EntryObject::decode(&bytes).and_then(|parts| EntryObject::condition_in(&bytes, &parts)))
    }

    /// Whether the hash of an entry matches the segment's suffix and the slot's fingerprint.
    fn belongs(segment: SegmentRef, hash: KeyHash, entry: &Moving) -> bool {
        let depth = segment.depth();
        entry.hash.is_some_and(|found| {
            found.suffix(depth) == hash.suffix(depth) && entry.word.may_hold(found)
        })
    }
}
