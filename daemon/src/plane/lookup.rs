//! Pages of other racks: finding their home and leasing their location.

use std::time::Instant;

use rackpool_model::{Epoch, FrameId, PageId, RackId};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use super::clients::Caller;
use super::peers::Purpose;
use super::{DataPlane, Located, Notice, PATIENCE};

/// Where a page of another rack lies, for as long as its home does not call the lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) home: RackId,
    pub(super) frame: FrameId,
    pub(super) epoch: Epoch,
    pub(super) usage: u64,
}

impl DataPlane {
    /// The home of a page, as far as it is known here.
    pub(super) fn home_of(&self, page: PageId) -> Option<RackId> {
        if let Some(lease) = self.leases.get(&page) {
            return Some(lease.home);
        }
        let home = self.members.iter().find(|member| member.pages.contains(page))?;
        (home.rack != self.rack.geometry.rack).then_some(home.rack)
    }

    /// Whether the rack's lease with the metadata server is known to have run out.
    fn is_dead(&self, rack: RackId) -> bool {
        self.members.iter().any(|member| member.rack == rack && !member.alive)
    }

    pub(super) fn translate_remote(&mut self, caller: Caller, page: PageId) -> anyhow::Result<()> {
        if let Some(lease) = self.leases.get(&page) {
            let answer = RackAnswer::Remote { home: lease.home, usage: lease.usage };
            self.clients.finish(caller, answer);
            return Ok(());
        }
        let first = !self.lookups.contains_key(&page);
        self.lookups.entry(page).or_default().push(caller);
        if !first {
            return Ok(());
        }
        match self.home_of(page) {
            Some(home) => self.ask_home(page, home),
            None => {
                self.notice(Notice::Locate(page));
                Ok(())
            }
        }
    }

    fn ask_home(&mut self, page: PageId, home: RackId) -> anyhow::Result<()> {
        if self.is_dead(home) {
            self.answer_lookups(page, RackAnswer::RackUnavailable(home));
            return Ok(());
        }
        self.meet(home);
        let deadline = Instant::now() + PATIENCE;
        self.ask(home, PeerRequest::Lookup { page }, Purpose::Lookup { page }, deadline)
    }

    /// The metadata server has said where a page is.
    pub(super) fn located(&mut self, page: PageId, home: Located) -> anyhow::Result<()> {
        self.homeless_located(page, home)?;
        if !self.lookups.contains_key(&page) {
            return Ok(());
        }
        match home {
            Located::Home(home) if home == self.rack.geometry.rack => {
                self.answer_lookups(page, RackAnswer::NotAllocated);
            }
            Located::Home(home) => return self.ask_home(page, home),
            Located::NoSuchPage => self.answer_lookups(page, RackAnswer::NotAllocated),
            Located::Lost => self.answer_lookups(page, RackAnswer::PageLost),
            Located::Unreachable => self.answer_lookups(page, RackAnswer::MetadataUnreachable),
        }
        Ok(())
    }

    /// A rack that joined after the last heartbeat, or before the first one of this daemon, is
    /// not known yet: its address is asked for at once.
    pub(super) fn meet(&self, rack: RackId) {
        if self.members.iter().all(|member| member.rack != rack) {
            self.notice(Notice::Meet);
        }
    }

    /// A page's home has answered.
    pub(super) fn lookup_answered(&mut self, page: PageId, home: RackId, reply: &PeerReply) {
        let answer = match reply {
            PeerReply::Location { frame, epoch, usage } => {
                let lease = Lease { home, frame: *frame, epoch: *epoch, usage: *usage };
                self.leases.insert(page, lease);
                RackAnswer::Remote { home, usage: *usage }
            }
            PeerReply::NotAllocated => RackAnswer::NotAllocated,
            _ => RackAnswer::Moved,
        };
        self.answer_lookups(page, answer);
    }

    pub(super) fn answer_lookups(&mut self, page: PageId, answer: RackAnswer) {
        for caller in self.lookups.remove(&page).unwrap_or_default() {
            self.clients.finish(caller, answer);
        }
    }

    /// Sends an atomic operation to the home of its page.
    pub(super) fn forward_atomic(
        &mut self,
        caller: Caller,
        request: RackRequest,
    ) -> anyhow::Result<()> {
        let (addr, request) = match request {
            RackRequest::CompareAndSwap { addr, expected, new } => {
                (addr, PeerRequest::CompareAndSwap { addr, expected, new })
            }
            RackRequest::FetchAndAdd { addr, delta } => {
                (addr, PeerRequest::FetchAndAdd { addr, delta })
            }
            _ => {
                self.clients.finish(caller, RackAnswer::Invalid);
                return Ok(());
            }
        };
        let page = addr.page(self.rack.geometry.page_size);
        let home = page.and_then(|page| self.leases.get(&page)).map(|lease| lease.home);
        match home {
            None => self.clients.finish(caller, RackAnswer::Moved),
            Some(home) => {
                let deadline = Instant::now() + PATIENCE;
                self.ask(home, request, Purpose::Atomic { caller }, deadline)?;
            }
        }
        Ok(())
    }
}
