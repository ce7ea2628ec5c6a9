//! The shell of the exchange of objects between racks, which `rackpool_proto::exchange` decides:
//! executes its actions on the slab, the records, the clients' files and the fabric, and chooses
//! the rack in which a client's objects are allocated.

mod memory;
mod records;

use std::collections::BTreeMap;

use rackpool_model::{MAX_RACKS, RackId};
use rackpool_proto::exchange::{CallResult, ExchangeAction, ExchangeEvent, Obstacle};
use rackpool_proto::rack::RackEvent;
use rackpool_rrpc::RequestId;
use rackpool_shm::marks::ObjectHolder;
use rackpool_shm::metadata::PageUse;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::peer::PeerRequest;
use rackpool_wire::rack::RackAnswer;

use super::clients::{Caller, strike};
use super::peers::Purpose;
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;

/// An allocation for a client, in other racks.
#[derive(Debug)]
struct Refill {
    caller: Caller,
    bytes: u64,
    count: u64,
    /// Racks that were asked and had no memory.
    tried: Vec<Tried>,
}

/// A rack that was asked for memory without success.
#[derive(Clone, Copy, Debug)]
struct Tried {
    rack: RackId,
    /// The number of free frames in its answer; `None` if it did not answer.
    free_frames: Option<u32>,
}

/// The exchanges with all racks.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    refills: Vec<Refill>,
    /// Unanswered requests of other racks.
    asks: BTreeMap<u64, RequestId>,
    last_ask: u64,
}

impl DataPlane {
    /// Passes an event to the machine, which handles it with the next events.
    pub(super) fn tell_exchange(&mut self, event: ExchangeEvent) {
        self.machine.handle(RackEvent::Exchange(event));
    }

    /// Continues the exchanges of an earlier daemon. Must be called before anything is served,
    /// after all client files were adopted.
    pub(crate) fn resume_exchanges(&mut self) -> Result<()> {
        self.strike_free_owned();
        let metadata = &self.rack.metadata;
        let racks = (0..MAX_RACKS).map(RackId);
        let records = racks.map(|rack| Ok((rack, records::load(metadata.peer(rack)?))));
        let records = records.collect::<Result<Vec<_>>>()?;
        self.tell_exchange(ExchangeEvent::Restarted(records));
        self.run_machine()
    }

    /// Passes a request of another rack to the machine.
    pub(super) fn serve_exchange(&mut self, ask: RequestId, request: PeerRequest) {
        self.exchanges.last_ask += 1;
        let number = self.exchanges.last_ask;
        self.exchanges.asks.insert(number, ask);
        self.tell_exchange(ExchangeEvent::Requested(number, request));
    }

    /// Forgets the requests of other racks that can't be answered any more.
    pub(super) fn forget_exchanges(&mut self, are_meant: impl Fn(RequestId) -> bool) {
        self.exchanges.asks.retain(|_, ask| !are_meant(*ask));
    }

    pub(super) fn execute_exchange(&mut self, action: ExchangeAction) -> Result<()> {
        match action {
            ExchangeAction::StoreAsked(rack, record) => {
                records::store_asked(&self.rack.metadata.peer(rack)?.asked, &record);
            }
            ExchangeAction::StoreServed(rack, record) => {
                records::store_served(&self.rack.metadata.peer(rack)?.served, &record);
            }
            ExchangeAction::Request(rack, request) => {
                self.meet(rack);
                // The deadline begins when the request is sent.
                self.ask(rack, request, Purpose::Exchange, self.now())?;
            }
            ExchangeAction::Answer(ask, reply) => {
                if let Some(ask) = self.exchanges.asks.remove(&ask) {
                    self.reply(ask, &reply)?;
                }
            }
            ExchangeAction::Allocate { addr, bytes } => {
                if let Some(candidate) = self.slab.peek(bytes)?.filter(|found| found.addr == addr) {
                    self.slab.commit(candidate, None)?;
                }
            }
            ExchangeAction::Free { addr, client } => {
                let holder = client.map_or(ObjectHolder::DAEMON, ObjectHolder::of);
                if self.slab.free(addr, holder)?.is_err() {
                    tracing::debug!("{addr} was not in use when it was freed");
                }
            }
            ExchangeAction::FillInbox(caller, addrs) => {
                if let Some(slot) = self.clients.slot(caller.client_thread()) {
                    for (cell, addr) in slot.inbox.iter().zip(addrs) {
                        cell.store(addr.raw(), Ordering::Release);
                    }
                }
            }
            ExchangeAction::Strike(owner, addrs) => {
                if let Some(slot) = self.clients.slot(owner) {
                    strike(slot, |addr| addrs.contains(&addr));
                }
            }
            ExchangeAction::StrikeEverywhere(addrs) => {
                for slot in self.clients.all.values().flat_map(|client| client.threads()) {
                    strike(slot, |addr| addrs.contains(&addr));
                }
            }
            ExchangeAction::Locate(page) => self.notify(ControlNotification::Locate(page)),
            ExchangeAction::Finish(caller, result) => {
                self.exchanges.refills.retain(|refill| refill.caller != caller);
                let answer = answer(result, self.rack.geometry.rack);
                self.clients.finish(caller, answer);
            }
            ExchangeAction::NotAllocated(caller, rack, free_frames) => {
                let mut refills = self.exchanges.refills.iter();
                if let Some(index) = refills.position(|refill| refill.caller == caller) {
                    let mut refill = self.exchanges.refills.swap_remove(index);
                    refill.tried.push(Tried { rack, free_frames });
                    self.ask_next_rack(refill);
                }
            }
            ExchangeAction::ReportUnused { addr, client } => {
                tracing::warn!("client {} held {addr}, which is not in use", client.0);
            }
            ExchangeAction::Returned(client) => self.forget_if_returned(client),
            // The machine handles it itself.
            ExchangeAction::NeedPage(_) => {}
        }
        Ok(())
    }

    /// Allocates in another rack.
    pub(super) fn refill_elsewhere(&mut self, caller: Caller, bytes: u64, count: u64) {
        self.ask_next_rack(Refill { caller, bytes, count, tried: Vec::new() });
    }

    /// Asks the untried rack with the most free frames; a sibling first, if it has any.
    fn ask_next_rack(&mut self, refill: Refill) {
        let own = self.rack.geometry.rack;
        let tried = &refill.tried;
        let next = self
            .machine
            .members()
            .iter()
            .filter(|member| member.alive && member.rack != own)
            .filter(|member| tried.iter().all(|tried| tried.rack != member.rack))
            .max_by_key(|member| {
                let is_beside = member.free_frames > 0 && self.rack.siblings.contains(&member.rack);
                (is_beside, member.free_frames, std::cmp::Reverse(member.rack))
            })
            .map(|member| member.rack);
        let Refill { caller, bytes, count, .. } = refill;
        match next {
            Some(rack) => {
                self.exchanges.refills.push(refill);
                self.tell_exchange(ExchangeEvent::Allocate { caller, rack, bytes, count });
            }
            None => {
                let answer = self.out_of_memory(&refill.tried);
                self.clients.finish(caller, answer);
            }
        }
    }

    /// Returns the memory of the reachable other racks, as the metadata server last reported it.
    pub(super) fn others(&self) -> Others {
        let own = self.rack.geometry.rack;
        let mut others = Others::default();
        for member in self.machine.members().iter().filter(|m| m.alive && m.rack != own) {
            others.frames += u64::from(member.pages.count);
            others.free += u64::from(member.free_frames);
        }
        others
    }

    /// Returns the memory of the pool's largest rack in bytes, reachable or not; `None` before the
    /// metadata server has named the members.
    pub(super) fn largest_rack(&self) -> Option<u64> {
        let frames = self.machine.members().iter().map(|member| member.pages.count).max()?;
        let frames = frames.max(self.rack.geometry.frames).min(PageUse::MAX_RUN);
        Some(u64::from(frames) * self.rack.geometry.page_size.bytes())
    }

    /// Only racks that answered this request are counted with their numbers.
    fn out_of_memory(&self, tried: &[Tried]) -> RackAnswer {
        let own = self.rack.geometry.rack;
        let (mut asked, mut unreachable, mut other_frames, mut other_free) = (0_u16, 0_u16, 0, 0);
        for member in self.machine.members().iter().filter(|member| member.rack != own) {
            let tried = tried.iter().find(|tried| tried.rack == member.rack);
            match tried.and_then(|tried| tried.free_frames) {
                Some(free) => {
                    asked = asked.saturating_add(1);
                    other_frames += u64::from(member.pages.count);
                    other_free += u64::from(free);
                }
                None => unreachable = unreachable.saturating_add(1),
            }
        }
        let (rack_frames, rack_free) = (self.rack.geometry.frames, self.slab.free_frames());
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

/// Returns the answer to a call of a client of the rack `own`.
const fn answer(result: CallResult, own: RackId) -> RackAnswer {
    match result {
        CallResult::Allocated(count) | CallResult::Freed(count) => RackAnswer::Done(count),
        CallResult::Kept(Obstacle::PageBusy) => RackAnswer::PageBusy(own),
        CallResult::Kept(Obstacle::RackUnavailable(rack)) => RackAnswer::RackUnavailable(rack),
        CallResult::Kept(Obstacle::MetadataUnreachable) => RackAnswer::MetadataUnreachable,
        CallResult::Invalid => RackAnswer::Invalid,
    }
}

/// Memory of the reachable other racks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    /// Number of frames.
    pub(super) frames: u64,
    /// Number of frames without a page.
    pub(super) free: u64,
}
