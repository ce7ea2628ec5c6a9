//! Compare-and-swap and fetch-and-add of clients: carried out by the home of the page.

use rackpool_model::{Access, PageId, RackId};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::DataPlane;
use super::clients::Caller;
use super::home::Atomic;
use super::peers::Purpose;

impl DataPlane {
    /// Sends an atomic operation to the home of its page, which needs no lease.
    pub(super) fn forward_atomic(
        &mut self,
        caller: Caller,
        request: RackRequest,
    ) -> anyhow::Result<()> {
        let (addr, atomic, request) = match request {
            RackRequest::CompareAndSwap { addr, expected, new } => {
                let atomic = Atomic::CompareAndSwap { expected, new };
                (addr, atomic, PeerRequest::CompareAndSwap { addr, expected, new })
            }
            RackRequest::FetchAndAdd { addr, delta } => {
                (addr, Atomic::FetchAndAdd { delta }, PeerRequest::FetchAndAdd { addr, delta })
            }
            _ => {
                self.clients.finish(caller, RackAnswer::Invalid);
                return Ok(());
            }
        };
        let page = addr.page(self.rack.geometry.page_size);
        if page.is_some_and(|page| self.writes_for_others(page)) {
            self.change_moving(caller, addr, atomic);
            return Ok(());
        }
        let found = page.and_then(|page| Some((page, self.home_of(page)?)));
        match found {
            Some((page, home)) if !self.is_dead(home) => {
                self.remote_access(page, Access::Write, 1)?;
                let purpose = Purpose::Atomic { caller, page };
                self.ask(home, request, purpose, self.now() + self.lease)
            }
            // Translating finds it, or says why not.
            _ => {
                self.clients.finish(caller, RackAnswer::Moved);
                Ok(())
            }
        }
    }

    /// A page's home has done an atomic operation, or has not and never will: then the client
    /// translates again, which waits until the page can be used.
    pub(super) fn atomic_answered(
        &mut self,
        caller: Caller,
        page: PageId,
        home: RackId,
        reply: &PeerReply,
    ) {
        let answer = match reply {
            PeerReply::Value(before) => RackAnswer::Done(*before),
            PeerReply::NotAllocated => RackAnswer::NotAllocated,
            PeerReply::NotHere => {
                if self.home_of(page) == Some(home) {
                    self.leases.forget(page);
                }
                RackAnswer::Moved
            }
            PeerReply::Busy => {
                self.leases.drop_lease(page);
                RackAnswer::Moved
            }
            _ => RackAnswer::Invalid,
        };
        self.clients.finish(caller, answer);
    }
}
