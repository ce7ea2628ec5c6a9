//! Objects of several whole pages: pages with consecutive ids, in any frames.

use rackpool_model::{FrameId, PageEvent, PageId, PageState};
use rackpool_shm::metadata::PageUse;

use super::{Candidate, CandidateKind, Slab, SlabError};

impl Slab {
    /// The lowest run of free pages with consecutive ids that is long enough.
    pub(super) fn peek_run(&self, bytes: u64) -> Option<Candidate> {
        let pages = u32::try_from(self.page_size.pages_for(bytes)).ok()?;
        if pages == 0 || pages > PageUse::MAX_RUN {
            return None;
        }
        let mut first = None;
        let mut length = 0;
        let mut last = None;
        for page in self.free_pages.keys() {
            if last.is_some_and(|last: PageId| last.0 + 1 == page.0) {
                length += 1;
            } else {
                first = Some(*page);
                length = 1;
            }
            last = Some(*page);
            if length == pages {
                let first = first?;
                let addr = self.address(first, 0).ok()?;
                return Some(Candidate { addr, kind: CandidateKind::Run { first, pages } });
            }
        }
        None
    }

    /// The first page's word is the commit: a run without it is undone at the next start.
    pub(super) fn commit_run(&mut self, first: PageId, pages: u32) -> Result<(), SlabError> {
        for index in (0..pages).rev() {
            let Some(frame) = self.free_pages.remove(&PageId(first.0 + index)) else { continue };
            self.metadata.header(frame)?.set_kind(PageUse::Run { index, pages });
            self.step(frame, PageEvent::Allocated)?;
        }
        self.allocated_bytes += u64::from(pages) * self.page_size.bytes();
        Ok(())
    }

    /// The first page goes first: without it the others are undone at the next start.
    pub(super) fn free_run(&mut self, head: FrameId, pages: u32) -> Result<(), SlabError> {
        let first = self.page_of(head)?;
        for index in 0..pages {
            if let Some(frame) = self.frame_of(PageId(first.0 + index))
                && self.state(frame)? == Some(PageState::Live)
            {
                self.leave(frame)?;
            }
        }
        self.allocated_bytes -= u64::from(pages) * self.page_size.bytes();
        Ok(())
    }
}
