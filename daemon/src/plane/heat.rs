//! How much this rack uses which page: what its clients note of their local accesses, and what goes
//! to other racks through this daemon.
//!
//! Operations of other racks on pages of this one are their use, not this rack's: they are counted
//! there. So a page moves to where more of its accesses come from.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rackpool_model::{Access, ClientId, PageId};
use rackpool_shm::access::Intent;

use super::DataPlane;
use super::clients::Client;
use super::command::{PlaneMetrics, get, set};

/// Between two collections of what the clients note.
const INTERVAL: Duration = Duration::from_millis(10);
/// Rounds of the poll loop between two looks at the clock: a millisecond or so.
const LOOK_EVERY: u32 = 1 << 12;
/// Notes after which a collection lets others get on, and thread slots: some 10 us.
const NOTES: usize = 512;
const SLOTS: usize = 128;
/// Places of the table of hot pages that are looked through with each collection for pages that
/// are not used any more.
const PLACES: usize = 256;
/// Hot pages that are remembered as told of. While there are so many no other one is told of.
const TOLD: usize = 1024;

/// When what is collected.
#[derive(Debug)]
pub(super) struct Collector {
    next: Instant,
    rounds: u32,
    /// The thread slot to go on with.
    at: (ClientId, u16),
    /// Hot pages of other racks, and until when nobody is told of them again.
    told: BTreeMap<PageId, Instant>,
    pause: Duration,
}

impl Collector {
    /// A page that is hot is told of once in so long.
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
    /// A page of another rack is used by a client of this one.
    pub(super) fn remote_access(
        &mut self,
        page: PageId,
        access: Access,
        times: u32,
    ) -> anyhow::Result<()> {
        let now = self.moment();
        let found = self.swaps.accessed(now, page, access, times);
        if found.hot && !self.sharing.wants_copy(page) && self.heat.may_tell(now, page) {
            return self.heated(page, found.milli, found.read_hot);
        }
        Ok(())
    }

    /// Collects what clients have noted when it is time. Looks at the clock now and then, and
    /// around each sleep, so that nothing is done while nobody does anything.
    pub(super) fn collect_heat(&mut self, sleeps: bool) {
        self.heat.rounds = self.heat.rounds.wrapping_add(1);
        if sleeps || self.heat.rounds.is_multiple_of(LOOK_EVERY) {
            let now = Instant::now();
            if now >= self.heat.next {
                self.collect_heat_at(now);
            }
        }
    }

    /// Collects from some of the thread slots.
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
                let (metrics, swaps) = (&self.metrics, &mut self.swaps);
                let sharing = &mut self.sharing;
                notes += collect(swaps, sharing, &self.slab, metrics, now, known, thread);
                slots += 1;
                at = Some((found, thread + 1));
            } else {
                at = found.0.checked_add(1).map(|next| (ClientId(next), 0));
            }
        }
        self.swaps.forget_some(now, PLACES);
        self.heat.at = at.unwrap_or((ClientId(0), 0));
        // Not all were looked at: the next look at the clock goes on.
        self.heat.next = if at.is_some() { now } else { now + INTERVAL };
    }
}

/// Takes in what a thread has noted; how much that was. Nothing in it is trusted: a client can only
/// lie about what it uses.
fn collect(
    swaps: &mut super::swap::Swaps,
    sharing: &mut super::share::Sharing,
    slab: &crate::slab::Slab,
    metrics: &PlaneMetrics,
    now: Instant,
    client: &Client,
    thread: u16,
) -> usize {
    let Some(slot) = client.thread(thread).filter(|_| !client.gone) else { return 0 };
    let mut notes = 0;
    slot.samples.collect(|frame, intent, accesses| {
        notes += 1;
        let used = &metrics.local_accesses;
        set(used, get(used).saturating_add(accesses.into()));
        // Who was in the frame has used what was there then, as a rule the same page.
        let Some(word) = slab.word_of(frame).filter(|word| word.is_readable()) else {
            if let Some(page) = sharing.frame_read(frame) {
                let reads = &metrics.sharing.reads;
                set(reads, get(reads).saturating_add(accesses.into()));
                swaps.accessed(now, page, Access::Read, accesses);
            }
            return;
        };
        let access = match intent {
            Intent::Read => Access::Read,
            Intent::Write => Access::Write,
        };
        swaps.accessed(now, word.page(), access, accesses);
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
