//! Extents: runs of pages that belong to a fixed object, their *head*. The owner word in the slab
//! header of a run's first page names the head; the map from heads to extents is derived from these
//! words. An extent is freed with its head.

use rackpool_model::{FrameId, GlobalAddr, PageId, PageState};
use rackpool_shm::extent_owner::ExtentOwner;
use rackpool_shm::metadata::PageUse;

use super::run::longest_run;
use super::{LocalPage, Slab, SlabError};

/// An extent of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The address of the first page.
    pub(crate) addr: GlobalAddr,
    pub(crate) pages: u32,
}

/// The address is no fixed object in use that can have extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAHead;

impl Slab {
    /// Returns the offset of a head in the frames; `None` if the object can't have extents.
    fn place_of(&self, head: GlobalAddr) -> Option<u64> {
        let LocalPage { frame, usage, .. } = self.lookup(head.page(self.page_size)?)?;
        let PageUse::Fixed(class) = PageUse::from_raw(usage, self.page_size) else { return None };
        if class.bytes() < ExtentOwner::HEAD_BYTES {
            return None;
        }
        Some(u64::from(frame.0) * self.page_size.bytes() + head.offset(self.page_size))
    }

    /// Returns the owner of the run whose first page is in this frame.
    pub(super) fn owner_of(&self, frame: FrameId) -> Option<ExtentOwner> {
        self.metadata.header(frame).ok()?.owner()
    }

    /// Returns the extents of a head in use, in their order.
    pub(crate) fn extents_of(&self, head: GlobalAddr) -> Result<&[Extent], NotAHead> {
        let place = self.place_of(head).filter(|_| self.is_allocated(head)).ok_or(NotAHead)?;
        Ok(self.extents.get(&place).map_or(&[], Vec::as_slice))
    }

    /// Returns the offset in the frames of `len` bytes of a head in use, which may be retired, or
    /// of one of its extents. `None` if the bytes are not that, or do not lie within one page.
    pub(crate) fn fixed_place(&self, head: GlobalAddr, addr: GlobalAddr, len: u32) -> Option<u64> {
        let object = self.place_of(head)?;
        if !self.is_head_in_use(object).ok()? {
            return None;
        }
        let page = addr.page(self.page_size)?;
        let LocalPage { frame, usage, .. } = self.lookup(page)?;
        let start = u64::from(frame.0) * self.page_size.bytes();
        let place = start + addr.offset(self.page_size);
        let end = place + u64::from(len);
        let is_its = match PageUse::from_raw(usage, self.page_size) {
            PageUse::Fixed(class) => {
                object >= start && place >= object && end <= object + class.bytes()
            }
            PageUse::Run { index, .. } => {
                let first = self.find(PageId(page.0.checked_sub(index)?))?;
                self.owner_of(first.frame).is_some_and(|owner| owner.head() == object)
            }
            PageUse::Slab(_) | PageUse::Unused => false,
        };
        (is_its && end <= start + self.page_size.bytes()).then_some(place)
    }

    /// Returns the bytes of the extents of a fixed object, which may be retired.
    pub(super) fn extent_bytes_of(&self, head: GlobalAddr) -> u64 {
        let extents = self.place_of(head).and_then(|place| self.extents.get(&place));
        let pages = extents.into_iter().flatten().map(|extent| u64::from(extent.pages));
        pages.sum::<u64>() * self.page_size.bytes()
    }

    /// Allocates an extent of `pages` pages for a head in use. If no run of free pages is that
    /// long, allocates the longest one if `in_parts`, else returns `None`, as without any free
    /// page that [fixed memory may take](Self::pages_for_fixed). The owner word is stored before
    /// the run is committed.
    pub(crate) fn extend(
        &mut self,
        head: GlobalAddr,
        pages: u64,
        in_parts: bool,
    ) -> Result<Option<Extent>, SlabError> {
        let Some(place) = self.place_of(head) else { return Ok(None) };
        let number = self.extents.get(&place).map_or(0, Vec::len);
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let Some(owner) = ExtentOwner::new(place, number) else { return Ok(None) };
        let wanted = u32::try_from(pages).unwrap_or(u32::MAX).min(PageUse::MAX_RUN);
        let most = u32::try_from(self.pages_for_fixed()).map_or(wanted, |most| wanted.min(most));
        let free = self.free_pages.iter().map(|(page, frame)| (*page, *frame));
        let run = longest_run(free, most).filter(|run| in_parts || run.pages == wanted);
        let Some(run) = run else { return Ok(None) };
        let extent = Extent { addr: self.address(run.first, 0)?, pages: run.pages };
        self.commit_run(run.first, run.pages, Some(owner))?;
        self.fixed.add_extent(u64::from(run.pages) * self.page_size.bytes());
        self.extents.entry(place).or_default().push(extent);
        Ok(Some(extent))
    }

    /// Removes the extents of a head from the map.
    pub(super) fn take_extents(&mut self, head: GlobalAddr) -> Vec<Extent> {
        self.place_of(head).and_then(|place| self.extents.remove(&place)).unwrap_or_default()
    }

    /// Frees extents whose head is free.
    pub(super) fn free_extents(&mut self, extents: Vec<Extent>) -> Result<(), SlabError> {
        for Extent { addr, pages } in extents {
            self.fixed.remove_extent(u64::from(pages) * self.page_size.bytes());
            let frame = addr.page(self.page_size).and_then(|page| self.frame_of(page));
            if let Some(frame) = frame {
                self.free_run(frame, pages)?;
            }
        }
        Ok(())
    }

    /// Derives the extents of each head from the owner words, and frees those whose head is not in
    /// use.
    pub(super) fn adopt_extents(&mut self) -> Result<(), SlabError> {
        let mut found = Vec::new();
        for frame in (0..self.metadata.frames()).map(FrameId) {
            let PageUse::Run { index: 0, pages } = self.use_of(frame)? else { continue };
            let page = self.page_of(frame)?;
            let is_here = self.frame_of(page) == Some(frame);
            if !is_here || self.state(frame)? != Some(PageState::Live) {
                continue;
            }
            let Some(owner) = self.owner_of(frame) else { continue };
            if self.is_head_in_use(owner.head())? {
                let extent = Extent { addr: self.address(page, 0)?, pages };
                found.push((owner.head(), owner.number(), extent));
            } else {
                self.free_run(frame, pages)?;
            }
        }
        found.sort_unstable_by_key(|(place, number, _)| (*place, *number));
        for (place, _, extent) in found {
            self.fixed.add_extent(u64::from(extent.pages) * self.page_size.bytes());
            self.extents.entry(place).or_default().push(extent);
        }
        Ok(())
    }

    /// Returns true if there is a head in use, which may be retired, at this offset in the frames.
    fn is_head_in_use(&self, place: u64) -> Result<bool, SlabError> {
        let bytes = self.page_size.bytes();
        let frame = u32::try_from(place / bytes).map(FrameId);
        let Ok(frame) = frame else { return Ok(false) };
        if frame.0 >= self.metadata.frames() {
            return Ok(false);
        }
        let page = self.page_of(frame)?;
        let is_live =
            self.frame_of(page) == Some(frame) && self.state(frame)? == Some(PageState::Live);
        Ok(match self.use_of(frame)? {
            PageUse::Fixed(class) if is_live && class.bytes() >= ExtentOwner::HEAD_BYTES => {
                self.object_is_used(frame, class, place % bytes)
            }
            _ => false,
        })
    }
}
