//! Objects of several whole pages: pages with consecutive ids in consecutive frames, because an
//! access may cross from one page into the next. Such pages never move.

use rackpool_model::{FrameId, PageEvent, PageId, PageState};
use rackpool_shm::metadata::PageUse;

use super::{Candidate, CandidateKind, Slab, SlabError};

impl Slab {
    /// Returns the lowest run of free pages with consecutive ids and frames that is long enough.
    /// Swaps shuffle the ids of frames.
    pub(super) fn peek_run(&self, bytes: u64) -> Option<Candidate> {
        let pages = u32::try_from(self.page_size.pages_for(bytes)).ok()?;
        if pages == 0 || pages > PageUse::MAX_RUN {
            return None;
        }
        let mut first = None;
        let mut length = 0;
        let mut last: Option<(PageId, FrameId)> = None;
        for (page, frame) in &self.free_pages {
            let follows = |(before, beside): (PageId, FrameId)| {
                before.0.checked_add(1) == Some(page.0) && beside.0.checked_add(1) == Some(frame.0)
            };
            if last.is_some_and(follows) {
                length += 1;
            } else {
                first = Some(*page);
                length = 1;
            }
            last = Some((*page, *frame));
            if length == pages {
                let first = first?;
                let addr = self.address(first, 0).ok()?;
                return Some(Candidate { addr, kind: CandidateKind::Run { first, pages } });
            }
        }
        None
    }

    /// Allocates a run. The first page's word is the commit: a run without it is undone at the next
    /// start.
    pub(super) fn commit_run(&mut self, first: PageId, pages: u32) -> Result<(), SlabError> {
        for index in (0..pages).rev() {
            let Some(frame) = self.free_pages.remove(&PageId(first.0 + index)) else { continue };
            self.free_since.remove(&frame);
            self.set_use(frame, PageUse::Run { index, pages })?;
            self.step(frame, PageEvent::Allocated)?;
        }
        self.allocated_bytes += u64::from(pages) * self.page_size.bytes();
        Ok(())
    }

    /// Frees a run. The first page leaves first: without it the others are undone at the next
    /// start.
    pub(super) fn free_run(&mut self, head: FrameId, pages: u32) -> Result<(), SlabError> {
        let first = self.page_of(head)?;
        for index in 0..pages {
            // Check each page: a damaged header may claim pages of other objects.
            let Some(page) = first.0.checked_add(index) else { break };
            let Some(frame) = self.frame_of(PageId(page)) else { continue };
            let usage = PageUse::from_raw(self.metadata.header(frame)?.kind(), self.page_size);
            if self.state(frame)? == Some(PageState::Live)
                && usage == (PageUse::Run { index, pages })
            {
                self.leave(frame)?;
                self.allocated_bytes -= self.page_size.bytes();
            }
        }
        Ok(())
    }
}
