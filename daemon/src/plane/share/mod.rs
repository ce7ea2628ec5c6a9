//! Pages that other racks only read: the shells of `proto::share`. What makes it safe is in
//! `docs/design/sharing.md`.

mod copies;
mod home;
mod metrics;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use rackpool_fabric::RegionId;
use rackpool_model::{FrameId, Incarnation, PageId};
use rackpool_proto::Time;
use rackpool_proto::planted::Sound;
use rackpool_proto::share::{
    Copies, CopiesEvent, CopyId, HomeEvent, ShareHome, ShareRules, SharingId,
};
use rackpool_shm::OutOfBounds;
use rackpool_shm::metadata::RackMetadata;
use rackpool_shm::window::monotonic_ns;

use super::DataPlane;
use super::stalls::Progress;
use crate::slab::Slab;
use copies::Reading;
use home::Quiescing;

pub(super) use copies::is_kept;
pub(crate) use metrics::ShareMetrics;

/// Larger pages are not shared: a copy would not come within its lease over a slow fabric, and who
/// calls everybody back waits until it has.
const LARGEST_SHARED: u64 = 16 << 20;

/// What this rack shares, and the copies that it keeps.
#[derive(Debug)]
pub(super) struct Sharing {
    enabled: bool,
    /// The start of the machines' clock, in nanoseconds of the clock that clients look at, or a
    /// little earlier.
    start_ns: u64,
    home: ShareHome,
    /// When the home's machine wants to be woken.
    home_due: Option<Time>,
    quiesces: Vec<Quiescing>,
    /// A word was changed since the last barrier.
    changed: bool,
    /// Pages that somebody wants to write.
    needed: BTreeSet<PageId>,
    copies: Copies,
    /// What the machine of copies has not been told yet.
    inputs: VecDeque<CopiesEvent>,
    /// Its actions are being carried out: what happens meanwhile is told afterwards.
    runs: bool,
    /// Whose copies are published.
    pages: BTreeMap<FrameId, PageId>,
    /// Copies on their way, by the numbers of their transfers.
    reading: BTreeMap<u64, Reading>,
    next: u64,
    /// When a lease that is good for a copy was asked for last.
    asked: BTreeMap<PageId, Instant>,
    /// Pages whose copies clients have read since this was looked at.
    used: BTreeSet<PageId>,
    /// The frames as the fabric knows them.
    frames: RegionId,
    /// Free frames that are left to others.
    stay: usize,
}

impl Sharing {
    /// Nothing is shared or kept; what an earlier daemon shared is called back, and its copies are
    /// hidden: their frames may be given to anybody from now on. In a new memory nobody has
    /// published any, and what is not looked at there takes no memory.
    pub(super) fn new(
        start: Instant,
        enabled: bool,
        life: Incarnation,
        metadata: &RackMetadata,
        slab: &Slab,
        frames: RegionId,
        restarted: bool,
    ) -> Result<Self, OutOfBounds> {
        let earlier = if restarted { metadata.frames() } else { 0 };
        for frame in 0..earlier {
            let published = metadata.published(FrameId(frame))?;
            if published.published().is_some() {
                published.hide();
            }
        }
        // In this order: too early is safe.
        let clock = monotonic_ns();
        let since = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let rules = ShareRules::DEFAULT;
        let first = SharingId(life.0);
        Ok(Self {
            enabled: enabled && metadata.layout().page_size().bytes() <= LARGEST_SHARED,
            start_ns: clock.saturating_sub(since),
            home: ShareHome::restore(Time::ZERO, rules, first, slab.shared_pages(), Sound),
            home_due: None,
            quiesces: Vec::new(),
            changed: false,
            needed: BTreeSet::new(),
            // Never 0.
            copies: Copies::new(Time::ZERO, rules, CopyId(life.0.max(1)), Sound),
            inputs: VecDeque::new(),
            runs: false,
            pages: BTreeMap::new(),
            reading: BTreeMap::new(),
            next: 0,
            asked: BTreeMap::new(),
            used: BTreeSet::new(),
            frames,
            stay: copies::frames_that_stay(metadata.frames()),
        })
    }

    /// Somebody wants to write a page, or to do something else that can't be done while it is
    /// shared.
    pub(super) fn need(&mut self, page: PageId) {
        if !self.home.is_empty() {
            self.needed.insert(page);
        }
    }

    /// A client has read what lies in a frame that is free: perhaps a copy.
    pub(super) fn frame_read(&mut self, frame: FrameId) -> Option<PageId> {
        let page = *self.pages.get(&frame)?;
        self.used.insert(page);
        Some(page)
    }

    /// Whether a copy of the page is kept, or wanted.
    pub(super) fn wants_copy(&self, page: PageId) -> bool {
        self.copies.is_wanted(page)
    }

    /// The copies that have not ended, the oldest first.
    pub(super) fn copies_on_their_way(&self) -> impl Iterator<Item = Progress> {
        self.reading.iter().map(|(id, reading)| reading.pieces.progress(*id))
    }

    /// Whether something happens by itself with time.
    pub(super) fn has_deadlines(&self) -> bool {
        !self.quiesces.is_empty()
            || !self.needed.is_empty()
            || !self.used.is_empty()
            || !self.inputs.is_empty()
            || self.home_due.is_some()
            || self.copies.deadline().is_some()
    }
}

impl DataPlane {
    /// Whether the page has to stay as it is: it moves, or is shared and will not be any more
    /// soon.
    pub(super) fn must_wait(&mut self, page: PageId) -> bool {
        let waits = self.is_moving(page);
        if waits {
            self.sharing.need(page);
        }
        waits
    }

    /// What the machine of the home left to do at the start.
    pub(super) fn begin_sharing(&mut self) -> anyhow::Result<()> {
        self.run_home()
    }

    /// Does what is due with time.
    pub(super) fn drive_sharing(&mut self, now: Instant) -> anyhow::Result<()> {
        for page in std::mem::take(&mut self.sharing.needed) {
            self.tell_shares(HomeEvent::Needed(page))?;
        }
        self.look_at_share_drains()?;
        let at = self.leases.at(now);
        self.end_idle_sharings(at)?;
        for page in std::mem::take(&mut self.sharing.used) {
            self.leases.used_by_copy(now, page);
        }
        self.do_for_holder()?;
        if self.sharing.copies.deadline().is_some_and(|due| at >= due) {
            self.sharing.inputs.push_back(CopiesEvent::DeadlinePassed);
        }
        if !self.sharing.copies.is_empty() && self.slab.unborrowed_frames() < self.sharing.stay / 2
        {
            self.drop_copies()?;
        }
        self.run_copies()
    }
}

#[cfg(test)]
mod tests {
    use rackpool_proto::lease::LeaseRules;

    use super::*;

    #[test]
    fn the_largest_page_that_is_shared_is_copied_within_a_lease_over_a_slow_fabric() {
        // 1 Gbit/s.
        let copy_us = LARGEST_SHARED * 8 / 1000;
        let lease = LeaseRules::DEFAULT.copy();
        assert!(u128::from(copy_us) < lease.as_micros() * 3 / 4, "{copy_us} us of {lease:?}");
    }
}
