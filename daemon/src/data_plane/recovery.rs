//! The shell of the recovery of reservations, which `rackpool_proto::publication` decides: accesses
//! words here and in other racks, and stores decisions in the records of gone clients.

use rackpool_model::{ClientId, GlobalAddr, ReservationState};
use rackpool_proto::exchange::ClientThread;
use rackpool_proto::publication::{
    Decision, RecordPlace, RecoveryAction, RecoveryEvent, ReservationMemory, WordAccess, WordAnswer,
};
use rackpool_proto::rack::RackEvent;
use rackpool_ring::reservation::ReservationRecord;
use rackpool_sync::atomic::Ordering;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::atomics::Atomic;
use super::clients::{Clients, array_cells};
use super::machine::View;
use super::peers::Purpose;
use super::{ControlNotification, DataPlane};
use crate::data_plane::error::Result;

impl Clients {
    /// Returns a record; `None` if there is no such client or record.
    fn record(&self, place: RecordPlace) -> Option<&ReservationRecord> {
        self.slot(place.owner)?.reservations.get(usize::from(place.record))
    }
}

impl ReservationMemory for View<'_> {
    fn array_objects(&self, client: ClientId) -> impl Iterator<Item = (ClientThread, GlobalAddr)> {
        self.clients.threads_of(client).flat_map(|(owner, slot)| {
            array_cells(slot)
                .map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)))
                .filter(|addr| !addr.is_null())
                .map(move |addr| (owner, addr))
        })
    }

    fn reservations(&self, client: ClientId) -> impl Iterator<Item = RecordPlace> {
        self.clients.threads_of(client).flat_map(|(owner, slot)| {
            let records = (0..).zip(&slot.reservations);
            let used = records.filter(|(_, record)| !record.is_free());
            used.map(move |(record, _)| RecordPlace { owner, record })
        })
    }

    fn reservation(&self, place: RecordPlace) -> ReservationState {
        self.clients.record(place).map_or(ReservationState::Free, ReservationRecord::read)
    }
}

impl DataPlane {
    /// Reports the gone clients whose last operations have ended: transfers posted for them, and
    /// requests that another rack might still execute.
    pub(super) fn report_ended_operations(&mut self) {
        let ended = self.machine.unsettled_clients().filter(|client| {
            !self.transfers.has_any_of(*client) && !self.peers.does_anything_for(*client)
        });
        for client in ended.collect::<Vec<_>>() {
            self.machine.handle(RackEvent::Recovery(RecoveryEvent::OperationsEnded(client)));
        }
    }

    pub(super) fn execute_recovery(&mut self, action: RecoveryAction) -> Result<()> {
        match action {
            RecoveryAction::AccessWord { question, rack, addr, access } => {
                if rack == self.rack.geometry.rack {
                    let reply = self.atomic(addr, atomic(access));
                    self.word_answered(question, answer(&reply));
                    return Ok(());
                }
                self.meet(rack);
                let request = match access {
                    WordAccess::Read => PeerRequest::FetchAndAdd { addr, delta: 0 },
                    WordAccess::Swap { expected, new } => {
                        PeerRequest::CompareAndSwap { addr, expected, new }
                    }
                };
                let deadline = self.now() + self.lease;
                self.ask(rack, request, Purpose::Word { question }, deadline)?;
            }
            RecoveryAction::Locate(page) => self.notify(ControlNotification::Locate(page)),
            RecoveryAction::Decide(place, decision) => {
                if let Some(record) = self.clients.record(place) {
                    match decision {
                        Decision::Replaced => record.mark_replaced(),
                        Decision::Held => record.disarm(),
                        Decision::Free => record.clear(),
                    }
                }
            }
            RecoveryAction::ReportUnknown(client) => {
                tracing::warn!("client {} left a reservation of which nothing is known", client.0);
            }
            RecoveryAction::Resolved(client) => self.forget_if_returned(client),
            // The machine handles these itself.
            RecoveryAction::Return(..) | RecoveryAction::NeedPage(_) => {}
        }
        Ok(())
    }

    /// Handles another rack's answer about a word of a reservation.
    pub(super) fn word_replied(&mut self, question: u64, reply: &PeerReply) {
        let answer = answer(reply);
        if answer == WordAnswer::Invalid {
            tracing::warn!("a word of a reservation can't be looked at: {reply:?}");
        }
        self.word_answered(question, answer);
    }

    pub(super) fn word_answered(&mut self, question: u64, answer: WordAnswer) {
        let event = RecoveryEvent::WordAnswered { question, answer };
        self.machine.handle(RackEvent::Recovery(event));
    }
}

const fn atomic(access: WordAccess) -> Atomic {
    match access {
        WordAccess::Read => Atomic::FetchAndAdd { delta: 0 },
        WordAccess::Swap { expected, new } => Atomic::CompareAndSwap { expected, new },
    }
}

const fn answer(reply: &PeerReply) -> WordAnswer {
    match reply {
        PeerReply::Value(word) => WordAnswer::Value(*word),
        PeerReply::NotAllocated => WordAnswer::NotAllocated,
        PeerReply::NotHere => WordAnswer::NotHere,
        PeerReply::Busy => WordAnswer::Busy,
        PeerReply::Lost => WordAnswer::Lost,
        _ => WordAnswer::Invalid,
    }
}
