//! Objects of several whole pages: pages with consecutive ids in consecutive frames, because an
//! access may cross from one page into the next. Such pages never move.

use rackpool_model::{FrameId, PageEvent, PageId, PageState};
use rackpool_shm::extent_owner::ExtentOwner;
use rackpool_shm::metadata::PageUse;

use super::{Candidate, CandidateKind, Slab, SlabError};

/// Pages with consecutive ids in consecutive frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRun {
    pub(super) first: PageId,
    pub(super) pages: u32,
}

/// Returns the lowest run of `most` pages among `pages`, which are in the order of their ids; if
/// there is none, the lowest of the longest runs. Swaps shuffle the ids of frames.
pub(super) fn longest_run(
    pages: impl Iterator<Item = (PageId, FrameId)>,
    most: u32,
) -> Option<PageRun> {
    let mut longest: Option<PageRun> = None;
    let mut run: Option<PageRun> = None;
    let mut last: Option<(PageId, FrameId)> = None;
    for (page, frame) in pages.take_while(|_| most > 0) {
        let follows = |(before, beside): (PageId, FrameId)| {
            before.0.checked_add(1) == Some(page.0) && beside.0.checked_add(1) == Some(frame.0)
        };
        let this = match run.filter(|_| last.is_some_and(follows)) {
            Some(PageRun { first, pages }) => PageRun { first, pages: pages + 1 },
            None => PageRun { first: page, pages: 1 },
        };
        if this.pages >= most {
            return Some(this);
        }
        if longest.is_none_or(|longest| this.pages > longest.pages) {
            longest = Some(this);
        }
        (run, last) = (Some(this), Some((page, frame)));
    }
    longest
}

impl Slab {
    /// Returns the lowest run of free pages that is long enough.
    pub(super) fn peek_run(&self, bytes: u64) -> Option<Candidate> {
        let pages = u32::try_from(self.page_size.pages_for(bytes)).ok()?;
        let free = self.free_pages.iter().map(|(page, frame)| (*page, *frame));
        let run = longest_run(free, pages.min(PageUse::MAX_RUN))?;
        if run.pages != pages {
            return None;
        }
        let addr = self.address(run.first, 0).ok()?;
        Some(Candidate { addr, kind: CandidateKind::Run { first: run.first, pages } })
    }

    /// Allocates a run; with an `owner` it is an extent. The first page's word is the commit: a run
    /// without it is undone at the next start.
    pub(super) fn commit_run(
        &mut self,
        first: PageId,
        pages: u32,
        owner: Option<ExtentOwner>,
    ) -> Result<(), SlabError> {
        if let Some(frame) = self.free_pages.get(&first) {
            let header = self.metadata.header(*frame)?;
            if self.lives() {
                header.set_owner(owner);
            }
        }
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
