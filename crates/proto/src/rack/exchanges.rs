//! The exchange of objects, within a rack's machine.

use rackpool_model::{ClientId, GlobalAddr, MemoryId, PageId, PageState, RackId};

use super::members::Members;
use super::{Locations, Queued, RackAction, RackEvent, RackMachine, RackMemory};
use crate::Time;
use crate::exchange::{
    Caller, ClientThread, ExchangeAction, ExchangeEvent, ObjectMemory, ObjectView, Place,
};
use crate::planted_bugs::Bugs;
use crate::publication::RecoveryEvent;
use crate::swap::SwapPeer;

/// The objects of the rack, and what its machine knows of pages.
pub(super) struct View<'a, M, B> {
    pub(super) memory: &'a M,
    pub(super) swap: &'a SwapPeer<B>,
    pub(super) locations: &'a Locations,
    pub(super) members: &'a Members,
    pub(super) own: RackId,
}

impl<M: RackMemory, B: Bugs> ObjectMemory for View<'_, M, B> {
    fn is_allocated(&self, addr: GlobalAddr) -> bool {
        self.memory.is_allocated(addr)
    }

    fn may_free(&self, addr: GlobalAddr, client: Option<ClientId>) -> bool {
        self.memory.may_free(addr, client)
    }

    fn candidate(&self, bytes: u64) -> Option<GlobalAddr> {
        self.memory.candidate(bytes)
    }

    fn free_frames(&self) -> u32 {
        self.memory.free_frames()
    }

    fn takes(&self, caller: Caller) -> bool {
        self.memory.takes(caller)
    }

    fn holds(&self, owner: ClientThread, addr: GlobalAddr) -> bool {
        self.memory.holds(owner, addr)
    }

    fn held(&self) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.memory.held()
    }
}

impl<M: RackMemory, B: Bugs> ObjectView for View<'_, M, B> {
    fn place(&self, page: PageId) -> Place {
        match self.memory.find(page).map(|found| found.word.state()) {
            Some(Some(PageState::Live | PageState::Free) | None) => Place::Here,
            Some(Some(_)) => Place::Moving,
            None if self.swap.is_lost(page) => Place::Lost,
            None if self.swap.is_arriving(page) => Place::Moving,
            None => Place::Elsewhere,
        }
    }

    fn is_here(&self, page: PageId) -> bool {
        self.memory.find(page).is_some()
    }

    fn home_of(&self, page: PageId) -> Option<RackId> {
        let found = self.locations.of(page).map(|found| found.home);
        found.or_else(|| self.members.birth_home(page)).filter(|home| *home != self.own)
    }
}

impl<B: Bugs> RackMachine<B> {
    pub(super) fn tell_exchanges(
        &mut self,
        now: Time,
        memory: &impl RackMemory,
        event: ExchangeEvent,
    ) {
        let Self { exchanges, swap, locations, members, .. } = self;
        let view = View { memory, swap, locations, members, own: exchanges.own().rack };
        exchanges.handle(now, &view, event);
        self.drain_exchanges();
    }

    pub(super) fn continue_allocation(&mut self, memory: &impl RackMemory) {
        let Self { exchanges, swap, locations, members, .. } = self;
        let view = View { memory, swap, locations, members, own: exchanges.own().rack };
        exchanges.continue_allocation(&view);
        self.drain_exchanges();
    }

    /// Does a part of what is due for the exchanges. Returns true if there was anything.
    pub(super) fn look_at_exchanges(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        let is_due = self.exchanges.deadline().is_some_and(|due| now >= due);
        if is_due {
            let Self { exchanges, swap, locations, members, .. } = self;
            let view = View { memory, swap, locations, members, own: exchanges.own().rack };
            exchanges.deadline_passed(now, &view);
            self.drain_exchanges();
        }
        is_due
    }

    fn drain_exchanges(&mut self) {
        self.is_due_stale = true;
        while let Some(action) = self.exchanges.poll() {
            match action {
                ExchangeAction::NeedPage(page) => {
                    self.queue.push_back(Queued::Rack(RackEvent::WriteNeeded(page)));
                }
                action => self.actions.push_back(RackAction::Exchange(action)),
            }
        }
        // Before later events: nothing else is allocated or moved meanwhile.
        if self.exchanges.is_allocating() {
            self.queue.push_front(Queued::ContinueAllocation);
        }
    }

    /// Returns true if another rack's request was executed, or is out of date: it is answered at
    /// once, even if there is no memory.
    #[must_use]
    pub fn has_served(&self, rack: RackId, memory: MemoryId, sequence: u64) -> bool {
        self.exchanges.has_served(rack, memory, sequence)
    }

    /// Returns true if something of a gone client is left: objects that its cells hold, or records.
    #[must_use]
    pub fn returns_of(&self, client: ClientId) -> bool {
        let is_its = |event: &Queued| match event {
            Queued::Rack(RackEvent::Exchange(ExchangeEvent::Return { owner, caller, .. })) => {
                owner.client == client && caller.is_none()
            }
            Queued::Rack(RackEvent::Recovery(RecoveryEvent::ClientGone(gone))) => *gone == client,
            _ => false,
        };
        self.exchanges.returns_of(client)
            || self.recovery.is_resolving(client)
            || self.queue.iter().any(is_its)
    }

    /// Returns the number of exchanges and returns that are not finished.
    #[must_use]
    pub fn exchanging(&self) -> usize {
        self.exchanges.under_way()
    }
}
