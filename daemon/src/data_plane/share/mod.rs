//! Sharing of pages that other racks only read, and replicas of their pages here. The rules are
//! those of the rack's machine; the safety argument is in `docs/design/sharing.md`.

mod copies;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_fabric::RegionId;
use rackpool_model::{FrameId, PageId};
use rackpool_proto::rack::RackEvent;
use rackpool_shm::OutsideMapping;
use rackpool_shm::metadata::RackMetadata;
use rackpool_shm::window::monotonic_ns;

use super::DataPlane;
use super::stalled_transfers::Progress;
use copies::Reading;

pub(crate) use metrics::ShareMetrics;

/// Larger pages are not shared: over a slow fabric a copy would not arrive within its lease, and a
/// writer that revokes the copies waits for it.
const LARGEST_SHARED: u64 = 16 << 20;

/// Maximum number of pages whose sharing is ended for one allocation: each has room for many
/// objects.
const UNSHARED_AT_ONCE: usize = 4;

/// The copies that this rack keeps.
#[derive(Debug)]
pub(super) struct Sharing {
    /// The zero of the machine's clock, in nanoseconds of the clock that clients read, or a little
    /// earlier.
    start_ns: u64,
    /// The pages whose copies are published, by frame.
    pages: BTreeMap<FrameId, PageId>,
    /// Copies in progress, by transfer number.
    reading: BTreeMap<u64, Reading>,
    /// Pages whose copies clients have read since the last check.
    used: BTreeSet<PageId>,
    /// The frames as a region of the fabric.
    frames: RegionId,
    /// Number of free frames that copies leave to other uses.
    pub(super) stay: usize,
}

/// Returns true if pages of this size are shared.
pub(super) fn shares_pages_of(metadata: &RackMetadata) -> bool {
    metadata.layout().page_size().bytes() <= LARGEST_SHARED
}

impl Sharing {
    /// Creates the state without copies. Published copies of an earlier daemon are hidden, because
    /// their frames can be used for anything from now on. New memory has no published copies; its
    /// entries are not read, so that they take no memory.
    pub(super) fn new(
        start: Instant,
        metadata: &RackMetadata,
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
        Ok(Self {
            start_ns: clock.saturating_sub(since),
            pages: BTreeMap::new(),
            reading: BTreeMap::new(),
            used: BTreeSet::new(),
            frames,
            stay: copies::frames_that_stay(metadata.frames()),
        })
    }

    /// A client has read the contents of a free frame. Returns the page if it is a published copy.
    pub(super) fn frame_read(&mut self, frame: FrameId) -> Option<PageId> {
        let page = *self.pages.get(&frame)?;
        self.used.insert(page);
        Some(page)
    }

    /// Returns the copies in progress, the oldest first.
    pub(super) fn copies_on_their_way(&self) -> impl Iterator<Item = Progress> {
        self.reading.iter().map(|(id, reading)| reading.pieces.progress(*id))
    }

    /// Returns true if clients have read copies since the last check.
    pub(super) fn has_deadlines(&self) -> bool {
        !self.used.is_empty()
    }
}

impl DataPlane {
    /// Ends the sharing of a page: a thread waits to write it, or for another change that a shared
    /// page does not allow.
    pub(super) fn need(&mut self, page: PageId) {
        if !self.machine.shares().is_empty() {
            self.machine.handle(RackEvent::WriteNeeded(page));
        }
    }

    /// No object of `bytes` bytes is free: ends the sharing of pages that have room for some.
    /// Returns true if any sharing is ending.
    pub(super) fn unshare_for(&mut self, bytes: u64) -> bool {
        let shared = self.machine.shares().pages();
        let with_room = shared.filter(|page| self.slab.has_room(*page, bytes));
        let pages: Vec<PageId> = with_room.take(UNSHARED_AT_ONCE).collect();
        for page in pages {
            self.need(page);
        }
        self.machine.is_unsharing()
    }

    /// Counts the copies that clients have read as uses of their leases.
    pub(super) fn drive_sharing(&mut self, now: Instant) {
        for page in std::mem::take(&mut self.sharing.used) {
            let at = self.at(now);
            self.machine.used_by_copy(at, page);
        }
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
