//! The data plane one step at a time, with a clock of the caller's.

use std::time::Instant;

use rackpool_model::{GlobalAddr, PageId};
use rackpool_proto::lease::Users;

use super::{DataPlane, get};

impl DataPlane {
    /// One round of the poll loop, in which it is `now`.
    pub(crate) fn step(&mut self, now: Instant) -> anyhow::Result<()> {
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

    /// The time, as far as the caller of [`Self::step`] says.
    pub(super) fn now(&self) -> Instant {
        self.clock.unwrap_or_else(Instant::now)
    }

    /// A page is needed, or not any more.
    pub(crate) fn need(&mut self, page: PageId, is_needed: bool) -> anyhow::Result<()> {
        if is_needed { self.page_needed(page, Users::Everyone) } else { self.page_spared(page) }
    }

    /// A page's home has said that the page stays there, and is read there too.
    pub(crate) fn want_copy(&mut self, page: PageId) -> anyhow::Result<()> {
        self.copy_wanted(page)
    }

    /// Frames without a page, bytes in objects in use, and whether pages are leaving.
    pub(crate) fn memory_measurements(&self) -> (u32, u64, bool) {
        (self.slab.free_frames(), self.slab.allocated_bytes(), self.slab.is_leaving())
    }

    /// How many frames without a page others are told of.
    pub(crate) fn published_free_frames(&self) -> u64 {
        get(&self.metrics.free_frames)
    }

    /// Whether the address is an object of this rack in use.
    pub(crate) fn has_object(&self, addr: GlobalAddr) -> bool {
        self.slab.is_allocated(addr)
    }
}
