//! The shell of a rack's exchanges: executes the machine's actions. A crash may come between any
//! two stores of a record.

use rackpool_model::{ClientId, GlobalAddr};
use rackpool_proto::exchange::{
    AskedRecord, AskedState, Caller, ClientThread, ExchangeAction, ExchangeEvent, ServedRecord,
    ServedState,
};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::publication::RecoveryEvent;
use rackpool_proto::rack::RackEvent;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use super::{Body, Parcel};
use crate::message::Message;
use crate::rules::{MILLI, RACKS};
use crate::world::{Event, World, rack_id};

impl<B: Bugs> World<B> {
    /// Tells the machine of a started daemon what its predecessor has left.
    pub(crate) fn restart_objects(&mut self, rack: usize) {
        if !self.objects.on {
            return;
        }
        let memory = &self.racks[rack].memory;
        let records = (0..RACKS).map(|other| (rack_id(other), memory.peers[other].clone()));
        let mut events = vec![RackEvent::Exchange(ExchangeEvent::Restarted(records.collect()))];
        let gone = memory.files.iter().filter(|(_, file)| file.gone).map(|(id, _)| *id);
        let gone = gone.collect::<Vec<_>>();
        // This daemon has begun no operation for them.
        for client in gone.iter().copied() {
            events.push(RackEvent::Recovery(RecoveryEvent::ClientGone(client)));
            events.push(RackEvent::Recovery(RecoveryEvent::OperationsEnded(client)));
        }
        let (life, now) = (self.racks[rack].life, self.now);
        self.objects.starts.insert((rack, life), now);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.exchange.gone.extend(gone);
        events.into_iter().for_each(|event| daemon.machine.handle(event));
    }

    pub(crate) fn exchange(&mut self, rack: usize, action: ExchangeAction) {
        match action {
            ExchangeAction::StoreAsked(to, record) => {
                self.store_asked(rack, usize::from(to.0), &record);
            }
            ExchangeAction::StoreServed(from, record) => {
                self.store_served(rack, usize::from(from.0), &record);
            }
            ExchangeAction::Request(to, request) => {
                self.request(rack, usize::from(to.0), request);
            }
            ExchangeAction::Answer(ask, reply) => self.answer_rack(rack, ask, reply),
            ExchangeAction::Allocate { addr, .. } => self.allocate_object(rack, addr, None),
            ExchangeAction::Free { addr, client } => self.free_object(rack, addr, client),
            ExchangeAction::FillInbox(caller, addrs) => {
                for addr in addrs {
                    if let Some(file) = self.racks[rack].memory.files.get_mut(&caller.client) {
                        file.inbox.push(addr);
                    }
                    if !self.burns(rack) {
                        return;
                    }
                }
            }
            ExchangeAction::Strike(owner, addrs) => self.strike(rack, owner, &addrs),
            ExchangeAction::StrikeEverywhere(addrs) => {
                let clients = self.racks[rack].memory.files.keys().copied();
                for client in clients.collect::<Vec<_>>() {
                    self.strike(rack, ClientThread { client, thread: 0 }, &addrs);
                }
            }
            ExchangeAction::Locate(page) => {
                self.ask_home(rack, page, 0);
            }
            ExchangeAction::Finish(caller, result) => {
                self.finish_object_call(rack, caller, Some(result));
            }
            ExchangeAction::NotAllocated(caller, other, _) => {
                self.tried(rack, caller, usize::from(other.0));
            }
            ExchangeAction::Returned(client) => self.forget_file(rack, client),
            ExchangeAction::NeedPage(_) | ExchangeAction::ReportUnused { .. } => {}
        }
    }

    /// Stores the fields and then the state.
    fn store_asked(&mut self, rack: usize, to: usize, record: &AskedRecord) {
        let stored = &mut self.racks[rack].memory.peers[to].asked;
        if record.state != AskedState::Idle {
            *stored = AskedRecord { state: stored.state, ..record.clone() };
            if !self.burns(rack) {
                return;
            }
        }
        self.racks[rack].memory.peers[to].asked.state = record.state;
    }

    /// Stores some fields, then the others, then the state.
    fn store_served(&mut self, rack: usize, from: usize, record: &ServedRecord) {
        let stored = &mut self.racks[rack].memory.peers[from].served;
        if record.state != ServedState::Writing {
            (stored.memory, stored.sequence) = (record.memory, record.sequence);
            if !self.burns(rack) {
                return;
            }
            let stored = &mut self.racks[rack].memory.peers[from].served;
            *stored = ServedRecord { state: stored.state, ..record.clone() };
            if !self.burns(rack) {
                return;
            }
        }
        self.racks[rack].memory.peers[from].served.state = record.state;
    }

    pub(super) fn tried(&mut self, rack: usize, caller: Caller, other: usize) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if let Some(open) = daemon.exchange.calls.get_mut(&caller.client)
            && open.call == caller.call
        {
            open.tried.push(other);
        }
        let next = self.refill_elsewhere(rack, caller);
        if let (Some(event), Some(daemon)) = (next, &mut self.racks[rack].daemon) {
            daemon.machine.handle(event);
        }
    }

    /// Removes the file of a client that has gone and holds nothing any more.
    pub(super) fn forget_file(&mut self, rack: usize, client: ClientId) {
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        if daemon.machine.returns_of(client) || !daemon.exchange.gone.remove(&client) {
            return;
        }
        let left = node.memory.files.remove(&client).map_or(0, |file| file.held().count());
        if left > 0 {
            self.breaks(|| format!("the file of a dead client is removed with {left} objects"));
        }
    }

    pub(super) fn strike(&mut self, rack: usize, owner: ClientThread, addrs: &[GlobalAddr]) {
        if let Some(file) = self.racks[rack].memory.files.get_mut(&owner.client) {
            file.strike(addrs);
        }
    }

    pub(super) fn request(&mut self, rack: usize, to: usize, request: PeerRequest) {
        let attempt = self.objects.number();
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.exchange.attempts.insert(to, attempt);
        let life = self.racks[rack].life;
        self.send_parcel(rack, to, attempt, Body::Request(request));
        let wait = self.objects.rng.within(30 * MILLI..90 * MILLI);
        self.after(wait, Event::ExchangeLost { rack, life, to, attempt });
    }

    pub(super) fn send_parcel(&mut self, from: usize, to: usize, attempt: u64, body: Body) {
        let lives = (self.racks[from].life, self.racks[to].life);
        let id = self.objects.number();
        self.objects.parcels.insert(id, Parcel { lives, attempt, body });
        self.send(from, to, Message::Exchange(id));
    }

    /// The endpoint over which a request was sent has ended.
    pub(crate) fn exchange_lost(&mut self, rack: usize, life: u64, to: usize, attempt: u64) {
        let is_its = self.racks[rack].life == life;
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if is_its && daemon.exchange.attempts.get(&to) == Some(&attempt) {
            daemon.exchange.attempts.remove(&to);
            let event = ExchangeEvent::Unanswered(rack_id(to));
            self.feed(rack, RackEvent::Exchange(event));
        }
    }

    pub(super) fn answer_rack(&mut self, rack: usize, ask: u64, reply: PeerReply) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if let Some((to, attempt)) = daemon.exchange.asks.remove(&ask) {
            self.send_parcel(rack, to, attempt, Body::Reply(reply));
        }
    }

    pub(crate) fn parcel_received(&mut self, rack: usize, from: usize, id: u64) {
        let Some(Parcel { lives, attempt, body }) = self.objects.parcels.get(&id).cloned() else {
            return;
        };
        let ask = self.objects.number();
        if lives != (self.racks[from].life, self.racks[rack].life) {
            return;
        }
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let event = match body {
            Body::Request(request) => {
                daemon.exchange.asks.insert(ask, (from, attempt));
                ExchangeEvent::Requested(ask, request)
            }
            Body::Reply(reply) if daemon.exchange.attempts.get(&from) == Some(&attempt) => {
                daemon.exchange.attempts.remove(&from);
                ExchangeEvent::Answered(rack_id(from), reply)
            }
            Body::Reply(_) => return,
        };
        self.feed(rack, RackEvent::Exchange(event));
    }
}
