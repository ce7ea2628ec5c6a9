//! Sharing of pages that other racks only read: executes the machines of `proto::share`. The safety
//! argument is in `docs/design/sharing.md`.

mod copies;
mod home;
mod metrics;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use rackpool_fabric::RegionId;
use rackpool_model::{FrameId, Incarnation, PageId};
use rackpool_proto::Time;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::share::{
    Copies, CopiesEvent, CopyId, ShareEvent, ShareHome, ShareRules, SharingId,
};
use rackpool_shm::OutsideMapping;
use rackpool_shm::metadata::RackMetadata;
use rackpool_shm::window::monotonic_ns;

use super::DataPlane;
use super::stalled_transfers::Progress;
use crate::slab::Slab;
use copies::Reading;
use home::SharingQuiesce;

pub(super) use copies::is_kept;
pub(crate) use metrics::ShareMetrics;

/// Larger pages are not shared: over a slow fabric a copy would not arrive within its lease, and a
/// writer that revokes the copies waits for it.
const LARGEST_SHARED: u64 = 16 << 20;

/// The pages that this rack shares, and the copies that it keeps.
#[derive(Debug)]
pub(super) struct Sharing {
    enabled: bool,
    /// The zero of the machines' clock, in nanoseconds of the clock that clients read, or a little
    /// earlier.
    start_ns: u64,
    home: ShareHome,
    /// The home machine's deadline.
    home_due: Option<Time>,
    quiesces: Vec<SharingQuiesce>,
    /// Set when a page word was changed since the last heavy barrier.
    changed: bool,
    /// Pages that a thread waits to write.
    needed: BTreeSet<PageId>,
    copies: Copies,
    /// Events that the machine of copies has not handled yet.
    inputs: VecDeque<CopiesEvent>,
    /// Set while the machine's actions are executed: new events are handled afterwards.
    runs: bool,
    /// The pages whose copies are published, by frame.
    pages: BTreeMap<FrameId, PageId>,
    /// Copies in progress, by transfer number.
    reading: BTreeMap<u64, Reading>,
    next: u64,
    /// When a lease for a copy was last requested.
    asked: BTreeMap<PageId, Instant>,
    /// Pages whose copies clients have read since the last check.
    used: BTreeSet<PageId>,
    /// The frames as a region of the fabric.
    frames: RegionId,
    /// Number of free frames that copies leave to other uses.
    stay: usize,
}

impl Sharing {
    /// Creates the state without sharings and copies. Sharings of an earlier daemon are revoked,
    /// and its published copies are hidden, because their frames can be used for anything from now
    /// on. New memory has no published copies; its entries are not read, so that they take no
    /// memory.
    pub(super) fn new(
        start: Instant,
        enabled: bool,
        life: Incarnation,
        metadata: &RackMetadata,
        slab: &Slab,
        frames: RegionId,
        restarted: bool,
    ) -> Result<Self, OutsideMapping> {
        let earlier = if restarted { metadata.frames() } else { 0 };
        for frame in 0..earlier {
            let published = metadata.published(FrameId(frame))?;
            if published.published().is_some() {
                published.hide();
            }
        }
        // In this order the start can only be too early, which is safe.
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

    /// Ends the sharing of a page: a thread waits to write it, or for another change that a shared
    /// page does not allow.
    pub(super) fn need(&mut self, page: PageId) {
        if !self.home.is_empty() {
            self.needed.insert(page);
        }
    }

    /// A client has read the contents of a free frame. Returns the page if it is a published copy.
    pub(super) fn frame_read(&mut self, frame: FrameId) -> Option<PageId> {
        let page = *self.pages.get(&frame)?;
        self.used.insert(page);
        Some(page)
    }

    /// Returns true if a copy of the page is kept or wanted.
    pub(super) fn wants_copy(&self, page: PageId) -> bool {
        self.copies.is_wanted(page)
    }

    /// Returns the copies in progress, the oldest first.
    pub(super) fn copies_on_their_way(&self) -> impl Iterator<Item = Progress> {
        self.reading.iter().map(|(id, reading)| reading.pieces.progress(*id))
    }

    /// Returns true if anything has to be done at a later time without an event.
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
    /// Returns true if the page must not be changed now: it moves, or is shared. A sharing is
    /// ended.
    pub(super) fn must_wait(&mut self, page: PageId) -> bool {
        let waits = self.is_moving(page);
        if waits {
            self.sharing.need(page);
        }
        waits
    }

    /// Executes the home machine's first actions.
    pub(super) fn begin_sharing(&mut self) -> anyhow::Result<()> {
        self.run_home()
    }

    /// Does what is due.
    pub(super) fn drive_sharing(&mut self, now: Instant) -> anyhow::Result<()> {
        for page in std::mem::take(&mut self.sharing.needed) {
            self.tell_shares(ShareEvent::Needed(page))?;
        }
        self.look_at_share_quiesces()?;
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
