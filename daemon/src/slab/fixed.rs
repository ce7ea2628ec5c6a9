//! Fixed objects: they keep their place, and their memory is reused only after they were retired
//! and no pin names them.

use rackpool_model::{FrameId, GlobalAddr, PageState, SizeClass};
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;

use super::{Candidate, NotFreed, ObjectAt, Slab, SlabError, SlabUse};

/// What fixed memory takes. Objects are heads too; retired ones are among them, with their extents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FixedUse {
    pub(crate) objects: u64,
    pub(crate) object_bytes: u64,
    pub(crate) extents: u64,
    pub(crate) extent_bytes: u64,
    /// Objects that were freed and whose memory is not reused yet: programs pin them, or no scan
    /// has looked yet.
    pub(crate) retired: u64,
    /// The memory of retired objects, with their extents.
    pub(crate) retired_bytes: u64,
}

impl FixedUse {
    /// Counts objects, if the use is fixed.
    pub(super) fn add_objects(&mut self, slab: SlabUse, count: u32) {
        if slab.is_fixed {
            self.objects += u64::from(count);
            self.object_bytes += u64::from(count) * slab.class.bytes();
        }
    }

    /// Discounts an object, if the use is fixed.
    pub(super) const fn remove_object(&mut self, slab: SlabUse) {
        if slab.is_fixed {
            self.objects -= 1;
            self.object_bytes -= slab.class.bytes();
        }
    }

    pub(super) const fn add_extent(&mut self, bytes: u64) {
        self.extents += 1;
        self.extent_bytes += bytes;
    }

    pub(super) const fn remove_extent(&mut self, bytes: u64) {
        self.extents -= 1;
        self.extent_bytes -= bytes;
    }

    const fn add_retired(&mut self, bytes: u64) {
        self.retired += 1;
        self.retired_bytes += bytes;
    }

    const fn remove_retired(&mut self, bytes: u64) {
        self.retired -= 1;
        self.retired_bytes -= bytes;
    }
}

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
        self.note_retired(addr, at.slab.class);
        Ok(())
    }

    fn note_retired(&mut self, addr: GlobalAddr, class: SizeClass) {
        self.fixed.add_retired(class.bytes() + self.extent_bytes_of(addr));
        self.newly_retired.push(addr);
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
        self.fixed.remove_retired(at.slab.class.bytes() + self.extent_bytes_of(addr));
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
            let mut found = Vec::new();
            for (word, first) in self.metadata.bitmap(frame, class)?.iter().zip((0..).step_by(64)) {
                let bits = word.load(Ordering::Relaxed);
                for index in (0..64).filter(|bit| bits >> bit & 1 == 1).map(|bit| first + bit) {
                    // Bits after the last object have no mark.
                    if self.marks.of(frame, class, index).is_some_and(|mark| mark.is_retired()) {
                        found.push(self.address(page, u64::from(index) << class.bits())?);
                    }
                }
            }
            found.into_iter().for_each(|addr| self.note_retired(addr, class));
        }
        Ok(())
    }

    /// Returns the use of the page in a frame.
    pub(super) fn use_of(&self, frame: FrameId) -> Result<PageUse, SlabError> {
        Ok(PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size))
    }
}
