//! Runs the data plane one step at a time, with the caller's clock. For tests.

use std::time::Instant;

use rackpool_model::{GlobalAddr, PageId};
use rackpool_proto::rack::RackEvent;

use crate::data_plane::error::Result;
use crate::data_plane::{DataPlane, get};

/// What a rack's memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMetrics {
    /// The number of free frames.
    pub free_frames: u32,
    /// The bytes in allocated objects.
    pub allocated_bytes: u64,
    /// Whether pages are leaving.
    pub is_leaving: bool,
}

impl DataPlane {
    /// Runs one round of the poll loop at the time `now`.
    pub(crate) fn step(&mut self, now: Instant) -> Result<()> {
        self.clock = Some(now);
        self.take_commands()?;
        self.poll_fabric()?;
        if self.has_deadlines() {
            self.tick_at(now)?;
        }
        self.poll_clients(1)?;
        self.exchange_with_peers()?;
        self.cut_off_stalled_at(now);
        self.collect_heat_at(now);
        Ok(())
    }

    /// Returns the time of the last [`Self::step`].
    pub(in crate::data_plane) fn now(&self) -> Instant {
        self.clock.unwrap_or_else(Instant::now)
    }

    /// Requires that no other rack has a lease of the page, or ends that.
    pub(crate) fn require_page(&mut self, page: PageId, is_needed: bool) -> Result<()> {
        self.machine.require_page(self.at(self.now()), page, is_needed);
        self.run_machine()
    }

    /// Handles the answer of a page's home that the page stays there because it is read there too.
    pub(crate) fn want_copy(&mut self, page: PageId) -> Result<()> {
        self.machine.handle(RackEvent::ReplicaWanted(page));
        self.run_machine()
    }

    /// Returns what the rack's memory holds.
    pub(crate) fn memory_metrics(&self) -> MemoryMetrics {
        MemoryMetrics {
            free_frames: self.slab.free_frames(),
            allocated_bytes: self.slab.allocated_bytes(),
            is_leaving: self.slab.is_leaving(),
        }
    }

    /// Returns the number of free frames that the daemon publishes.
    pub(crate) fn published_free_frames(&self) -> u64 {
        get(&self.metrics.free_frames)
    }

    /// Returns true if the address is an allocated object of this rack.
    pub(crate) fn has_object(&self, addr: GlobalAddr) -> bool {
        self.slab.is_allocated(addr)
    }
}
