//! Copies of other racks' pages in this rack.

use std::time::Instant;

use rackpool_fabric::FabricError;
use rackpool_model::{FrameId, PageId};
use rackpool_proto::Time;
use rackpool_proto::lease::{Lease, LeaseKind};
use rackpool_proto::rack::RackEvent;
use rackpool_proto::share::CopyId;
use rackpool_wire::history::PageHistoryEvent;

use crate::data_plane::DataPlane;
use crate::data_plane::command::count;
use crate::data_plane::error::Result;
use crate::data_plane::leases::{endpoint_of, token};
use crate::data_plane::page_copy_chunks::Pieces;
use crate::data_plane::transfer_number::TransferUser;

/// A copy in progress.
#[derive(Debug)]
pub(super) struct Reading {
    page: PageId,
    pub(super) pieces: Pieces,
}

/// Returns how many of a rack's frames copies leave free. Copies are dropped when programs leave
/// fewer than half of this number free.
pub(super) const fn frames_that_stay(frames: u32) -> usize {
    let eighth = (frames / 8) as usize;
    if eighth < 4 { 4 } else { eighth }
}

impl DataPlane {
    /// Drops copies, because other uses need their frames.
    pub(in crate::data_plane) fn drop_copies(&mut self) -> Result<()> {
        if self.machine.copies().is_empty() {
            return Ok(());
        }
        self.machine.handle(RackEvent::FramesNeeded);
        self.run_machine()
    }

    /// Returns true if copies are being made into frames that would otherwise be free.
    pub(in crate::data_plane) fn is_copying(&self) -> bool {
        !self.sharing.reading.is_empty()
    }

    /// Returns the frames without a copy to other uses.
    pub(in crate::data_plane) fn end_loans(&mut self) {
        let copies = self.machine.copies();
        let unused = |frame: &FrameId| copies.uses(*frame).is_none();
        for frame in self.slab.borrowed().filter(unused).collect::<Vec<_>>() {
            self.slab.end_loan(frame);
        }
    }

    pub(in crate::data_plane) fn publish_replica(
        &mut self,
        now: Instant,
        page: PageId,
        ours: FrameId,
        copy: CopyId,
        until: Time,
    ) -> Result<()> {
        let until_ns = self.sharing.start_ns.saturating_add(until.as_nanos());
        let metadata = std::sync::Arc::clone(&self.rack.metadata);
        let published = metadata.published(ours)?;
        if published.published().is_none() {
            self.sharing.pages.insert(ours, page);
            self.remember_event(now, page, PageHistoryEvent::Copied);
        }
        published.show(copy.0, until_ns);
        Ok(())
    }

    pub(in crate::data_plane) fn hide_replica(
        &mut self,
        now: Instant,
        ours: FrameId,
    ) -> Result<()> {
        self.rack.metadata.published(ours)?.hide();
        if let Some(page) = self.sharing.pages.remove(&ours) {
            self.remember_event(now, page, PageHistoryEvent::CopyGone);
        }
        Ok(())
    }

    /// Begins a copy. The machine has begun the operation under this lease.
    pub(in crate::data_plane) fn begin_replica(
        &mut self,
        now: Instant,
        page: PageId,
        lease: &Lease,
        ours: FrameId,
    ) {
        if self.slab.borrow(ours) && self.post_reading(page, lease, ours) {
            self.copied_bytes(now);
        } else {
            let (endpoint, whole) = (lease.endpoint, false);
            self.machine.handle(RackEvent::ReplicaCopied { page, endpoint, whole });
        }
    }

    /// Posts the first chunks. Returns false if none was posted, because the endpoint is ending.
    fn post_reading(&mut self, page: PageId, lease: &Lease, ours: FrameId) -> bool {
        let bytes = self.rack.geometry.page_size.bytes();
        let endpoint = endpoint_of(lease.endpoint);
        let id = self.transfer_numbers.next(TransferUser::Replica);
        let mut pieces = Pieces::new(endpoint, self.sharing.frames, lease.frame, ours, bytes);
        self.post_pieces(id, &mut pieces);
        let posted = pieces.outcome().is_none();
        if posted {
            self.sharing.reading.insert(id, Reading { page, pieces });
        }
        posted
    }

    /// A chunk of a copy has ended.
    pub(in crate::data_plane) fn copy_read(&mut self, id: u64, result: Result<(), FabricError>) {
        let Some(mut reading) = self.sharing.reading.remove(&id) else { return };
        let lease = self.machine.lease(self.at(self.now()), reading.page);
        let good = lease.is_some_and(|lease| matches!(lease.kind, LeaseKind::Share(_)));
        // The rest of a copy that can't be published any more is not needed.
        self.piece_ended(id, &mut reading.pieces, result.is_ok() && good);
        let (page, endpoint) = (reading.page, reading.pieces.endpoint);
        let Some(whole) = reading.pieces.outcome() else {
            self.sharing.reading.insert(id, reading);
            return;
        };
        if whole {
            count(&self.metrics.sharing.made);
        }
        let endpoint = token(endpoint);
        self.machine.handle(RackEvent::ReplicaCopied { page, endpoint, whole });
    }
}
