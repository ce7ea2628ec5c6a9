//! Page usage of this rack: the local accesses that its clients sample, and the accesses to other
//! racks that go through this daemon.
//!
//! Accesses of other racks to pages of this rack are counted by those racks, not here. So a page
//! moves to the rack that makes more of its accesses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_model::{Access, ClientId, PageId};
use rackpool_proto::Time;
use rackpool_proto::heat::Heats;
use rackpool_shm::access::AccessIntent;

use super::DataPlane;
use super::clients::Client;
use super::command::{PlaneMetrics, get, set};

/// Interval between two collections of the clients' samples.
const INTERVAL: Duration = Duration::from_millis(10);
/// Rounds of the poll loop between two reads of the clock, about a millisecond.
const LOOK_EVERY: u32 = 1 << 12;
/// Samples, and thread slots, after which a collection is interrupted: about 10 us.
const NOTES: usize = 512;
const SLOTS: usize = 128;
/// Entries of the table of hot pages that each collection checks for pages that are not used any
/// more.
const PLACES: usize = 256;
/// Maximum number of reported hot pages that are remembered. At this number no other page is
/// reported.
const TOLD: usize = 1024;

/// The state of the collection.
#[derive(Debug)]
pub(super) struct Collector {
    next: Instant,
    rounds: u32,
    /// The thread slot at which the next collection continues.
    at: (ClientId, u16),
    /// Reported hot pages of other racks, with the end of the pause in which each is not reported
    /// again.
    told: BTreeMap<PageId, Instant>,
    pause: Duration,
}

impl Collector {
    /// Creates a collector that reports a hot page at most once in each `pause`.
    pub(super) const fn new(now: Instant, pause: Duration) -> Self {
        Self { next: now, rounds: 0, at: (ClientId(0), 0), told: BTreeMap::new(), pause }
    }

    fn may_tell(&mut self, now: Instant, page: PageId) -> bool {
        if self.told.get(&page).is_some_and(|until| now < *until) {
            return false;
        }
        if self.told.len() >= TOLD {
            self.told.retain(|_, until| now < *until);
            if self.told.len() >= TOLD {
                return false;
            }
        }
        self.told.insert(page, now + self.pause);
        true
    }
}

impl DataPlane {
    /// Counts `times` accesses of this rack's clients to a page of another rack.
    pub(super) fn remote_access(&mut self, page: PageId, access: Access, times: u32) {
        let now = self.cached_now();
        let at = self.at(now);
        let found = self.machine.heats_mut().accessed(at, page, access, times);
        let is_wanted = self.machine.copies().is_wanted(page);
        if found.hot && !is_wanted && self.heat.may_tell(now, page) {
            self.heated(page, found.milli, found.read_hot);
        }
    }

    /// Collects the clients' samples when it is time. Reads the clock only now and then and around
    /// each sleep, so that an idle daemon does nothing.
    pub(super) fn collect_heat(&mut self, sleeps: bool) {
        self.heat.rounds = self.heat.rounds.wrapping_add(1);
        if sleeps || self.heat.rounds.is_multiple_of(LOOK_EVERY) {
            let now = Instant::now();
            if now >= self.heat.next {
                self.collect_heat_at(now);
            }
        }
    }

    /// Collects the samples of some thread slots.
    pub(super) fn collect_heat_at(&mut self, now: Instant) {
        let (mut slots, mut notes) = (0, 0);
        let mut at = Some(self.heat.at);
        while let Some((client, thread)) = at
            && slots < SLOTS
            && notes < NOTES
        {
            let Some((found, known)) = self.clients.all.first_from(client) else {
                at = None;
                break;
            };
            let thread = if found == client { thread } else { 0 };
            if thread < known.used_threads() {
                let (metrics, slab, time) = (&self.metrics, &self.slab, self.at(now));
                let (heats, sharing) = (self.machine.heats_mut(), &mut self.sharing);
                notes += collect(heats, sharing, slab, metrics, time, known, thread);
                slots += 1;
                at = Some((found, thread + 1));
            } else {
                at = found.0.checked_add(1).map(|next| (ClientId(next), 0));
            }
        }
        let time = self.at(now);
        self.machine.heats_mut().forget_some(time, PLACES);
        self.heat.at = at.unwrap_or((ClientId(0), 0));
        // Some slots are left: the next read of the clock continues with them.
        self.heat.next = if at.is_some() { now } else { now + INTERVAL };
    }
}

/// Collects the samples of a thread and returns their number. The samples are not trusted, but a
/// client can only misreport its own usage.
fn collect(
    heats: &mut Heats,
    sharing: &mut super::share::Sharing,
    slab: &crate::slab::Slab,
    metrics: &PlaneMetrics,
    now: Time,
    client: &Client,
    thread: u16,
) -> usize {
    let Some(slot) = client.thread(thread).filter(|_| !client.gone) else { return 0 };
    let mut notes = 0;
    slot.samples.collect(|frame, intent, accesses| {
        notes += 1;
        let used = &metrics.local_accesses;
        set(used, get(used).saturating_add(accesses.into()));
        // The sampled access used the frame's contents at that time, which is usually the same
        // page.
        let Some(word) = slab.word_of(frame).filter(|word| word.is_readable()) else {
            if let Some(page) = sharing.frame_read(frame) {
                let reads = &metrics.sharing.reads;
                set(reads, get(reads).saturating_add(accesses.into()));
                heats.accessed(now, page, Access::Read, accesses);
            }
            return;
        };
        let access = match intent {
            AccessIntent::Read => Access::Read,
            AccessIntent::Write => Access::Write,
        };
        heats.accessed(now, word.page(), access, accesses);
    });
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_page_is_told_of_once_in_a_pause_and_only_so_many_are() {
        const PAUSE: Duration = Duration::from_millis(200);
        let start = Instant::now();
        let mut collector = Collector::new(start, PAUSE);
        assert!(collector.may_tell(start, PageId(1)));
        assert!(!collector.may_tell(start + PAUSE / 2, PageId(1)));
        assert!(collector.may_tell(start + PAUSE, PageId(1)));
        let told = (2..5000).filter(|page| collector.may_tell(start + PAUSE, PageId(*page)));
        assert_eq!(told.count(), TOLD - 1);
        assert!(collector.may_tell(start + 2 * PAUSE, PageId(4999)), "others had their time");
        assert_eq!(collector.told.len(), 1);
    }
}
