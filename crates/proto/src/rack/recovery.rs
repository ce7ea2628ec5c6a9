//! The recovery of reservations, within a rack's machine.

use rackpool_model::{ClientId, GlobalAddr, PageId, RackId, ReservationState};

use super::exchanges::View;
use super::{LeaseAnswer, Queued, RackAction, RackEvent, RackMachine, RackMemory};
use crate::exchange::{ClientThread, ExchangeEvent, ObjectView, Place};
use crate::planted_bugs::Bugs;
use crate::publication::{
    RecordPlace, RecoveryAction, RecoveryEvent, RecoveryView, ReservationMemory, WordAnswer,
};
use crate::{Located, Time};

impl<M: RackMemory, B: Bugs> ReservationMemory for View<'_, M, B> {
    fn array_objects(&self, client: ClientId) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.memory.array_objects(client)
    }

    fn reservations(&self, client: ClientId) -> impl Iterator<Item = RecordPlace> {
        self.memory.reservations(client)
    }

    fn reservation(&self, place: RecordPlace) -> ReservationState {
        self.memory.reservation(place)
    }
}

impl<M: RackMemory, B: Bugs> RecoveryView for View<'_, M, B> {
    fn place(&self, page: PageId) -> Place {
        ObjectView::place(self, page)
    }

    fn is_readable(&self, page: PageId) -> bool {
        self.memory.find(page).is_some_and(|found| found.word.is_readable())
    }

    fn living_home_of(&self, page: PageId) -> Option<RackId> {
        self.home_of(page).filter(|home| !self.is_dead(*home))
    }

    fn is_dead(&self, rack: RackId) -> bool {
        self.members.is_dead(rack)
    }
}

impl<B: Bugs> RackMachine<B> {
    pub(super) fn tell_recovery(
        &mut self,
        now: Time,
        memory: &impl RackMemory,
        event: RecoveryEvent,
    ) {
        if let RecoveryEvent::WordAnswered { question, answer: WordAnswer::NotHere } = event
            && let Some((page, home)) = self.recovery.asked(question)
        {
            self.note_refusal(page, home, LeaseAnswer::NotHere, false);
        }
        let Self { recovery, swap, locations, members, exchanges, .. } = self;
        let view = View { memory, swap, locations, members, own: exchanges.own().rack };
        recovery.handle(now, &view, event);
        self.drain_recovery();
    }

    /// The metadata server has answered where a page is.
    pub(super) fn recovery_located(
        &mut self,
        now: Time,
        memory: &impl RackMemory,
        page: PageId,
        home: Located,
    ) {
        let Self { recovery, swap, locations, members, exchanges, .. } = self;
        let view = View { memory, swap, locations, members, own: exchanges.own().rack };
        recovery.located(now, &view, page, home);
        self.drain_recovery();
    }

    /// Does a part of what is due for the recovery. Returns true if there was anything.
    pub(super) fn look_at_recovery(&mut self, now: Time, memory: &impl RackMemory) -> bool {
        let is_due = self.recovery.deadline().is_some_and(|due| now >= due);
        if is_due {
            let Self { recovery, swap, locations, members, exchanges, .. } = self;
            let view = View { memory, swap, locations, members, own: exchanges.own().rack };
            recovery.deadline_passed(now, &view);
            self.drain_recovery();
        }
        is_due
    }

    fn drain_recovery(&mut self) {
        self.is_due_stale = true;
        while let Some(action) = self.recovery.poll() {
            match action {
                RecoveryAction::NeedPage(page) => {
                    self.queue.push_back(Queued::Rack(RackEvent::WriteNeeded(page)));
                }
                // After the decision is stored, so that the record notes the object.
                RecoveryAction::Return(owner, addrs) => {
                    let (caller, refused) = (None, 0);
                    let event = ExchangeEvent::Return { owner, caller, addrs, refused };
                    self.queue.push_back(Queued::Rack(RackEvent::Exchange(event)));
                }
                action => self.actions.push_back(RackAction::Recovery(action)),
            }
        }
    }

    /// Returns the gone clients for which the shell has to report that their operations have ended.
    pub fn unsettled_clients(&self) -> impl Iterator<Item = ClientId> {
        self.recovery.unsettled()
    }

    /// Returns the number of gone clients and records that are not resolved.
    #[must_use]
    pub fn resolving(&self) -> usize {
        self.recovery.under_way()
    }
}
