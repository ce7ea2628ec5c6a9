//! Queries about single pages: `rackpool explain` and `rackpool top`.

use std::time::Instant;

use rackpool_model::{PageId, PageState, RackId};
use rackpool_proto::Time;
use rackpool_proto::rack::{RackAction, RackRecord};
use rackpool_proto::swap::SwapEvent;
use rackpool_wire::history::{MAX_TOP_PAGES, PageHeat, PageHistory, PageHistoryEvent};
use rackpool_wire::swap::{Between, SwapId, SwapMessage, ToServer};

use super::history::Offer;
use super::{DataPlane, Swaps};

impl Swaps {
    /// Another rack requests a page of this one.
    pub(super) fn remember_offer(&mut self, requester: RackId, between: &Between) {
        if let SwapMessage::Prepare { wanted, milli, .. } = between.message {
            self.history.offered(between.swap, Offer { page: wanted, peer: requester, milli });
        }
    }

    fn told_rack(
        &mut self,
        rack: RackId,
        swap: SwapId,
        message: SwapMessage,
    ) -> Option<(PageId, PageHistoryEvent)> {
        let asked = |swaps: &Self| swaps.history.offer_of(swap).filter(|offer| offer.peer == rack);
        match message {
            SwapMessage::Prepare { wanted, milli, .. } => {
                self.history.offered(swap, Offer { page: wanted, peer: rack, milli });
                None
            }
            SwapMessage::Refused(reason) => {
                let Offer { page, peer, milli } = asked(self)?;
                Some((page, PageHistoryEvent::Refused { requester: peer, milli, reason }))
            }
            SwapMessage::Prepared { .. } => {
                let Offer { page, peer, milli } = asked(self)?;
                Some((page, PageHistoryEvent::Prepared { requester: peer, milli }))
            }
            _ => None,
        }
    }

    fn reported(&self, event: &SwapEvent) -> Option<(PageId, PageHistoryEvent)> {
        match *event {
            SwapEvent::Arrived(page) => Some((page, PageHistoryEvent::Arrived)),
            SwapEvent::Departed(page) => Some((page, PageHistoryEvent::Departed)),
            SwapEvent::NoColdPage(page) => Some((page, PageHistoryEvent::NoColdPage)),
            SwapEvent::RequestRefused(page, reason) => {
                Some((page, PageHistoryEvent::RequestRefused(reason)))
            }
            SwapEvent::PrepareRefused(page, reason) => {
                Some((page, PageHistoryEvent::PrepareRefused(reason)))
            }
            SwapEvent::Aborted(swap) => {
                let page = self.history.offer_of(swap)?.page;
                // A refusal also aborts the swap, and its entry contains more.
                let last = self.history.of(page).last().map(|note| note.event);
                let refused = matches!(last, Some(PageHistoryEvent::PrepareRefused(_)));
                (!refused).then_some((page, PageHistoryEvent::Aborted))
            }
            SwapEvent::Thawed(_) | SwapEvent::Lost(_) | SwapEvent::Damaged(..) => None,
        }
    }
}

impl DataPlane {
    /// Adds the event that an action of the machine implies to a page's history.
    pub(in crate::data_plane) fn remember(&mut self, now: Instant, action: &RackAction) {
        let told = match *action {
            RackAction::TellServer(ToServer::Request { page, offered, .. }) => {
                Some((page, PageHistoryEvent::Requested { offered }))
            }
            RackAction::TellRack(rack, Between { swap, message }) => {
                self.swaps.told_rack(rack, swap, message)
            }
            RackAction::Record(RackRecord::Swap(event)) => self.swaps.reported(&event),
            _ => None,
        };
        if let Some((page, event)) = told {
            self.remember_event(now, page, event);
        }
    }

    /// Adds an event to a page's history.
    pub(in crate::data_plane) fn remember_event(
        &mut self,
        now: Instant,
        page: PageId,
        event: PageHistoryEvent,
    ) {
        let milli = self.machine.heats().found(self.at(now), page).milli;
        self.swaps.history.note(page, milli, event);
    }

    fn heat_of(&self, at: Time, page: PageId) -> PageHeat {
        let heats = self.machine.heats();
        let found = heats.found(at, page);
        let (reads, writes) = heats.counts(page);
        let (hot, read_hot, milli) = (found.hot, found.read_hot, found.milli);
        PageHeat { page, milli, reads, writes, hot, read_hot, at_home: self.lives_here(page) }
    }

    /// Returns the history of a page.
    pub(in crate::data_plane) fn page_history(&self, page: PageId) -> PageHistory {
        let at = self.at(self.now());
        PageHistory {
            heat: self.heat_of(at, page),
            hot_milli: self.machine.heats().hot_milli(),
            rests: self.machine.heats().rests(at, page),
            notes: self.swaps.history.of(page),
        }
    }

    /// Returns the hottest pages that this rack holds or uses, the hottest first. Examines every
    /// page with a known hotness.
    pub(in crate::data_plane) fn top_pages(&self, limit: u16) -> Vec<PageHeat> {
        let at = self.at(self.now());
        let limit = usize::from(limit.min(MAX_TOP_PAGES));
        let known = self.machine.heats().iter().map(|(page, _)| page);
        let mut known: Vec<_> =
            known.map(|page| (self.machine.heats().found(at, page).milli, page)).collect();
        let order = |one: &(u64, PageId)| (u64::MAX - one.0, one.1);
        if known.len() > limit {
            known.select_nth_unstable_by_key(limit, order);
            known.truncate(limit);
        }
        known.sort_unstable_by_key(order);
        let pages = known.into_iter().map(|(_, page)| page);
        pages.map(|page| self.heat_of(at, page)).collect()
    }

    fn lives_here(&self, page: PageId) -> bool {
        let live = [PageState::Live, PageState::Frozen, PageState::Shared].map(Some);
        self.slab.lookup(page).is_some_and(|found| live.contains(&found.word.state()))
    }
}
