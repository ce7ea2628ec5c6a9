//! Which objects of this rack are in use: the slab allocator over the rack metadata.
//!
//! The metadata is the truth; what is kept here in private memory is derived from it when the
//! daemon starts. Handing out is done in two steps, so that the caller can note the object where
//! it goes before it counts as in use: a crash between the steps leaves a note of a free object,
//! which is struck out at the next start, and never an object that nobody has.

mod adopt;
mod borrowed;
mod moving;
mod object;
mod reserve;
mod run;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use rackpool_model::{
    FrameId, GlobalAddr, PageEvent, PageId, PageSize, PageState, PageWord, SizeClass,
};
use rackpool_shm::OutOfBounds;
use rackpool_shm::marks::{Marks, ObjectHolder};
use rackpool_shm::metadata::{PageUse, RackMetadata};
use rackpool_sync::atomic::{AtomicU64, Ordering};

pub(crate) use moving::Contents;

/// Which frame holds a page. Page `first + f` is found in frame `f` by arithmetic, as the page word
/// confirms; only pages that have come from elsewhere are in the map.
#[derive(Debug)]
struct PageTable {
    first: PageId,
    elsewhere: HashMap<PageId, FrameId>,
}

/// A free object that is about to be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) addr: GlobalAddr,
    kind: CandidateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateKind {
    Object { frame: FrameId, class: SizeClass, index: u32 },
    Run { first: PageId, pages: u32 },
}

/// What to do about damaged metadata.
pub(crate) const DAMAGED: &str = "start the daemon again, it goes on with what is sound; if it can't, remove the rack's folder to give its contents up";

/// The rack's own metadata contradicts itself: the file was changed by something else.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlabError {
    #[error("the rack metadata is damaged ({0}): {DAMAGED}")]
    Bounds(#[from] OutOfBounds),
    #[error("the rack metadata is damaged ({0}): {DAMAGED}")]
    Transition(#[from] rackpool_model::PageTransitionError),
}

/// Why an object is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFreed {
    /// The address is no object in use, or somebody else took the object back already.
    NotAllocated,
    /// Its page stands still while it moves: take it back when the swap has ended.
    Moving,
}

/// What the allocator derives of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct FrameState {
    free_objects: u32,
    /// Where to look for a free object first, in words of the bitmap.
    hint: u32,
    listed: bool,
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Slab {
    metadata: Arc<RackMetadata>,
    /// Which objects of up to a page programs have. Clients change them, too.
    marks: Marks,
    page_size: PageSize,
    table: PageTable,
    frames: Vec<FrameState>,
    /// Free pages by id, so that runs are found.
    free_pages: BTreeMap<PageId, FrameId>,
    /// Free pages whose frames may have no memory: they are given to nobody.
    unreserved: BTreeMap<PageId, FrameId>,
    /// Frames of free pages that the reserver is busy with.
    ordered: BTreeMap<FrameId, PageId>,
    /// When a frame became free, where frames are given back.
    free_since: BTreeMap<FrameId, Instant>,
    /// Frames of free pages that copies of other racks' pages lie in, or are on their way into.
    borrowed: BTreeMap<FrameId, PageId>,
    /// Frames of each class with free objects, the most recent last.
    partial: Vec<Vec<FrameId>>,
    /// Frames whose page is leaving and that wait for their last user.
    leaving: Vec<FrameId>,
    /// Whether a page began to leave since [`Slab::take_newly_leaving`].
    newly_leaving: bool,
    allocated_bytes: u64,
    /// Frames whose page has gone to another rack, and which somebody may still be reading.
    departed: BTreeSet<FrameId>,
    /// Pages that are being copied into frames of this rack.
    arriving: BTreeSet<PageId>,
    /// Stores to the metadata that this daemon makes before it is killed; `None`: it lives.
    #[cfg(test)]
    stores_left: std::cell::Cell<Option<u32>>,
}

impl Slab {
    /// What is known of a page: its frame, its word, and what it is used for. One that arrives is
    /// not here yet, one that has gone to another rack is here no more.
    pub(crate) fn lookup(&self, page: PageId) -> Option<(FrameId, PageWord, u64)> {
        let frame = self.frame_of(page)?;
        let word = self.word(frame).ok()?;
        let usage = self.metadata.header(frame).ok()?.kind();
        Some((frame, word, usage))
    }

    /// The frame a page is bound to, whether it is free or in use.
    fn frame_of(&self, page: PageId) -> Option<FrameId> {
        let native = self.native(page);
        let is_there = |frame| {
            let is_its =
                |word: PageWord| word.page() == page && word.state() != Some(PageState::Arriving);
            self.word(frame).is_ok_and(is_its) && !self.departed.contains(&frame)
        };
        if is_there(native) {
            return Some(native);
        }
        self.table.elsewhere.get(&page).copied().filter(|frame| is_there(*frame))
    }

    /// The frame in which a page of this rack was born; nothing that exists for another one.
    const fn native(&self, page: PageId) -> FrameId {
        FrameId(page.0.wrapping_sub(self.table.first.0))
    }

    /// Whether a page of this rack is not in the frame where it was born.
    pub(crate) fn has_moved(&self, page: PageId) -> bool {
        self.table.elsewhere.contains_key(&page)
    }

    /// Frames that hold no page.
    pub(crate) fn free_frames(&self) -> u32 {
        u32::try_from(self.unborrowed_frames() + self.borrowed.len()).unwrap_or(u32::MAX)
    }

    /// Bytes in objects in use.
    pub(crate) const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// A free object of at least `bytes` bytes, or `None` when the rack has no room for it. The
    /// caller notes it where it goes and then calls [`Self::commit`].
    pub(crate) fn peek(&mut self, bytes: u64) -> Result<Option<Candidate>, SlabError> {
        match SizeClass::for_bytes(bytes, self.page_size) {
            Some(class) => self.peek_object(class),
            None => Ok(self.peek_run(bytes)),
        }
    }

    /// The candidate is in use from now on, with `holder` until it hands it to a program; `None`:
    /// with a program.
    pub(crate) fn commit(
        &mut self,
        candidate: Candidate,
        holder: Option<ObjectHolder>,
    ) -> Result<(), SlabError> {
        match candidate.kind {
            CandidateKind::Object { frame, class, index } => {
                if let Some(mark) = self.marks.of(frame, class, index)
                    && self.lives()
                {
                    mark.set(holder);
                }
                self.commit_object(frame, class, index)
            }
            CandidateKind::Run { first, pages } => self.commit_run(first, pages),
        }
    }

    /// Whether the address is an object in use.
    pub(crate) fn is_allocated(&self, addr: GlobalAddr) -> bool {
        let Some((frame, word, usage)) = addr.page(self.page_size).and_then(|p| self.lookup(p))
        else {
            return false;
        };
        let offset = addr.offset(self.page_size);
        word.is_readable()
            && match PageUse::from_raw(usage, self.page_size) {
                PageUse::Unused => false,
                PageUse::Run { index, .. } => index == 0 && offset == 0,
                PageUse::Slab(class) => self.object_is_used(frame, class, offset),
            }
    }

    /// Whether an object of this rack is of the size that `bytes` bytes are given. What is known of
    /// another rack's objects is that they came for the same request.
    pub(crate) fn fits(&self, addr: GlobalAddr, bytes: u64) -> bool {
        let Some((_, _, usage)) = addr.page(self.page_size).and_then(|page| self.lookup(page))
        else {
            return true;
        };
        match PageUse::from_raw(usage, self.page_size) {
            PageUse::Slab(class) => SizeClass::for_bytes(bytes, self.page_size) == Some(class),
            PageUse::Run { pages, .. } => {
                u64::from(pages) == self.page_size.pages_for(bytes) && self.is_allocated(addr)
            }
            PageUse::Unused => false,
        }
    }

    /// Whether [`Self::free`] would take the object back.
    pub(crate) fn may_free(&self, addr: GlobalAddr, holder: ObjectHolder) -> bool {
        let mark = |(frame, class, index)| self.marks.of(frame, class, index);
        self.is_allocated(addr)
            && self
                .object_at(addr)
                .and_then(mark)
                .is_none_or(|mark| mark.is_with_program() || mark.is_held_by(holder))
    }

    /// The frame, class and number of an object of up to a page.
    fn object_at(&self, addr: GlobalAddr) -> Option<(FrameId, SizeClass, u32)> {
        let (frame, _, usage) = self.lookup(addr.page(self.page_size)?)?;
        match PageUse::from_raw(usage, self.page_size) {
            PageUse::Slab(class) => {
                let index = addr.offset(self.page_size) >> class.bits();
                Some((frame, class, u32::try_from(index).ok()?))
            }
            PageUse::Run { .. } | PageUse::Unused => None,
        }
    }

    /// Takes an object back that a program has, or `holder` took from one.
    pub(crate) fn free(
        &mut self,
        addr: GlobalAddr,
        holder: ObjectHolder,
    ) -> Result<Result<(), NotFreed>, SlabError> {
        if !self.is_allocated(addr) {
            return Ok(Err(NotFreed::NotAllocated));
        }
        let found = addr.page(self.page_size).and_then(|page| self.lookup(page));
        let Some((frame, word, usage)) = found else { return Ok(Err(NotFreed::NotAllocated)) };
        if !word.is_writable() {
            return Ok(Err(NotFreed::Moving));
        }
        if let Some((frame, class, index)) = self.object_at(addr)
            && let Some(mark) = self.marks.of(frame, class, index)
            && self.lives()
            && !mark.take_or_holds(holder)
        {
            return Ok(Err(NotFreed::NotAllocated));
        }
        match PageUse::from_raw(usage, self.page_size) {
            PageUse::Slab(class) => {
                self.free_object(frame, class, addr.offset(self.page_size))?;
            }
            PageUse::Run { pages, .. } => self.free_run(frame, pages)?,
            PageUse::Unused => return Ok(Err(NotFreed::NotAllocated)),
        }
        Ok(Ok(()))
    }

    /// Whether pages are leaving.
    pub(crate) const fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The frames whose page is leaving, to be looked at: those that are not quiesced come back by
    /// [`Self::keep_leaving`].
    pub(crate) fn take_leaving(&mut self) -> Vec<FrameId> {
        std::mem::take(&mut self.leaving)
    }

    /// These frames' pages are still leaving.
    pub(crate) fn keep_leaving(&mut self, frames: Vec<FrameId>) {
        self.leaving = frames;
    }

    /// Whether a page word was changed to leaving since the last call: then a barrier has to stand
    /// before access slots are looked at.
    pub(crate) fn take_newly_leaving(&mut self) -> bool {
        std::mem::take(&mut self.newly_leaving)
    }

    /// The page that a frame holds or is bound to.
    pub(crate) fn page_of(&self, frame: FrameId) -> Result<PageId, SlabError> {
        Ok(self.word(frame)?.page())
    }

    /// The last user of a leaving page has gone: its frame is free.
    pub(crate) fn quiesced(&mut self, frame: FrameId) -> Result<(), SlabError> {
        let word = self.word(frame)?;
        self.set_use(frame, PageUse::Unused)?;
        self.step(frame, PageEvent::Quiesced)?;
        self.free_pages.insert(word.page(), frame);
        Ok(())
    }

    fn word(&self, frame: FrameId) -> Result<PageWord, OutOfBounds> {
        Ok(PageWord::from_raw(self.metadata.word(frame)?.load(Ordering::Acquire)))
    }

    /// Changes a page word. Only this thread does, so a plain store is enough.
    fn step(&self, frame: FrameId, event: PageEvent) -> Result<PageWord, SlabError> {
        let next = self.word(frame)?.apply(event)?;
        self.set(self.metadata.word(frame)?, next.raw());
        Ok(next)
    }

    /// Stores a word of the metadata. A killed daemon stores nothing more.
    fn set(&self, word: &AtomicU64, value: u64) {
        if self.lives() {
            word.store(value, Ordering::Release);
        }
    }

    /// Notes what the page in a frame is used for.
    fn set_use(&self, frame: FrameId, usage: PageUse) -> Result<(), OutOfBounds> {
        let header = self.metadata.header(frame)?;
        if self.lives() {
            header.set_kind(usage);
        }
        Ok(())
    }

    /// Whether this daemon is there to make one more store: tests end it between any two.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only tests kill daemons in here")]
    const fn lives(&self) -> bool {
        true
    }

    /// The page of a frame is no longer in use; it leaves when nobody is in it.
    fn leave(&mut self, frame: FrameId) -> Result<(), SlabError> {
        self.step(frame, PageEvent::Left)?;
        self.leaving.push(frame);
        self.newly_leaving = true;
        Ok(())
    }

    fn state(&self, frame: FrameId) -> Result<Option<PageState>, SlabError> {
        Ok(self.word(frame)?.state())
    }

    fn address(&self, page: PageId, offset: u64) -> Result<GlobalAddr, SlabError> {
        GlobalAddr::new(page, offset, self.page_size).map_err(|_| {
            SlabError::Bounds(OutOfBounds { offset, len: 0, mapped: self.page_size.bytes() })
        })
    }

    fn index(frame: FrameId) -> usize {
        frame.0 as usize
    }
}

#[cfg(test)]
mod tests;
