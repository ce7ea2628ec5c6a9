//! Free frames without memory. The reserver thread (`crate::reserver`) allocates or releases the
//! memory; meanwhile the frames are not used.

use std::time::{Duration, Instant};

use rackpool_model::{FrameId, PageId};

use super::Slab;
use super::run::longest_run;

/// Number of frames that are tried for an object.
const TRIES: usize = 8;

impl Slab {
    /// Makes all free frames wait for their memory before they are used.
    pub(crate) fn reserve_on_demand(&mut self) {
        self.unreserved.append(&mut self.free_pages);
    }

    /// Returns true while the reserver has orders.
    pub(crate) fn is_reserving(&self) -> bool {
        !self.ordered.is_empty()
    }

    /// Returns true if fewer than half of `stock` free frames have memory, and others could get it.
    pub(crate) fn lacks_stock(&self, stock: usize) -> bool {
        !self.unreserved.is_empty() && (self.free_pages.len() + self.ordered.len()) * 2 < stock
    }

    /// Takes frames to be allocated until `stock` frames have memory. The reserver has them now.
    pub(crate) fn order_stock(&mut self, stock: usize) -> Vec<FrameId> {
        let wanted = stock.saturating_sub(self.free_pages.len() + self.ordered.len());
        let pages: Vec<PageId> = self.unreserved.keys().take(wanted).copied().collect();
        self.order(&pages)
    }

    /// Takes frames to be allocated for an object of `bytes` bytes: some frames for an object of up
    /// to a page; for a larger one all frames without memory in the lowest run that is long enough.
    /// With `in_parts`, a shorter run is taken if none is long enough: the longest one.
    pub(crate) fn order_for(&mut self, bytes: u64, in_parts: bool) -> Vec<FrameId> {
        let pages = self.page_size.pages_for(bytes);
        if pages <= 1 {
            // Several: one of them may still have memory, while the file system has no more.
            let first: Vec<PageId> = self.unreserved.keys().take(TRIES).copied().collect();
            return self.order(&first);
        }
        let Ok(pages) = u32::try_from(pages) else { return Vec::new() };
        let mut all = self.free_pages.clone();
        all.extend(&self.unreserved);
        all.extend(self.ordered.iter().map(|(frame, page)| (*page, *frame)));
        match longest_run(all.into_iter(), pages) {
            Some(run) if in_parts || run.pages == pages => {
                let wanted: Vec<PageId> =
                    (0..run.pages).map(|index| PageId(run.first.0 + index)).collect();
                self.order(&wanted)
            }
            _ => Vec::new(),
        }
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

    /// The reserver has executed an order; `is_there` says whether the frame has memory now.
    pub(crate) fn reserved(&mut self, frame: FrameId, is_there: bool) {
        let Some(page) = self.ordered.remove(&frame) else { return };
        let place = if is_there { &mut self.free_pages } else { &mut self.unreserved };
        place.insert(page, frame);
    }

    /// Returns up to `most` pages whose frames have been free for `long`, if more than `stock`
    /// frames are free. The last ones come first, because runs are made of the first ones.
    pub(crate) fn free_for(
        &mut self,
        now: Instant,
        long: Duration,
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

    /// Takes the frames of these free pages to be released. The reserver has them now.
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
