//! Quiescing a page: waiting until no other rack has a lease of it and no access slot of this rack
//! names its frame, for writers or for all users.

use std::time::{Duration, Instant};

use rackpool_model::{FrameId, PageId, PageWord};
use rackpool_proto::lease::Users;
use rackpool_proto::swap::{Quiesce, RackEvent};
use rackpool_shm::access::{self, AccessSlot, is_quiesced};
use rackpool_sync::atomic::{Ordering, fence};
use rackpool_sync::barrier;
use rackpool_wire::swap::SwapId;

use crate::data_plane::DataPlane;

/// Delay between the return of the last lease and the heavy barrier for this rack's clients. Only
/// the next page that arrives waits for the frame. A barrier interrupts each core that runs a
/// client (30 us of a virtual one), just when all of these clients ask this daemon where the page
/// is now.
const LATER: Duration = Duration::from_millis(1);

/// A frame that is being quiesced.
#[derive(Clone, Copy, Debug)]
struct Quiescing {
    swap: SwapId,
    frame: FrameId,
    page: PageId,
    who: Quiesce,
    /// Set when no lease of the page is left.
    clean: bool,
    /// When the heavy barrier is due that must precede the scan of the access slots; `None` after
    /// it.
    barrier_at: Option<Instant>,
}

/// All frames that are being quiesced.
#[derive(Debug, Default)]
pub(super) struct Quiesces {
    all: Vec<Quiescing>,
}

impl Quiesces {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn clean(&mut self, page: PageId, users: Users) {
        let waits = |quiescing: &&mut Quiescing| {
            let for_writers = quiescing.who == Quiesce::Writers;
            quiescing.page == page && (for_writers || users == Users::Everyone)
        };
        for quiescing in self.all.iter_mut().filter(waits) {
            quiescing.clean = true;
        }
    }

    /// Issues the heavy barrier if one is due. One barrier serves all entries: the words of all
    /// frames were stored before it.
    fn put_up_barrier(&mut self, now: Instant) {
        if self.all.iter().any(|quiescing| quiescing.barrier_at.is_some_and(|at| at <= now)) {
            barrier::heavy();
            self.all.iter_mut().for_each(|quiescing| quiescing.barrier_at = None);
        }
    }
}

impl Quiescing {
    /// Returns true if all users that are waited for have left.
    fn is_over<'a>(
        &self,
        is_dirty_logged: bool,
        slots: impl IntoIterator<Item = &'a AccessSlot>,
    ) -> bool {
        let looks_at_slots = match self.who {
            // Slots that log are ignored: their threads log their writes, or are about to.
            Quiesce::Writers if is_dirty_logged => Some(access::Occupants::NotDirtyLogged),
            Quiesce::Writers | Quiesce::DirtyLoggers => Some(access::Occupants::Writers),
            // Clients of this rack may stay: the bytes that they see stay until they have left.
            Quiesce::Holders => None,
            Quiesce::Everyone => Some(access::Occupants::Everyone),
        };
        let has_barrier = self.barrier_at.is_none();
        self.clean
            && looks_at_slots.is_none_or(|who| has_barrier && is_quiesced(self.frame, who, slots))
    }
}

impl DataPlane {
    pub(super) fn begin_quiesce(
        &mut self,
        now: Instant,
        swap: SwapId,
        frame: FrameId,
        page: PageId,
        who: Quiesce,
    ) -> anyhow::Result<()> {
        let (leased_by, barrier_at) = match who {
            Quiesce::Writers => {
                self.remember_noted_last(frame);
                (Some(Users::Writers), Some(now))
            }
            Quiesce::DirtyLoggers => {
                // SYNC: pairs with the fence of `AccessSlot::enter_dirty_logged`: this thread sees
                // the slot of a thread that enters, or that thread sees the word that was stored
                // before.
                fence(Ordering::SeqCst);
                (None, None)
            }
            // Only leases are waited for, so no access slot is read.
            Quiesce::Holders => (Some(Users::Everyone), None),
            // This is the last step: the leases were returned before.
            Quiesce::Everyone => (None, Some(now + LATER)),
        };
        let clean = leased_by.is_none();
        self.swaps.quiesces.all.push(Quiescing { swap, frame, page, who, clean, barrier_at });
        leased_by.map_or(Ok(()), |users| self.page_needed(page, users))
    }

    pub(super) fn cancel_quiesce(&mut self, swap: SwapId, page: PageId) -> anyhow::Result<()> {
        self.swaps.quiesces.all.retain(|quiescing| quiescing.swap != swap);
        self.page_spared(page)
    }

    /// No other rack writes the page any more, or uses it.
    pub(in crate::data_plane) fn swap_page_clean(&mut self, page: PageId, users: Users) {
        // The next round continues with it, or the caller that is scanning now.
        self.swaps.quiesces.clean(page, users);
    }

    /// Tells the machine which frames are quiesced. Returns true if there were any.
    pub(super) fn look_at_quiesces(&mut self) -> bool {
        if self.swaps.quiesces.is_empty() {
            return false;
        }
        let now = self.now();
        self.swaps.quiesces.put_up_barrier(now);
        let mut quiesced = Vec::new();
        let (clients, slab) = (&self.clients, &self.slab);
        self.swaps.quiesces.all.retain(|quiescing| {
            let is_dirty_logged =
                slab.word_of(quiescing.frame).is_some_and(PageWord::is_dirty_logged);
            let out = quiescing.is_over(is_dirty_logged, clients.access_slots());
            if out {
                quiesced.push(RackEvent::Quiesced(quiescing.swap, quiescing.who));
            }
            !out
        });
        let any = !quiesced.is_empty();
        self.swaps.inputs.extend(quiesced);
        any
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::PageEvent;
    use rackpool_shm::access::PageWordRef;
    use rackpool_sync::atomic::AtomicU64;

    use super::*;

    const FRAME: FrameId = FrameId(2);
    const SLOTS: [&AccessSlot; 0] = [];

    fn quiescing(who: Quiesce, barrier_at: Option<Instant>) -> Quiescing {
        let (swap, frame, page) = (SwapId(1), FRAME, PageId(3));
        Quiescing { swap, frame, page, who, clean: true, barrier_at }
    }

    /// Returns how many entries are over.
    fn over(quiesces: &Quiesces) -> usize {
        quiesces.all.iter().filter(|quiescing| quiescing.is_over(false, SLOTS)).count()
    }

    #[test]
    fn nobody_of_this_rack_counts_as_out_before_the_barrier() {
        let now = Instant::now();
        let everyone = quiescing(Quiesce::Everyone, Some(now + LATER));
        let mut quiesces = Quiesces { all: vec![everyone] };
        quiesces.put_up_barrier(now);
        assert_eq!(over(&quiesces), 0);
        quiesces.put_up_barrier(now + LATER);
        assert_eq!(over(&quiesces), 1);
    }

    #[test]
    fn holders_of_leases_are_out_without_a_barrier_when_no_lease_is() {
        let mut quiesces = Quiesces { all: vec![quiescing(Quiesce::Holders, None)] };
        assert_eq!(over(&quiesces), 1);
        quiesces.all[0].clean = false;
        assert_eq!(over(&quiesces), 0);
    }

    #[test]
    fn who_notes_what_he_writes_may_stay_in_a_frozen_page_and_not_in_a_closed_one() {
        let live = PageWord::free(PageId(3)).apply(PageEvent::Allocated).unwrap();
        let dirty_logged =
            live.apply(PageEvent::Frozen).unwrap().apply(PageEvent::DirtyLogged).unwrap();
        let (slot, word) = (AccessSlot::new(), AtomicU64::new(dirty_logged.raw()));
        let guard = slot.enter_dirty_logged(FRAME, PageWordRef::new(&word), dirty_logged).unwrap();
        let [freeze, close] =
            [Quiesce::Writers, Quiesce::DirtyLoggers].map(|who| quiescing(who, None));
        assert!(freeze.is_over(true, [&slot]));
        assert!(!freeze.is_over(false, [&slot]), "he has entered during an earlier swap");
        assert!(!close.is_over(true, [&slot]) && !close.is_over(false, [&slot]));
        drop(guard);
        assert!(freeze.is_over(false, [&slot]) && close.is_over(false, [&slot]));
    }

    #[test]
    fn one_barrier_is_enough_for_all() {
        let now = Instant::now();
        let everyone = quiescing(Quiesce::Everyone, Some(now + LATER));
        let mut quiesces = Quiesces { all: vec![everyone, quiescing(Quiesce::Writers, Some(now))] };
        assert_eq!(over(&quiesces), 0);
        quiesces.put_up_barrier(now);
        assert_eq!(over(&quiesces), 2);
    }
}
