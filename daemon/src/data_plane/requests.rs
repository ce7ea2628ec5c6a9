//! Requests of clients.

use rackpool_model::{Access, ClientId, FrameWord, GlobalAddr, PageId, PageState};
use rackpool_proto::exchange::ExchangeEvent;
use rackpool_proto::rack::PageAccess;
use rackpool_ring::request::Request;
use rackpool_shm::marks::ObjectHolder;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::DataPlane;
use super::allocation::Demand;
use super::clients::Caller;
use super::swap::Work;
use super::transfers::{Buffer, Wanted};
use crate::data_plane::error::Result;
use crate::slab::LocalPage;

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
            Some(RackRequest::Refill { bytes, count }) => {
                self.allocate(caller, Demand::Objects { bytes, count })
            }
            Some(RackRequest::RefillFixed { bytes, count }) => {
                self.allocate(caller, Demand::Fixed { bytes, count })
            }
            Some(RackRequest::Extend { head, pages, known }) => {
                self.allocate(caller, Demand::Extent { head, pages, known })
            }
            Some(RackRequest::Release) => self.release(caller),
            Some(RackRequest::Read { addr, len, data, batch }) => {
                let buffer = Buffer::DataRing(data);
                let wanted = Wanted { addr, len, buffer, batch, is_read: true };
                self.start_transfer(caller, &wanted)
            }
            Some(RackRequest::Write { addr, len, data, batch }) => {
                let buffer = Buffer::DataRing(data);
                let wanted = Wanted { addr, len, buffer, batch, is_read: false };
                self.start_transfer(caller, &wanted)
            }
            Some(RackRequest::ReadInto { addr, len, head, into, batch }) => {
                let buffer = Buffer::Fixed { head, addr: into };
                let wanted = Wanted { addr, len, buffer, batch, is_read: true };
                self.start_transfer(caller, &wanted)
            }
            Some(
                request @ (RackRequest::CompareAndSwap { .. } | RackRequest::FetchAndAdd { .. }),
            ) => self.forward_atomic(caller, request),
            Some(RackRequest::Ping) => {
                self.clients.finish(caller, RackAnswer::Done(0));
                Ok(())
            }
            Some(RackRequest::Pinned { objects }) => {
                self.clients.finish(caller, RackAnswer::Done(self.pinned_among(&objects)));
                Ok(())
            }
            Some(RackRequest::Lock { claim, index, timeout_us }) => {
                self.lock(caller, claim, index, timeout_us)
            }
            Some(RackRequest::Unlock { index, withdrawn }) => self.unlock(caller, index, withdrawn),
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
