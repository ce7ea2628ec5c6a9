//! The slab allocator over the rack metadata, which records the objects that are in use.
//!
//! The metadata is authoritative; the state in private memory is derived from it when the daemon
//! starts. An allocation has two steps, [`Slab::peek`] and [`Slab::commit`], so that the caller can
//! note the object at its destination before it counts as in use. A crash between the steps leaves
//! a note of a free object, which is removed at the next start; an object without an owner can't
//! arise.

mod adopt;
mod borrowed;
mod extents;
mod fixed;
mod moving;
mod object;
mod reserve;
mod run;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use rackpool_model::{
    FrameId, FrameWord, GlobalAddr, PageEvent, PageId, PageSize, PageState, PageWord, SizeClass,
};
use rackpool_shm::OutsideMapping;
use rackpool_shm::marks::{Mark, Marks, ObjectHolder};
use rackpool_shm::metadata::{PageUse, RackMetadata};
use rackpool_sync::atomic::{AtomicU64, Ordering};

pub(crate) use extents::Extent;
pub(crate) use fixed::FixedUse;
pub(crate) use moving::Contents;

/// An id that no page has. Only damaged page words name it.
const NO_PAGE: PageId = PageId(0);

/// The frame of each page. Page `first + f` is found in frame `f` by arithmetic, as its page word
/// confirms; only pages that have come from elsewhere are in the map.
#[derive(Debug)]
struct PageTable {
    first: PageId,
    elsewhere: HashMap<PageId, FrameId>,
}

/// A page of this rack, as the rack's metadata describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPage {
    pub(crate) frame: FrameId,
    pub(crate) word: PageWord,
    /// The raw [`PageUse`].
    pub(crate) usage: u64,
}

/// A free object that is about to be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) addr: GlobalAddr,
    kind: CandidateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CandidateKind {
    Object { frame: FrameId, slab: SlabUse, index: u32 },
    Run { first: PageId, pages: u32 },
}

/// The advice for damaged metadata.
pub(crate) const DAMAGED: &str = "start the daemon again, it continues with the frames that are intact; if it can't, remove the rack's folder to start with an empty rack";

/// The rack's metadata contradicts itself: another program has changed the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlabError {
    #[error("the rack metadata is damaged ({0}): {DAMAGED}")]
    Bounds(#[from] OutsideMapping),
    #[error("the rack metadata is damaged ({0}): {DAMAGED}")]
    Transition(#[from] rackpool_model::PageTransitionError),
}

/// Why an object is not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotFreed {
    /// The address is no object in use, or another party has freed the object already.
    NotAllocated,
    /// Its page is frozen or shared: free the object when the swap or the sharing has ended.
    Moving,
}

/// The use of a page of equal objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlabUse {
    class: SizeClass,
    /// Set if the objects keep their place.
    is_fixed: bool,
}

impl SlabUse {
    const fn of(usage: PageUse) -> Option<Self> {
        match usage {
            PageUse::Slab(class) => Some(Self { class, is_fixed: false }),
            PageUse::Fixed(class) => Some(Self { class, is_fixed: true }),
            PageUse::Run { .. } | PageUse::Unused => None,
        }
    }

    const fn page_use(self) -> PageUse {
        if self.is_fixed { PageUse::Fixed(self.class) } else { PageUse::Slab(self.class) }
    }

    /// Returns the index of the list of partial pages of this use.
    const fn list(self) -> usize {
        self.class.index() as usize * 2 + self.is_fixed as usize
    }
}

/// The slot of an object in a page of its class.
#[derive(Clone, Copy, Debug)]
struct ObjectAt {
    frame: FrameId,
    slab: SlabUse,
    index: u32,
}

/// What the allocator derives for a frame.
#[derive(Clone, Copy, Debug, Default)]
struct FrameState {
    free_objects: u32,
    /// The word of the bitmap at which the search for a free object begins.
    hint: u32,
    listed: bool,
}

/// The allocator of a rack.
#[derive(Debug)]
pub(crate) struct Slab {
    metadata: Arc<RackMetadata>,
    /// Which objects of up to a page programs have. Clients change the marks, too.
    marks: Marks,
    page_size: PageSize,
    table: PageTable,
    frames: Vec<FrameState>,
    /// Free pages by id, so that runs can be found.
    free_pages: BTreeMap<PageId, FrameId>,
    /// Free pages whose frames may have no memory. They are not allocated.
    unreserved: BTreeMap<PageId, FrameId>,
    /// Frames of free pages for which the reserver has an order.
    ordered: BTreeMap<FrameId, PageId>,
    /// When a frame became free, if frames are released.
    free_since: BTreeMap<FrameId, Instant>,
    /// Frames of free pages that hold copies of other racks' pages, or receive them.
    borrowed: BTreeMap<FrameId, PageId>,
    /// Frames with free objects by their use ([`SlabUse::list`]), the most recent last.
    partial: Vec<Vec<FrameId>>,
    /// The extents of each head, in their order, by the head's offset in the frames.
    extents: HashMap<u64, Vec<Extent>>,
    /// Objects that were retired after the last [`Slab::take_newly_retired`].
    newly_retired: Vec<GlobalAddr>,
    /// The number of frames whose page is leaving and that wait for their last user.
    leaving: usize,
    /// Those whose page began to leave after the last [`Slab::take_newly_leaving`].
    newly_leaving: Vec<FrameId>,
    allocated_bytes: u64,
    /// What fixed memory takes, which is a part of these bytes.
    fixed: FixedUse,
    /// Frames whose page has gone to another rack and that may still have readers.
    departed: BTreeSet<FrameId>,
    /// Number of stores to the metadata before this daemon is killed; `None`: it is not killed.
    #[cfg(test)]
    stores_left: std::cell::Cell<Option<u32>>,
}

impl Slab {
    /// Returns a page's frame, its page word and its use. `None` for a page that is arriving and
    /// for one that has gone to another rack.
    pub(crate) fn lookup(&self, page: PageId) -> Option<LocalPage> {
        let frame = self.frame_of(page)?;
        let word = self.word(frame).ok()?;
        let usage = self.metadata.header(frame).ok()?.kind();
        Some(LocalPage { frame, word, usage })
    }

    /// Returns the frame and page word of a page, for the pages that [`Self::lookup`] finds.
    pub(crate) fn find(&self, page: PageId) -> Option<FrameWord> {
        self.lookup(page).map(|LocalPage { frame, word, .. }| FrameWord { frame, word })
    }

    /// Returns the frame to which a page is bound, whether it is free or in use.
    fn frame_of(&self, page: PageId) -> Option<FrameId> {
        if page == NO_PAGE {
            return None;
        }
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

    /// Returns the frame in which a page of this rack was born. For other pages no such frame
    /// exists.
    const fn native(&self, page: PageId) -> FrameId {
        FrameId(page.0.wrapping_sub(self.table.first.0))
    }

    /// Returns the number of frames that hold no page.
    pub(crate) fn free_frames(&self) -> u32 {
        u32::try_from(self.unborrowed_frames() + self.borrowed.len()).unwrap_or(u32::MAX)
    }

    /// Returns the bytes of all objects in use.
    pub(crate) const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Returns what fixed memory takes.
    pub(crate) const fn fixed_use(&self) -> FixedUse {
        self.fixed
    }

    /// Returns a free object of at least `bytes` bytes, or `None` when the rack has no room for it.
    /// The caller must note the object at its destination before it calls [`Self::commit`].
    pub(crate) fn peek(&self, bytes: u64) -> Result<Option<Candidate>, SlabError> {
        match SizeClass::for_bytes(bytes, self.page_size) {
            Some(class) => self.peek_object(SlabUse { class, is_fixed: false }),
            None => Ok(self.peek_run(bytes)),
        }
    }

    /// Marks the candidate as in use. `holder` has it until it hands it to a program; with `None` a
    /// program has it. Returns false if there is no memory for its page: the caller removes its
    /// note.
    pub(crate) fn commit(
        &mut self,
        candidate: Candidate,
        holder: Option<ObjectHolder>,
    ) -> Result<bool, SlabError> {
        match candidate.kind {
            CandidateKind::Object { frame, slab, index } => {
                let is_free = self.state(frame)? == Some(PageState::Free);
                if is_free && !self.open_page(frame, slab)? {
                    return Ok(false);
                }
                if let Some(mark) = self.marks.of(frame, slab.class, index)
                    && self.lives()
                {
                    mark.set(holder);
                }
                self.commit_object(frame, slab, index)?;
            }
            CandidateKind::Run { first, pages } => self.commit_run(first, pages, None)?,
        }
        Ok(true)
    }

    /// Returns true if the address is an object in use. A retired object is not, and an extent is a
    /// part of its head.
    pub(crate) fn is_allocated(&self, addr: GlobalAddr) -> bool {
        let found = addr.page(self.page_size).and_then(|page| self.lookup(page));
        let Some(LocalPage { frame, word, usage }) = found else { return false };
        let offset = addr.offset(self.page_size);
        word.is_readable()
            && match PageUse::from_raw(usage, self.page_size) {
                PageUse::Unused => false,
                PageUse::Run { index, .. } => {
                    index == 0 && offset == 0 && self.owner_of(frame).is_none()
                }
                PageUse::Slab(class) => self.object_is_used(frame, class, offset),
                PageUse::Fixed(class) => {
                    self.object_is_used(frame, class, offset) && !self.is_retired(addr)
                }
            }
    }

    /// Returns true if the object has the size of an allocation of `bytes` bytes, and is fixed if
    /// `is_fixed`. For an object of another rack it returns true unless `is_fixed`, because the
    /// object came for the same request.
    pub(crate) fn fits(&self, addr: GlobalAddr, bytes: u64, is_fixed: bool) -> bool {
        let found = addr.page(self.page_size).and_then(|page| self.lookup(page));
        let Some(LocalPage { usage, .. }) = found else { return !is_fixed };
        let usage = PageUse::from_raw(usage, self.page_size);
        match usage {
            PageUse::Slab(class) | PageUse::Fixed(class) => {
                SizeClass::for_bytes(bytes, self.page_size) == Some(class)
                    && is_fixed == matches!(usage, PageUse::Fixed(_))
            }
            PageUse::Run { pages, .. } => {
                !is_fixed
                    && u64::from(pages) == self.page_size.pages_for(bytes)
                    && self.is_allocated(addr)
            }
            PageUse::Unused => false,
        }
    }

    /// Returns true if [`Self::free`] would free the object.
    pub(crate) fn may_free(&self, addr: GlobalAddr, holder: ObjectHolder) -> bool {
        let is_free_to_take = |mark: &Mark, at: ObjectAt| {
            mark.is_with_program() || !at.slab.is_fixed && mark.is_held_by(holder)
        };
        self.is_allocated(addr)
            && self.object_at(addr).is_none_or(|at| {
                let mark = self.marks.of(at.frame, at.slab.class, at.index);
                mark.is_none_or(|mark| is_free_to_take(mark, at))
            })
    }

    /// Returns where an object of up to a page is.
    fn object_at(&self, addr: GlobalAddr) -> Option<ObjectAt> {
        let LocalPage { frame, usage, .. } = self.lookup(addr.page(self.page_size)?)?;
        let slab = SlabUse::of(PageUse::from_raw(usage, self.page_size))?;
        let index = addr.offset(self.page_size) >> slab.class.bits();
        Some(ObjectAt { frame, slab, index: u32::try_from(index).ok()? })
    }

    /// Frees an object that a program has, or that `holder` took from one. A fixed object is
    /// retired: the caller frees its memory by [`Self::free_retired`] when no pin names it.
    pub(crate) fn free(
        &mut self,
        addr: GlobalAddr,
        holder: ObjectHolder,
    ) -> Result<Result<(), NotFreed>, SlabError> {
        if !self.is_allocated(addr) {
            return Ok(Err(NotFreed::NotAllocated));
        }
        let found = addr.page(self.page_size).and_then(|page| self.lookup(page));
        let Some(LocalPage { frame, word, usage }) = found else {
            return Ok(Err(NotFreed::NotAllocated));
        };
        if !word.is_writable() {
            return Ok(Err(NotFreed::Moving));
        }
        let at = self.object_at(addr);
        if let Some(at) = at.filter(|at| at.slab.is_fixed) {
            return Ok(self.retire(addr, at));
        }
        if let Some(ObjectAt { frame, slab, index }) = at
            && let Some(mark) = self.marks.of(frame, slab.class, index)
            && self.lives()
            && !mark.take_or_holds(holder)
        {
            return Ok(Err(NotFreed::NotAllocated));
        }
        match (at, PageUse::from_raw(usage, self.page_size)) {
            (Some(at), _) => self.free_object(at)?,
            (None, PageUse::Run { pages, .. }) => self.free_run(frame, pages)?,
            (None, _) => return Ok(Err(NotFreed::NotAllocated)),
        }
        Ok(Ok(()))
    }

    /// Returns true if pages are leaving.
    pub(crate) const fn is_leaving(&self) -> bool {
        self.leaving > 0
    }

    /// Returns true if a page began to leave after the last [`Self::take_newly_leaving`].
    pub(crate) const fn has_newly_leaving(&self) -> bool {
        !self.newly_leaving.is_empty()
    }

    /// Takes the frames whose page began to leave since the last call. The caller reports each with
    /// [`Self::quiesced`] after its last user.
    pub(crate) fn take_newly_leaving(&mut self) -> Vec<FrameId> {
        std::mem::take(&mut self.newly_leaving)
    }

    /// Returns the page that a frame holds or is bound to.
    pub(crate) fn page_of(&self, frame: FrameId) -> Result<PageId, SlabError> {
        Ok(self.word(frame)?.page())
    }

    /// Frees the frame of a leaving page after its last user.
    pub(crate) fn quiesced(&mut self, frame: FrameId) -> Result<(), SlabError> {
        let word = self.word(frame)?;
        self.set_use(frame, PageUse::Unused)?;
        self.step(frame, PageEvent::Quiesced)?;
        self.leaving = self.leaving.saturating_sub(1);
        self.free_pages.insert(word.page(), frame);
        Ok(())
    }

    fn word(&self, frame: FrameId) -> Result<PageWord, OutsideMapping> {
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

    /// Stores the use of the page in a frame.
    fn set_use(&self, frame: FrameId, usage: PageUse) -> Result<(), OutsideMapping> {
        let header = self.metadata.header(frame)?;
        if self.lives() {
            header.set_kind(usage);
        }
        Ok(())
    }

    /// Returns true if this daemon may make one more store. Tests kill it between any two.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only tests kill daemons in here")]
    const fn lives(&self) -> bool {
        true
    }

    /// Makes the page of a frame leave: its frame becomes free after its last user.
    fn leave(&mut self, frame: FrameId) -> Result<(), SlabError> {
        self.step(frame, PageEvent::Left)?;
        self.leaving += 1;
        self.newly_leaving.push(frame);
        Ok(())
    }

    fn state(&self, frame: FrameId) -> Result<Option<PageState>, SlabError> {
        Ok(self.word(frame)?.state())
    }

    fn address(&self, page: PageId, offset: u64) -> Result<GlobalAddr, SlabError> {
        GlobalAddr::new(page, offset, self.page_size).map_err(|_| {
            SlabError::Bounds(OutsideMapping { offset, len: 0, mapped: self.page_size.bytes() })
        })
    }

    fn index(frame: FrameId) -> usize {
        frame.0 as usize
    }
}

#[cfg(test)]
mod tests;
