//! The history of each page's swaps and copies, for `rackpool explain`.

use std::collections::{BTreeMap, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

use rackpool_model::{PageId, RackId};
use rackpool_wire::history::{PageHistoryEvent, PageNote};
use rackpool_wire::swap::SwapId;

/// Number of pages remembered: those with the most recent events.
const PAGES: usize = 1024;
/// Number of entries for each page.
const NOTES: usize = 16;
/// Number of swaps whose pages are remembered.
const SWAPS: usize = 64;

const _: () = assert!(PAGES * NOTES * size_of::<PageNote>() <= 1 << 20, "1 MiB is promised");

/// The page that a swap requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The requested page.
    pub(super) page: PageId,
    /// The other rack of the swap: the requester, or the home that is asked for the page.
    pub(super) peer: RackId,
    /// The page's hotness at the requester, in thousandths.
    pub(super) milli: u64,
}

/// A ring of entries for each page. The entries take at most 1 MiB, the indexes some 100 KiB.
#[derive(Debug, Default)]
pub(super) struct History {
    pages: BTreeMap<PageId, PageLog>,
    /// Pages by the time of their last event.
    lately: BTreeMap<u64, PageId>,
    offers: BTreeMap<SwapId, Offer>,
    clock: u64,
}

#[derive(Debug)]
struct PageLog {
    notes: VecDeque<PageNote>,
    stamp: u64,
}

impl History {
    /// Adds an event of a page. `milli` is the page's hotness here, in thousandths.
    pub(super) fn note(&mut self, page: PageId, milli: u64, event: PageHistoryEvent) {
        self.note_at(unix_ms(), page, milli, event);
    }

    fn note_at(&mut self, unix_ms: u64, page: PageId, milli: u64, event: PageHistoryEvent) {
        self.clock += 1;
        let stamp = self.clock;
        let log = self
            .pages
            .entry(page)
            .or_insert_with(|| PageLog { notes: VecDeque::with_capacity(NOTES), stamp });
        self.lately.remove(&log.stamp);
        log.stamp = stamp;
        self.lately.insert(stamp, page);
        // A refusal implies the request and replaces its entry, so repeated requests do not push
        // out the other entries.
        let refused = matches!(
            event,
            PageHistoryEvent::PrepareRefused(_) | PageHistoryEvent::RequestRefused(_)
        );
        let asked = log.notes.back().map(|note| note.event);
        if refused && matches!(asked, Some(PageHistoryEvent::Requested { .. })) {
            log.notes.pop_back();
        }
        match log.notes.back_mut() {
            Some(last) if event.is_again(&last.event) => {
                *last = PageNote {
                    unix_ms: last.unix_ms,
                    last_unix_ms: unix_ms,
                    times: last.times.saturating_add(1),
                    milli,
                    event,
                };
            }
            _ => {
                if log.notes.len() == NOTES {
                    log.notes.pop_front();
                }
                let note = PageNote { unix_ms, last_unix_ms: unix_ms, times: 1, milli, event };
                log.notes.push_back(note);
            }
        }
        if self.pages.len() > PAGES
            && let Some((_, oldest)) = self.lately.pop_first()
        {
            self.pages.remove(&oldest);
        }
    }

    /// Returns the entries of a page, the oldest first.
    pub(super) fn of(&self, page: PageId) -> Vec<PageNote> {
        self.pages.get(&page).map(|log| log.notes.iter().copied().collect()).unwrap_or_default()
    }

    /// Records the page that a swap requests. Swap ids increase; the oldest are dropped.
    pub(super) fn offered(&mut self, swap: SwapId, offer: Offer) {
        self.offers.insert(swap, offer);
        if self.offers.len() > SWAPS {
            self.offers.pop_first();
        }
    }

    /// Returns the page that a swap requests.
    pub(super) fn offer_of(&self, swap: SwapId) -> Option<Offer> {
        self.offers.get(&swap).copied()
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rackpool_wire::swap::PrepareRefusal;

    use super::*;

    const PAGE: PageId = PageId(7);

    #[test]
    fn what_happens_again_is_counted_and_what_is_old_makes_room() {
        let mut history = History::default();
        let kept = |milli| PageHistoryEvent::Refused {
            requester: RackId(1),
            milli,
            reason: PrepareRefusal::Hotter,
        };
        history.note_at(10, PAGE, 9000, kept(5000));
        history.note_at(20, PAGE, 8000, kept(6000));
        let found = history.of(PAGE);
        let again =
            PageNote { unix_ms: 10, last_unix_ms: 20, times: 2, milli: 8000, event: kept(6000) };
        assert_eq!(found, [again]);
        for at in 0..40 {
            let event =
                if at % 2 == 0 { PageHistoryEvent::Arrived } else { PageHistoryEvent::Departed };
            history.note_at(100 + at, PAGE, 1000, event);
        }
        let found = history.of(PAGE);
        assert_eq!((found.len(), found[0].unix_ms, found[15].unix_ms), (NOTES, 124, 139));
        assert!(history.of(PageId(8)).is_empty());
    }

    #[test]
    fn asking_in_vain_again_and_again_is_one_note() {
        let mut history = History::default();
        history.note_at(1, PAGE, 1000, PageHistoryEvent::Departed);
        for at in 0..50 {
            history.note_at(
                10 + at,
                PAGE,
                5000,
                PageHistoryEvent::Requested { offered: PageId(1) },
            );
            let refused = PageHistoryEvent::PrepareRefused(PrepareRefusal::Hotter);
            history.note_at(10 + at, PAGE, 5000, refused);
        }
        let told: Vec<_> = history.of(PAGE).iter().map(|note| (note.event, note.times)).collect();
        let refused = PageHistoryEvent::PrepareRefused(PrepareRefusal::Hotter);
        assert_eq!(told, [(PageHistoryEvent::Departed, 1), (refused, 50)]);
    }

    #[test]
    fn the_page_that_nothing_happened_to_for_longest_is_forgotten() {
        let mut history = History::default();
        for page in 0..3000 {
            history.note_at(u64::from(page), PageId(page), 1000, PageHistoryEvent::Arrived);
            history.note_at(u64::from(page), PageId(0), 1000, PageHistoryEvent::Aborted);
        }
        assert_eq!((history.pages.len(), history.lately.len()), (PAGES, PAGES));
        assert_eq!(history.of(PageId(0))[0].times, 1);
        assert_eq!(history.of(PageId(0))[1].times, 3000);
        assert!(history.of(PageId(1)).is_empty() && !history.of(PageId(2999)).is_empty());
    }

    #[test]
    fn offers_of_old_swaps_are_forgotten() {
        let mut history = History::default();
        let offer = Offer { page: PAGE, peer: RackId(0), milli: 5000 };
        for swap in 0..1000 {
            history.offered(SwapId(swap), offer);
        }
        assert_eq!(history.offers.len(), SWAPS);
        assert_eq!(history.offer_of(SwapId(999)), Some(offer));
        assert_eq!(history.offer_of(SwapId(1)), None);
    }
}
