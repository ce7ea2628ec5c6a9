//! Allocations for clients: at once, after a wait for pages that are about to become free, or in
//! another rack.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, SizeClass};
use rackpool_ring::client_file::EXCHANGE;
use rackpool_ring::magazines::capacity;
use rackpool_shm::marks::ObjectHolder;
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::RackAnswer;

use super::DataPlane;
use super::clients::Caller;
use crate::data_plane::error::Result;
use crate::slab::Extent;

/// How long an allocation waits for leaving pages, or for pages whose sharing ends.
pub(super) const LEAVING_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an allocation waits for the memory of this rack's frames without one of them getting
/// it. Each frame that gets its memory begins the wait again, so a large object takes the time that
/// its frames take.
pub(super) const RESERVE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a client asks to allocate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Demand {
    /// Up to `count` objects, in any rack.
    Objects { bytes: u64, count: u64 },
    /// Up to `count` fixed objects of this rack.
    Fixed { bytes: u64, count: u64 },
    /// The extent after the `known` ones of a head of this rack.
    Extent { head: GlobalAddr, pages: u64, known: u64 },
}

/// An allocation that waits for a page to become free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starved {
    caller: Caller,
    demand: Demand,
    deadline: Instant,
    /// Frames that had got their memory when the deadline was set.
    reserved: u64,
}

impl Demand {
    /// Returns true if memory in several parts serves the demand too.
    const fn in_parts(self) -> bool {
        matches!(self, Self::Extent { .. })
    }
}

impl DataPlane {
    /// Serves an allocation. It is answered now or later.
    pub(super) fn allocate(&mut self, caller: Caller, demand: Demand) -> Result<()> {
        if let Some(answer) = self.settled_answer(demand) {
            self.clients.finish(caller, answer);
            return Ok(());
        }
        if self.allocate_here(caller, demand)? {
            return Ok(());
        }
        self.drop_copies()?;
        if self.allocate_here(caller, demand)? {
            return Ok(());
        }
        self.slab.close_empty_pages()?;
        let bytes = self.room_for(demand);
        let reserves = self.reserve_for(bytes, demand.in_parts());
        let unshares = self.unshare_for(bytes);
        if reserves || unshares || self.frees_pages() {
            let timeout = if reserves { RESERVE_TIMEOUT } else { LEAVING_TIMEOUT };
            let (deadline, reserved) = (Instant::now() + timeout, self.reserved_frames());
            self.starved.push(Starved { caller, demand, deadline, reserved });
            return Ok(());
        }
        self.allocate_at_last(caller, demand)
    }

    /// Returns the answer to a demand that needs no memory, or that no memory could serve.
    fn settled_answer(&self, demand: Demand) -> Option<RackAnswer> {
        let page_size = self.rack.geometry.page_size;
        match demand {
            Demand::Objects { bytes, count } => {
                if bytes == 0 || count == 0 {
                    return Some(RackAnswer::Invalid);
                }
                // Until the other racks are known, only a size that no rack can have is too large.
                let most = u64::from(PageUse::MAX_RUN) * page_size.bytes();
                let most = self.largest_rack().unwrap_or(most);
                (bytes > most).then_some(RackAnswer::TooLarge { most })
            }
            Demand::Fixed { bytes, count } => {
                let is_valid = count > 0 && SizeClass::for_bytes(bytes, page_size).is_some();
                (!is_valid).then_some(RackAnswer::Invalid)
            }
            Demand::Extent { head, pages, known } => {
                let Ok(extents) = self.slab.extents_of(head) else {
                    return Some(RackAnswer::NotAllocated);
                };
                let known = usize::try_from(known).unwrap_or(usize::MAX);
                match extents.get(known) {
                    Some(Extent { addr, pages }) => {
                        Some(RackAnswer::Extent { addr: *addr, pages: *pages })
                    }
                    None if known > extents.len() => Some(RackAnswer::Invalid),
                    None => (pages == 0).then_some(RackAnswer::Done(known as u64)),
                }
            }
        }
    }

    /// Returns the bytes for which room has to be made. Fixed objects need a page without objects.
    fn room_for(&self, demand: Demand) -> u64 {
        let page = self.rack.geometry.page_size.bytes();
        match demand {
            Demand::Objects { bytes, .. } => bytes,
            Demand::Fixed { .. } => page,
            Demand::Extent { pages, .. } => page.saturating_mul(pages.min(PageUse::MAX_RUN.into())),
        }
    }

    /// Returns true if pages become free without further requests.
    pub(super) fn frees_pages(&self) -> bool {
        self.slab.is_leaving() || self.is_copying() || self.frees_retired()
    }

    /// Allocates in this rack. Returns true if the call is settled.
    fn allocate_here(&mut self, caller: Caller, demand: Demand) -> Result<bool> {
        match demand {
            Demand::Objects { bytes, count } => self.refill_here(caller, bytes, count, false),
            Demand::Fixed { bytes, count } => self.refill_here(caller, bytes, count, true),
            Demand::Extent { .. } => self.extend_here(caller, demand, false),
        }
    }

    /// Allocates wherever there is memory; answers that there is none.
    fn allocate_at_last(&mut self, caller: Caller, demand: Demand) -> Result<()> {
        match demand {
            Demand::Objects { bytes, count } => self.refill_elsewhere(caller, bytes, count),
            Demand::Fixed { .. } => self.clients.finish(caller, self.rack_is_full()),
            Demand::Extent { .. } => {
                if !self.extend_here(caller, demand, true)? {
                    self.clients.finish(caller, self.rack_is_full());
                }
            }
        }
        Ok(())
    }

    /// Allocates an extent. Returns true if the call is settled: an extent is named, the caller has
    /// gone, or the head is no longer in use.
    fn extend_here(&mut self, caller: Caller, demand: Demand, in_parts: bool) -> Result<bool> {
        if !self.clients.is_waiting(caller) {
            return Ok(true);
        }
        // Another thread may have extended or freed the head since the request was first looked at.
        if let Some(answer) = self.settled_answer(demand) {
            self.clients.finish(caller, answer);
            return Ok(true);
        }
        let Demand::Extent { head, pages, .. } = demand else { return Ok(false) };
        let Some(extent) = self.slab.extend(head, pages, in_parts)? else { return Ok(false) };
        let Extent { addr, pages } = extent;
        self.clients.finish(caller, RackAnswer::Extent { addr, pages });
        Ok(true)
    }

    /// Fills the caller's inbox from this rack. Returns true if the call is settled: objects were
    /// handed over, the caller has gone, or its inbox was not empty.
    fn refill_here(
        &mut self,
        caller: Caller,
        bytes: u64,
        count: u64,
        is_fixed: bool,
    ) -> Result<bool> {
        if !self.clients.is_waiting(caller) {
            return Ok(true);
        }
        let Some(client) = self.client(caller) else { return Ok(true) };
        let file = Arc::clone(&client.file);
        let Ok(slot) = file.thread(caller.thread) else { return Ok(true) };
        // An earlier daemon put these objects there and died before it answered.
        let mut filled = 0;
        for cell in &slot.inbox {
            let addr = GlobalAddr::from_raw(cell.load(Ordering::Relaxed));
            if addr.is_null() || !self.slab.fits(addr, bytes, is_fixed) {
                break;
            }
            filled += 1;
        }
        if filled == 0 {
            if slot.inbox.iter().any(|cell| cell.load(Ordering::Relaxed) != 0) {
                // Overwriting the inbox would lose the objects in it.
                self.clients.finish(caller, RackAnswer::Invalid);
                return Ok(true);
            }
            let wanted = usize::try_from(count).unwrap_or(EXCHANGE).min(EXCHANGE);
            // Objects that no magazine takes go directly to the program.
            let class = SizeClass::for_bytes(bytes, self.rack.geometry.page_size);
            let is_kept =
                !is_fixed && class.is_some_and(|class| capacity(usize::from(class.index())) > 0);
            let holder = is_kept.then_some(ObjectHolder::of(caller.client));
            for cell in &slot.inbox[..wanted] {
                let candidate =
                    if is_fixed { self.slab.peek_fixed(bytes)? } else { self.slab.peek(bytes)? };
                let Some(candidate) = candidate else { break };
                // Note first: see the module `slab`.
                cell.store(candidate.addr.raw(), Ordering::Release);
                if !self.slab.commit(candidate, holder)? {
                    cell.store(0, Ordering::Release);
                    break;
                }
                filled += 1;
            }
        }
        if filled > 0 {
            self.clients.finish(caller, RackAnswer::Done(filled as u64));
        }
        Ok(filled > 0)
    }

    /// Retries the allocations that wait for a leaving page.
    pub(super) fn feed_starved(&mut self, now: Instant) -> Result<()> {
        if self.starved.is_empty() {
            return Ok(());
        }
        self.drop_copies()?;
        let quiet =
            !self.frees_pages() && !self.slab.is_reserving() && !self.machine.is_unsharing();
        let frames = self.reserved_frames();
        for mut starved in std::mem::take(&mut self.starved) {
            if frames != starved.reserved && self.slab.is_reserving() {
                (starved.deadline, starved.reserved) = (now + RESERVE_TIMEOUT, frames);
            }
            let Starved { caller, demand, deadline, .. } = starved;
            if self.allocate_here(caller, demand)? {
                continue;
            }
            if now > deadline || quiet && !self.unshare_for(self.room_for(demand)) {
                self.allocate_at_last(caller, demand)?;
            } else {
                self.starved.push(starved);
            }
        }
        Ok(())
    }

    /// Returns the answer to a demand that only this rack can serve and for which it has no room.
    fn rack_is_full(&self) -> RackAnswer {
        let (rack_frames, rack_free) = (self.rack.geometry.frames, self.slab.free_frames());
        let (asked, other_frames, other_free, unreachable) = (0, 0, 0, 0);
        RackAnswer::OutOfMemory {
            rack_frames,
            rack_free,
            asked,
            other_frames,
            other_free,
            unreachable,
        }
    }
}
