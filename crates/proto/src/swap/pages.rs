//! Queries of the shell: how the swaps under way affect the pages of a rack.

use rackpool_model::{PageId, RackId};

use super::in_flight::{Stage, Step};
use super::{Phase, SwapPeer};
use crate::planted_bugs::Bugs;

/// What a committed swap waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The other rack.
    pub peer: RackId,
    /// The page that has come and can't be written yet: its old home has not sent `Quiesced`.
    pub comes: Option<PageId>,
    /// The page that goes and is not known to be readable at its new home.
    pub goes: Option<PageId>,
    /// The free page that gets its frame. For the simulator's checks.
    pub vacant: Option<PageId>,
}

impl<B: Bugs> SwapPeer<B> {
    /// Returns true if a swap under way concerns the page: it must not be freed or allocated.
    #[must_use]
    pub fn is_busy(&self, page: PageId) -> bool {
        self.slots.iter().flatten().any(|swap| swap.concerns(page))
    }

    /// Returns the rack to which a swap moves the page away.
    #[must_use]
    pub fn goes_to(&self, page: PageId) -> Option<RackId> {
        self.slots.iter().flatten().find(|swap| swap.gives(page)).map(|swap| swap.peer)
    }

    /// Returns true if a swap under way may bring the page. A page word does not say so: a frame
    /// whose record is damaged stays `Arriving`, while the page may come by another frame and leave
    /// again.
    #[must_use]
    pub fn is_arriving(&self, page: PageId) -> bool {
        self.slots.iter().flatten().any(|swap| swap.takes(page))
    }

    /// Returns true if a swap under way concerns the page or a request offers it. If the page is
    /// free, a swap may take its frame at any time.
    #[must_use]
    pub fn may_use(&self, page: PageId) -> bool {
        self.is_busy(page) || self.requests.values().any(|want| want.offered == page)
    }

    /// Returns what committed swaps wait for.
    pub fn waits(&self) -> impl Iterator<Item = Waits> {
        self.slots.iter().flatten().filter_map(|swap| match swap.stage {
            Stage::Noted { record, step: Step::Finish(finish) }
                if record.phase == Phase::Committed =>
            {
                let comes = (!finish.settled).then_some(record.incoming.page);
                let goes = swap.hands_over().then_some(record.out.page);
                let vacant = swap.hands_over().then_some(record.vacant.page);
                Some(Waits { peer: swap.peer, comes, goes, vacant })
            }
            _ => None,
        })
    }
}
