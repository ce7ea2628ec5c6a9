//! Copies of other racks' pages in this rack.

use std::time::{Duration, Instant};

use rackpool_fabric::FabricError;
use rackpool_model::{Access, FrameId, PageId};
use rackpool_proto::lease::{Lease, LeaseKind, TimedLease};
use rackpool_proto::share::{CopiesAction, CopiesEvent, FoundCopy, SharingId};
use rackpool_wire::history::PageHistoryEvent;
use rackpool_wire::rack::RackAnswer;

use crate::data_plane::DataPlane;
use crate::data_plane::command::{count, set};
use crate::data_plane::leases::endpoint_of;
use crate::data_plane::page_copy_chunks::Pieces;

/// Marks transfer numbers that belong to copies.
const KEPT: u64 = 1 << 62;
/// A lease for a copy is requested at most once in this time.
const ASK_AGAIN: Duration = Duration::from_millis(2);

/// A copy in progress.
#[derive(Debug)]
pub(super) struct Reading {
    page: PageId,
    pub(super) pieces: Pieces,
}

/// Returns true if the transfer number belongs to a copy.
pub(in crate::data_plane) const fn is_kept(id: u64) -> bool {
    id & KEPT != 0
}

/// Returns how many of a rack's frames copies leave free. Copies are dropped when programs leave
/// fewer than half of this number free.
pub(super) const fn frames_that_stay(frames: u32) -> usize {
    let eighth = (frames / 8) as usize;
    if eighth < 4 { 4 } else { eighth }
}

impl DataPlane {
    /// A page of another rack is read often and its home does not give it away: a copy is wanted.
    pub(in crate::data_plane) fn copy_wanted(&mut self, page: PageId) -> anyhow::Result<()> {
        if !self.sharing.enabled || !self.swaps.is_hardly_written(page) {
            return Ok(());
        }
        self.sharing.inputs.push_back(CopiesEvent::Wanted(page));
        self.run_copies()?;
        self.ask_for_copy(page)
    }

    /// Requests a lease that permits a copy, if a copy is wanted and the rack has no such lease.
    pub(in crate::data_plane) fn ask_for_copy(&mut self, page: PageId) -> anyhow::Result<()> {
        // The page may have moved here since it was read remotely.
        if !self.sharing.wants_copy(page) || self.slab.lookup(page).is_some() {
            return Ok(());
        }
        let now = self.cached_now();
        let lease = self.leases.lease_until(now, page);
        let enough = lease.is_some_and(|found| matches!(found.lease.kind, LeaseKind::Share(_)));
        let recently = self.sharing.asked.get(&page).is_some_and(|at| now < *at + ASK_AGAIN);
        let home = self.leases.found(page).map(|found| found.home);
        let Some(home) = home.filter(|_| !enough && !recently) else { return Ok(()) };
        let copies = &self.sharing.copies;
        self.sharing.asked.retain(|page, _| copies.is_wanted(*page));
        self.sharing.asked.insert(page, now);
        self.renew(page, home)
    }

    /// Returns the answer for a client that reads a page of which a copy is published.
    pub(in crate::data_plane) fn copied(&self, now: Instant, page: PageId) -> Option<RackAnswer> {
        if self.sharing.copies.is_empty() {
            return None;
        }
        let FoundCopy { frame, copy } = self.sharing.copies.find(self.leases.at(now), page)?;
        let found = self.leases.found(page)?;
        let (home, usage) = (found.home, found.usage);
        Some(RackAnswer::Copied { home, usage, frame, copy: copy.0 })
    }

    /// Handles a new lease of a page: a copy may now be made, or published.
    pub(in crate::data_plane) fn keep(&mut self, page: PageId) -> anyhow::Result<()> {
        if !self.sharing.wants_copy(page) {
            return Ok(());
        }
        let now = self.now();
        let Some(found) = self.leases.lease_until(now, page) else { return Ok(()) };
        let TimedLease { lease, until } = found;
        let stay = self.sharing.stay;
        let spare = if self.may_copy(now) {
            let busy = |page| self.swap_offers(page);
            self.slab.frame_to_borrow(stay, &busy)
        } else {
            None
        };
        self.sharing.inputs.push_back(CopiesEvent::Leased { page, lease, until, spare });
        self.run_copies()
    }

    /// A page's home revokes leases. No client reads the copy any more when the revocation is
    /// answered.
    pub(in crate::data_plane) fn hide_copy(&mut self, page: PageId) -> anyhow::Result<()> {
        if self.sharing.copies.is_empty() {
            return Ok(());
        }
        let at = self.leases.at(self.now());
        // At once, even while other actions are being executed.
        self.sharing.copies.handle(at, CopiesEvent::Revoked(page));
        self.run_copies()?;
        while let Some(action) = self.sharing.copies.poll() {
            self.do_copies(action)?;
        }
        Ok(())
    }

    /// Drops copies, because other uses need their frames.
    pub(in crate::data_plane) fn drop_copies(&mut self) -> anyhow::Result<()> {
        let frames: Vec<FrameId> = self.slab.borrowed().collect();
        let idle = |frame: &FrameId| self.sharing.copies.uses(*frame) == Some(false);
        let taken: Vec<FrameId> = frames.into_iter().filter(idle).collect();
        self.sharing.inputs.extend(taken.into_iter().map(CopiesEvent::Taken));
        self.run_copies()
    }

    /// Returns true if copies are being made into frames that would otherwise be free.
    pub(in crate::data_plane) fn is_copying(&self) -> bool {
        !self.sharing.reading.is_empty()
    }

    /// Passes the waiting events to the machine and executes its actions.
    pub(super) fn run_copies(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.sharing.runs, true) {
            return Ok(());
        }
        let result = self.run_all_copies();
        self.sharing.runs = false;
        result
    }

    fn run_all_copies(&mut self) -> anyhow::Result<()> {
        let nothing = self.sharing.inputs.is_empty() && self.sharing.copies.is_empty();
        if nothing && self.slab.borrowed().next().is_none() {
            return Ok(());
        }
        loop {
            while let Some(action) = self.sharing.copies.poll() {
                self.do_copies(action)?;
            }
            let Some(event) = self.sharing.inputs.pop_front() else { break };
            let at = self.leases.at(self.now());
            self.sharing.copies.handle(at, event);
        }
        let copies = &self.sharing.copies;
        let unused = |frame: &FrameId| copies.uses(*frame).is_none();
        for frame in self.slab.borrowed().filter(unused).collect::<Vec<_>>() {
            self.slab.end_loan(frame);
        }
        set(&self.metrics.sharing.copies, self.sharing.copies.len() as u64);
        Ok(())
    }

    fn do_copies(&mut self, action: CopiesAction) -> anyhow::Result<()> {
        match action {
            CopiesAction::Copy { page, sharing, ours } => {
                if !self.begin_reading(page, sharing, ours)? {
                    let ended = CopiesEvent::Copied { page, whole: false };
                    self.sharing.inputs.push_back(ended);
                }
            }
            CopiesAction::Publish { ours, copy, until } => {
                let until_ns = self.sharing.start_ns.saturating_add(until.as_nanos());
                let metadata = std::sync::Arc::clone(&self.rack.metadata);
                let published = metadata.published(ours)?;
                if published.published().is_none()
                    && let Some(page) = self.sharing.copies.published_in(ours)
                {
                    self.sharing.pages.insert(ours, page);
                    let now = self.now();
                    self.swaps.remember_event(now, page, PageHistoryEvent::Copied);
                }
                published.show(copy.0, until_ns);
            }
            CopiesAction::Hide(ours) => {
                self.rack.metadata.published(ours)?.hide();
                if let Some(page) = self.sharing.pages.remove(&ours) {
                    let now = self.now();
                    self.swaps.remember_event(now, page, PageHistoryEvent::CopyGone);
                }
            }
        }
        Ok(())
    }

    /// Begins a copy. Returns false without a lease of this sharing.
    fn begin_reading(
        &mut self,
        page: PageId,
        sharing: SharingId,
        ours: FrameId,
    ) -> anyhow::Result<bool> {
        let now = self.now();
        if !self.slab.borrow(ours) {
            return Ok(false);
        }
        let Some(lease) = self.leases.begin(now, page, Access::Read) else { return Ok(false) };
        let endpoint = endpoint_of(lease.endpoint);
        if lease.kind != LeaseKind::Share(sharing) || !self.post_reading(page, &lease, ours) {
            self.operation_ended(page, endpoint, Access::Read)?;
            return Ok(false);
        }
        self.copied_bytes(now);
        Ok(true)
    }

    /// Posts the first chunks. Returns false if none was posted, because the endpoint is ending.
    fn post_reading(&mut self, page: PageId, lease: &Lease, ours: FrameId) -> bool {
        let bytes = self.rack.geometry.page_size.bytes();
        let endpoint = endpoint_of(lease.endpoint);
        self.sharing.next += 1;
        let id = KEPT | self.sharing.next;
        let mut pieces = Pieces::new(endpoint, self.sharing.frames, lease.frame, ours, bytes);
        self.post_pieces(id, &mut pieces);
        let posted = pieces.outcome().is_none();
        if posted {
            self.sharing.reading.insert(id, Reading { page, pieces });
        }
        posted
    }

    /// A chunk of a copy has ended.
    pub(in crate::data_plane) fn copy_read(
        &mut self,
        id: u64,
        result: Result<(), FabricError>,
    ) -> anyhow::Result<()> {
        let Some(mut reading) = self.sharing.reading.remove(&id) else { return Ok(()) };
        let lease = self.leases.lease_until(self.now(), reading.page);
        let good = lease.is_some_and(|found| matches!(found.lease.kind, LeaseKind::Share(_)));
        // The rest of a copy that can't be published any more is not needed.
        self.piece_ended(id, &mut reading.pieces, result.is_ok() && good);
        let (page, endpoint) = (reading.page, reading.pieces.endpoint);
        let Some(whole) = reading.pieces.outcome() else {
            self.sharing.reading.insert(id, reading);
            return Ok(());
        };
        if whole {
            count(&self.metrics.sharing.made);
        }
        self.sharing.inputs.push_back(CopiesEvent::Copied { page, whole });
        self.run_copies()?;
        self.operation_ended(page, endpoint, Access::Read)?;
        self.keep(page)
    }
}
