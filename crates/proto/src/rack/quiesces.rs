//! Frames whose users must leave before the next step of a swap, of a sharing, or of the release of
//! a page: first other racks return their leases, then this rack's clients leave.

use alloc::vec::Vec;

use rackpool_model::{FrameId, Occupants, PageId, PageWord};
use rackpool_wire::swap::SwapId;

use super::{Queued, RackAction, RackMachine, RackMemory};
use crate::Time;
use crate::lease::{HomeEvent, Users};
use crate::lock::LockHome;
use crate::planted_bugs::{Bug, Bugs};
use crate::share::ShareEvent;
use crate::swap::{PeerEvent, Quiesce};

/// All frames that are being quiesced.
#[derive(Debug, Default)]
pub(super) struct Quiesces {
    all: Vec<Quiescing>,
}

/// A frame that is being quiesced.
#[derive(Clone, Copy, Debug)]
struct Quiescing {
    whose: Whose,
    frame: FrameId,
    page: PageId,
    /// The leases that must be returned; `None` once they are.
    leases: Option<Users>,
    /// When the heavy barrier is due that must precede the scan of the access slots; `None` after
    /// it.
    barrier_at: Option<Time>,
}

/// The machine that waits for the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Swap(SwapId, Quiesce),
    Share,
    Freed,
}

impl Whose {
    /// Returns the users of this rack that must leave; `None`: clients may stay.
    fn occupants(self, word: Option<PageWord>, bugs: impl Bugs) -> Option<Occupants> {
        match self {
            // Slots that log are ignored: their threads log their writes, or are about to.
            Self::Swap(_, Quiesce::Writers)
                if word.is_some_and(PageWord::is_dirty_logged)
                    || bugs.has(Bug::OverlookDirtyLoggers) =>
            {
                Some(Occupants::NotDirtyLogged)
            }
            Self::Swap(_, Quiesce::Writers | Quiesce::DirtyLoggers) | Self::Share => {
                Some(Occupants::Writers)
            }
            // The bytes that clients of this rack read stay until they have left.
            Self::Swap(_, Quiesce::Holders) => None,
            Self::Swap(_, Quiesce::Everyone) | Self::Freed => Some(Occupants::Everyone),
        }
    }
}

impl Quiesces {
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns when the next barrier is due.
    pub(super) fn barrier_at(&self) -> Option<Time> {
        self.all.iter().filter_map(|quiescing| quiescing.barrier_at).min()
    }

    /// No rack has such a lease of the page any more.
    pub(super) fn clean(&mut self, page: PageId, users: Users) {
        for quiescing in self.all.iter_mut().filter(|quiescing| quiescing.page == page) {
            quiescing.leases = quiescing.leases.filter(|awaited| *awaited > users);
        }
    }

    fn cancel(&mut self, whose: impl Fn(&Whose, PageId) -> bool) {
        self.all.retain(|quiescing| !whose(&quiescing.whose, quiescing.page));
    }
}

impl Quiescing {
    fn is_over<B: Bugs>(&self, memory: &impl RackMemory, locks: &LockHome<B>, bugs: B) -> bool {
        let occupants = self.whose.occupants(memory.word(self.frame), bugs);
        // Holders may write a page that moves. A lock that is held for long ends the swap.
        let awaits_locks = matches!(self.whose, Whose::Swap(_, Quiesce::Writers) | Whose::Freed);
        self.leases.is_none()
            && occupants.is_none_or(|occupants| {
                self.barrier_at.is_none() && memory.is_quiesced(self.frame, occupants)
            })
            && !(awaits_locks && locks.is_held(self.page, memory))
    }
}

impl<B: Bugs> RackMachine<B> {
    pub(super) fn quiesce_for_swap(
        &mut self,
        now: Time,
        swap: SwapId,
        frame: FrameId,
        page: PageId,
        who: Quiesce,
    ) {
        let (leases, barrier_at) = match who {
            Quiesce::Writers => {
                if !self.bugs.has(Bug::ForgetWhoWritesStill) {
                    self.actions.push_back(RackAction::NoteLastWrites(frame));
                }
                (Some(Users::Writers), Some(now))
            }
            // These writers execute a fence themselves.
            Quiesce::DirtyLoggers => (None, None),
            // Only leases are waited for, so no access slot is read.
            Quiesce::Holders => (Some(Users::Everyone), None),
            // This is the last step: the leases were returned before.
            Quiesce::Everyone => (None, Some(now.after(self.rules.barrier_delay))),
        };
        self.quiesce(
            now,
            Quiescing { whose: Whose::Swap(swap, who), frame, page, leases, barrier_at },
        );
    }

    pub(super) fn quiesce_to_share(&mut self, now: Time, frame: FrameId, page: PageId) {
        let (whose, leases) = (Whose::Share, Some(Users::Writers));
        self.quiesce(now, Quiescing { whose, frame, page, leases, barrier_at: Some(now) });
    }

    pub(super) fn quiesce_to_free(&mut self, now: Time, frame: FrameId, page: PageId) {
        let leases = Some(Users::Everyone).filter(|_| !self.bugs.has(Bug::FreeUnderLeases));
        let whose = Whose::Freed;
        self.quiesce(now, Quiescing { whose, frame, page, leases, barrier_at: Some(now) });
    }

    fn quiesce(&mut self, now: Time, quiescing: Quiescing) {
        self.quiesces.all.push(quiescing);
        if let Some(users) = quiescing.leases {
            self.tell_home(now, HomeEvent::PageNeeded(quiescing.page, users));
        }
    }

    pub(super) fn cancel_swap_quiesce(&mut self, now: Time, swap: SwapId, page: PageId) {
        self.quiesces.cancel(|whose, _| matches!(whose, Whose::Swap(of, _) if *of == swap));
        self.tell_home(now, HomeEvent::PageSpared(page));
    }

    pub(super) fn cancel_share_quiesce(&mut self, now: Time, page: PageId) {
        self.quiesces.cancel(|whose, of| *whose == Whose::Share && of == page);
        self.tell_home(now, HomeEvent::PageSpared(page));
    }

    /// Asks for a barrier that is due, and tells the machines which frames are quiesced. Returns
    /// true if there was any of it.
    pub(super) fn look_at_quiesces(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        if self.quiesces.is_empty() {
            return false;
        }
        // One barrier serves all: the words of all frames were stored before it.
        if self.quiesces.barrier_at().is_some_and(|at| at <= now) {
            self.quiesces.all.iter_mut().for_each(|quiescing| quiescing.barrier_at = None);
            if !self.bugs.has(Bug::SkipBarrier) {
                self.actions.push_back(RackAction::Barrier);
            }
            return true;
        }
        let (bugs, locks) = (self.bugs, &self.locks);
        let is_over = |quiescing: &mut Quiescing| quiescing.is_over(memory, locks, bugs);
        let over = self.quiesces.all.extract_if(.., is_over);
        let mut any = false;
        for Quiescing { whose, frame, page, .. } in over {
            any = true;
            match whose {
                Whose::Swap(swap, who) => {
                    self.queue.push_back(Queued::Swap(PeerEvent::Quiesced(swap, who)));
                }
                Whose::Share => {
                    self.queue.push_back(Queued::Shares(ShareEvent::Quiesced(page)));
                }
                Whose::Freed => {
                    self.heats.freed(page);
                    self.actions.push_back(RackAction::FreeFrame { frame, page });
                }
            }
        }
        any
    }

    /// Returns the number of frames that are being quiesced.
    #[must_use]
    pub const fn quiescing(&self) -> usize {
        self.quiesces.all.len()
    }

    /// Returns true if a frame is quiesced, which the next poll reports.
    #[must_use]
    pub fn has_quiesced(&self, memory: &impl RackMemory) -> bool {
        self.quiesces.all.iter().any(|quiescing| quiescing.is_over(memory, &self.locks, self.bugs))
    }
}
