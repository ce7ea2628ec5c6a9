//! Fixed objects: they keep their place, and their memory is reused only after they were retired
//! and no pin names them.

use rackpool_model::{FrameId, GlobalAddr, PageState, SizeClass};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;

use super::{Candidate, NotFreed, ObjectAt, Slab, SlabError, SlabUse};

impl Slab {
    /// Returns a free fixed object of at least `bytes` bytes, or `None` when the rack has no room
    /// for it or it is larger than a page. As [`Self::peek`], it is noted before it is committed.
    pub(crate) fn peek_fixed(&self, bytes: u64) -> Result<Option<Candidate>, SlabError> {
        match SizeClass::for_bytes(bytes, self.page_size) {
            Some(class) => self.peek_object(SlabUse { class, is_fixed: true }),
            None => Ok(None),
        }
    }

    /// The number of free pages that fixed memory may take. The last one stays for small movable
    /// objects: without any, a program could not even unlink an object from a table to free it.
    pub(super) fn pages_for_fixed(&self) -> u64 {
        (self.free_pages.len() as u64).saturating_sub(1)
    }

    /// Returns true if the address is a fixed object in use.
    pub(crate) fn is_fixed_object(&self, addr: GlobalAddr) -> bool {
        self.is_allocated(addr) && self.object_at(addr).is_some_and(|at| at.slab.is_fixed)
    }

    /// Retires a fixed object that a program has.
    pub(super) fn retire(&mut self, addr: GlobalAddr, at: ObjectAt) -> Result<(), NotFreed> {
        let Some(mark) = self.marks.of(at.frame, at.slab.class, at.index) else {
            return Err(NotFreed::NotAllocated);
        };
        if self.lives() && !mark.retire() {
            return Err(NotFreed::NotAllocated);
        }
        self.newly_retired.push(addr);
        Ok(())
    }

    /// Returns true if the object at this address is retired.
    pub(super) fn is_retired(&self, addr: GlobalAddr) -> bool {
        let mark =
            self.object_at(addr).and_then(|at| self.marks.of(at.frame, at.slab.class, at.index));
        mark.is_some_and(|mark| mark.is_retired())
    }

    /// Returns true if objects were retired after the last [`Self::take_newly_retired`].
    pub(crate) const fn has_newly_retired(&self) -> bool {
        !self.newly_retired.is_empty()
    }

    /// Takes the objects that were retired since the last call, or by an earlier daemon. The caller
    /// passes each to [`Self::free_retired`] once no pin names it.
    pub(crate) fn take_newly_retired(&mut self) -> Vec<GlobalAddr> {
        std::mem::take(&mut self.newly_retired)
    }

    /// Frees the memory of a retired object, then its extents. The object's bit is the commit:
    /// extents without a head are freed at the next start.
    pub(crate) fn free_retired(&mut self, addr: GlobalAddr) -> Result<(), SlabError> {
        let Some(at) = self.object_at(addr).filter(|at| at.slab.is_fixed) else { return Ok(()) };
        let is_used = self.object_is_used(at.frame, at.slab.class, addr.offset(self.page_size));
        if !is_used || !self.is_retired(addr) {
            return Ok(());
        }
        let extents = self.take_extents(addr);
        self.free_object(at)?;
        self.free_extents(extents)
    }

    /// Reports the objects that an earlier daemon has retired.
    pub(super) fn adopt_retired(&mut self) -> Result<(), SlabError> {
        for frame in (0..self.metadata.frames()).map(FrameId) {
            let PageUse::Fixed(class) = self.use_of(frame)? else { continue };
            let page = self.page_of(frame)?;
            let is_here = self.frame_of(page) == Some(frame);
            if !is_here || self.state(frame)? != Some(PageState::Live) {
                continue;
            }
            for (word, first) in self.metadata.bitmap(frame, class)?.iter().zip((0..).step_by(64)) {
                let bits = word.load(Ordering::Relaxed);
                for index in (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit) {
                    // Bits after the last object have no mark.
                    if self.marks.of(frame, class, index).is_some_and(|mark| mark.is_retired()) {
                        let addr = self.address(page, u64::from(index) << class.bits())?;
                        self.newly_retired.push(addr);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the use of the page in a frame.
    pub(super) fn use_of(&self, frame: FrameId) -> Result<PageUse, SlabError> {
        Ok(PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size))
    }
}
