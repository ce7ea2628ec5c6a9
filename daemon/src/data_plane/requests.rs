//! Requests of clients.

use std::time::{Duration, Instant};

use rackpool_model::{Access, ClientId, FrameWord, GlobalAddr, PageId, PageState, SizeClass};
use rackpool_proto::exchange::ExchangeEvent;
use rackpool_proto::rack::PageAccess;
use rackpool_ring::client_file::EXCHANGE;
use rackpool_ring::magazines::capacity;
use rackpool_ring::request::Request;
use rackpool_shm::marks::ObjectHolder;
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::DataPlane;
use super::clients::Caller;
use super::swap::Work;
use super::transfers::Wanted;
use crate::data_plane::error::Result;
use crate::slab::LocalPage;

/// How long an allocation waits for leaving pages, or for pages whose sharing ends.
pub(super) const LEAVING_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an allocation waits for the memory of this rack's frames without one of them getting
/// it. Each frame that gets its memory begins the wait again, so a large object takes the time that
/// its frames take.
pub(super) const RESERVE_TIMEOUT: Duration = Duration::from_secs(1);

/// An allocation that waits for a page to become free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Starved {
    caller: Caller,
    bytes: u64,
    count: u64,
    deadline: Instant,
    /// Frames that had got their memory when the deadline was set.
    reserved: u64,
}

impl DataPlane {
    /// Serves one entry of a client's ring. The entry is not trusted.
    pub(super) fn serve(&mut self, client: ClientId, request: &Request) -> Result<()> {
        let Request { code, cell, thread, call, life, arguments } = *request;
        let caller = Caller { client, thread, cell, call };
        // Posted to an earlier daemon: the client's thread knows that and posts it again.
        if life != self.rack.incarnation.0 || !self.clients.begin(caller) {
            return Ok(());
        }
        match RackRequest::from_words(code, arguments) {
            Some(RackRequest::Translate { page, access }) => self.translate(caller, page, access),
            Some(RackRequest::Refill { bytes, count }) => self.refill(caller, bytes, count),
            Some(RackRequest::Release) => self.release(caller),
            Some(RackRequest::Read { addr, len, data, batch }) => {
                let wanted = Wanted { addr, len, data, batch, is_read: true };
                self.start_transfer(caller, &wanted)
            }
            Some(RackRequest::Write { addr, len, data, batch }) => {
                let wanted = Wanted { addr, len, data, batch, is_read: false };
                self.start_transfer(caller, &wanted)
            }
            Some(
                request @ (RackRequest::CompareAndSwap { .. } | RackRequest::FetchAndAdd { .. }),
            ) => self.forward_atomic(caller, request),
            Some(RackRequest::Ping) => {
                self.clients.finish(caller, RackAnswer::Done(0));
                Ok(())
            }
            None => {
                self.clients.finish(caller, RackAnswer::Invalid);
                Ok(())
            }
        }
    }

    /// Answers where a page is. A frozen page can be read in its frame, an arriving page at its old
    /// home. A write to a moving page is executed in its frame and logged, or forwarded to the old
    /// home, or waits until either is possible or the move has ended.
    pub(super) fn translate(&mut self, caller: Caller, page: PageId, access: Access) -> Result<()> {
        let answer = match self.slab.lookup(page) {
            Some(LocalPage { frame, word, usage }) => {
                match self.machine.client_access(FrameWord { frame, word }, access) {
                    PageAccess::Usable(_) => RackAnswer::Local { frame, word, usage },
                    PageAccess::Forwarded(_) => {
                        RackAnswer::Remote { home: self.rack.geometry.rack, usage }
                    }
                    PageAccess::Busy => {
                        self.wait_for_swap(page, Work::Translate(caller, access));
                        return Ok(());
                    }
                    _ => RackAnswer::NotAllocated,
                }
            }
            None if self.swap_has_lost(page) => RackAnswer::PageLost,
            None => {
                self.translate_remote(caller, page, access);
                return Ok(());
            }
        };
        self.clients.finish(caller, answer);
        Ok(())
    }

    fn refill(&mut self, caller: Caller, bytes: u64, count: u64) -> Result<()> {
        let page_size = self.rack.geometry.page_size;
        if bytes == 0 || count == 0 {
            self.clients.finish(caller, RackAnswer::Invalid);
            return Ok(());
        }
        // Until the other racks are known, only a size that no rack can have is too large.
        let most = u64::from(PageUse::MAX_RUN) * page_size.bytes();
        let most = self.largest_rack().unwrap_or(most);
        if bytes > most {
            self.clients.finish(caller, RackAnswer::TooLarge { most });
            return Ok(());
        }
        if self.refill_here(caller, bytes, count)? {
            return Ok(());
        }
        self.drop_copies()?;
        if self.refill_here(caller, bytes, count)? {
            return Ok(());
        }
        self.slab.close_empty_pages()?;
        let reserves = self.reserve_for(bytes);
        let unshares = self.unshare_for(bytes);
        if reserves || unshares || self.slab.is_leaving() || self.is_copying() {
            let timeout = if reserves { RESERVE_TIMEOUT } else { LEAVING_TIMEOUT };
            let (deadline, reserved) = (Instant::now() + timeout, self.reserved_frames());
            self.starved.push(Starved { caller, bytes, count, deadline, reserved });
            return Ok(());
        }
        self.refill_elsewhere(caller, bytes, count);
        Ok(())
    }

    /// Fills the caller's inbox from this rack. Returns true if the call is settled: objects were
    /// handed over, the caller has gone, or its inbox was not empty.
    fn refill_here(&mut self, caller: Caller, bytes: u64, count: u64) -> Result<bool> {
        if !self.clients.is_waiting(caller) {
            return Ok(true);
        }
        let Some(client) = self.client(caller) else { return Ok(true) };
        let file = std::sync::Arc::clone(&client.file);
        let Ok(slot) = file.thread(caller.thread) else { return Ok(true) };
        // An earlier daemon put these objects there and died before it answered.
        let mut filled = 0;
        for cell in &slot.inbox {
            let addr = GlobalAddr::from_raw(cell.load(Ordering::Relaxed));
            if addr.is_null() || !self.slab.fits(addr, bytes) {
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
            let is_kept = class.is_some_and(|class| capacity(usize::from(class.index())) > 0);
            let holder = is_kept.then_some(ObjectHolder::of(caller.client));
            for cell in &slot.inbox[..wanted] {
                let Some(candidate) = self.slab.peek(bytes)? else { break };
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
        let quiet = !self.slab.is_leaving()
            && !self.slab.is_reserving()
            && !self.is_copying()
            && !self.machine.is_unsharing();
        let frames = self.reserved_frames();
        for mut starved in std::mem::take(&mut self.starved) {
            if frames != starved.reserved && self.slab.is_reserving() {
                (starved.deadline, starved.reserved) = (now + RESERVE_TIMEOUT, frames);
            }
            let Starved { caller, bytes, count, deadline, .. } = starved;
            if self.refill_here(caller, bytes, count)? {
                continue;
            }
            if now > deadline || quiet && !self.unshare_for(bytes) {
                self.refill_elsewhere(caller, bytes, count);
            } else {
                self.starved.push(starved);
            }
        }
        Ok(())
    }

    /// Frees the objects in the caller's outbox: those of pages that are here and live at once, the
    /// others when their pages are at rest, or by an exchange with their home.
    fn release(&mut self, caller: Caller) -> Result<()> {
        let Some(client) = self.client(caller) else { return Ok(()) };
        let file = std::sync::Arc::clone(&client.file);
        let Ok(slot) = file.thread(caller.thread) else { return Ok(()) };
        let page_size = self.rack.geometry.page_size;
        let mut refused = 0;
        let mut elsewhere: Vec<GlobalAddr> = Vec::new();
        for cell in &slot.outbox {
            let addr = GlobalAddr::from_raw(cell.load(Ordering::Relaxed));
            if addr.is_null() {
                continue;
            }
            let found = addr.page(page_size).and_then(|page| self.slab.lookup(page));
            if found.is_some_and(|found| found.word.state() == Some(PageState::Live)) {
                let holder = ObjectHolder::of(caller.client);
                refused += u64::from(self.slab.free(addr, holder)?.is_err());
                cell.store(0, Ordering::Release);
            } else if elsewhere.contains(&addr) {
                refused += 1;
            } else {
                elsewhere.push(addr);
            }
        }
        if elsewhere.is_empty() {
            self.clients.finish(caller, RackAnswer::Done(refused));
            return Ok(());
        }
        let (owner, caller) = (caller.client_thread(), Some(caller));
        self.tell_exchange(ExchangeEvent::Return { owner, caller, addrs: elsewhere, refused });
        Ok(())
    }
}
