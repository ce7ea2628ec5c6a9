//! Free frames that have no memory yet, or none any more: another thread gets it for them, or gives
//! it back (`crate::reserver`). They belong to nobody meanwhile.

use std::time::{Duration, Instant};

use rackpool_model::{FrameId, PageId};

use super::Slab;

/// Frames that are tried for an object.
const TRIES: usize = 8;

impl Slab {
    /// Free frames may have no memory: all of them are to be reserved before they are used.
    pub(crate) fn reserve_on_demand(&mut self) {
        self.unreserved.append(&mut self.free_pages);
    }

    /// Whether frames are being reserved or given back.
    pub(crate) fn is_reserving(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Whether fewer than half of `stock` free frames have memory, and others could get it.
    pub(crate) fn lacks_stock(&self, stock: usize) -> bool {
        !self.unreserved.is_empty() && (self.free_pages.len() + self.ordered.len()) * 2 < stock
    }

    /// The frames that are to be reserved so that `stock` are there. They are the reserver's now.
    pub(crate) fn order_stock(&mut self, stock: usize) -> Vec<FrameId> {
        let wanted = stock.saturating_sub(self.free_pages.len() + self.ordered.len());
        let pages: Vec<PageId> = self.unreserved.keys().take(wanted).copied().collect();
        self.order(&pages)
    }

    /// The same for an object of `bytes` bytes, if there is none without: a frame for one of up to
    /// a page, all that are missing in the lowest run that is long enough for a larger one.
    pub(crate) fn order_for(&mut self, bytes: u64) -> Vec<FrameId> {
        let pages = self.page_size.pages_for(bytes);
        if pages <= 1 {
            // Several: one of them may have its memory from before, where there is no more.
            let first: Vec<PageId> = self.unreserved.keys().take(TRIES).copied().collect();
            return self.order(&first);
        }
        let Ok(pages) = usize::try_from(pages) else { return Vec::new() };
        let mut all = self.free_pages.clone();
        all.extend(&self.unreserved);
        all.extend(self.ordered.iter().map(|(frame, page)| (*page, *frame)));
        let mut run: Vec<(PageId, FrameId)> = Vec::new();
        for (page, frame) in all {
            let follows = run.last().is_none_or(|(before, beside)| {
                before.0.checked_add(1) == Some(page.0) && beside.0.checked_add(1) == Some(frame.0)
            });
            if !follows {
                run.clear();
            }
            run.push((page, frame));
            if run.len() == pages {
                let wanted: Vec<PageId> = run.into_iter().map(|(page, _)| page).collect();
                return self.order(&wanted);
            }
        }
        Vec::new()
    }

    fn order(&mut self, pages: &[PageId]) -> Vec<FrameId> {
        let mut ordered = Vec::new();
        for page in pages {
            if let Some(frame) = self.unreserved.remove(page) {
                self.ordered.insert(frame, *page);
                ordered.push(frame);
            }
        }
        ordered
    }

    /// The reserver is done with a frame, which has its memory or not.
    pub(crate) fn reserved(&mut self, frame: FrameId, is_there: bool) {
        let Some(page) = self.ordered.remove(&frame) else { return };
        let place = if is_there { &mut self.free_pages } else { &mut self.unreserved };
        place.insert(page, frame);
    }

    /// Pages of frames that have been free for `long`, if more than `stock` are free: `most` of
    /// them, the last ones first, as runs are made of the first ones.
    pub(crate) fn free_for(
        &mut self,
        (now, long): (Instant, Duration),
        stock: usize,
        most: usize,
    ) -> Vec<PageId> {
        let spare = self.free_pages.len().saturating_sub(stock).min(most);
        let mut due = Vec::new();
        for (page, frame) in self.free_pages.iter().rev() {
            let since = *self.free_since.entry(*frame).or_insert(now);
            if due.len() < spare && now.saturating_duration_since(since) >= long {
                due.push(*page);
            }
        }
        due
    }

    /// The frames of these free pages are to be given back. They are the reserver's now.
    pub(crate) fn order_release(&mut self, pages: &[PageId]) -> Vec<FrameId> {
        let mut released = Vec::new();
        for page in pages {
            if let Some(frame) = self.free_pages.remove(page) {
                self.free_since.remove(&frame);
                self.ordered.insert(frame, *page);
                released.push(frame);
            }
        }
        released
    }
}
