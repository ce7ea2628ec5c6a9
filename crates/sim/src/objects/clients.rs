//! What clients do with objects, and how their daemon serves them.

use rackpool_model::{ClientId, GlobalAddr, PageState};
use rackpool_proto::exchange::{CallResult, Caller, ClientThread, ExchangeEvent};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::publication::RecoveryEvent;
use rackpool_proto::rack::RackEvent;

use super::{KEPT, OBJECTS, ObjectCall, ObjectClient, ObjectFile, Wish, object_at};
use crate::rules::{CLIENTS, MICRO, MILLI, RACKS, STORM};
use crate::world::{Event, World, rack_id};

impl<B: Bugs> World<B> {
    /// Begins the activity of all clients.
    pub(crate) fn begin_objects(&mut self) {
        for client in 0..CLIENTS {
            let (rack, id) = (self.clients[client].rack, self.objects.clients[client].id);
            self.racks[rack].memory.files.insert(id, ObjectFile::default());
            self.next_object_step(client);
        }
    }

    pub(super) fn next_object_step(&mut self, client: usize) {
        self.objects.clients[client].turn += 1;
        let turn = self.objects.clients[client].turn;
        let wait = match self.is_publishing(client) {
            true => self.publishing_pause(client),
            false => self.objects.rng.within(500 * MICRO..15 * MILLI),
        };
        self.after(wait, Event::ObjectStep { client, turn });
    }

    pub(super) fn file(&mut self, client: usize) -> &mut ObjectFile {
        let (rack, id) = (self.clients[client].rack, self.objects.clients[client].id);
        self.racks[rack].memory.files.entry(id).or_default()
    }

    pub(crate) fn object_step(&mut self, client: usize, turn: u64) {
        let ObjectClient { waits, turn: current, .. } = self.objects.clients[client];
        if turn != current {
            return;
        }
        let life = self.racks[self.clients[client].rack].life;
        match waits {
            // The daemon that had the call has ended: it is posted again.
            Some((wish, of)) if of != life => self.post_object_call(client, wish),
            None if self.is_publishing(client) => self.publication_step(client),
            None if self.now < STORM => {
                let publishes = self.objects.rng.percent(25);
                if !(publishes && self.begin_publication(client)) {
                    self.begin_object_call(client);
                }
            }
            // Records of dead clients may wait until a link does not point to an aborted object.
            None if self.object_unrest().is_some() => {
                self.begin_publication(client);
            }
            None => return,
            Some(_) => {}
        }
        self.next_object_step(client);
    }

    pub(super) fn begin_object_call(&mut self, client: usize) {
        if self.racks[self.clients[client].rack].daemon.is_none() {
            return;
        }
        let [kind, count] = [self.objects.rng.below(100), self.objects.rng.below(OBJECTS)];
        let file = self.file(client);
        let kept = file.magazine.len();
        if !file.inbox.is_empty() || kept == 0 || kept < KEPT && kind < 60 {
            return self.post_object_call(client, Wish::Refill(count as u64 + 1));
        }
        let freed: Vec<GlobalAddr> = file.magazine.drain(..kept.min(count + 1)).collect();
        file.outbox.extend(freed);
        self.post_object_call(client, Wish::Release);
    }

    pub(super) fn post_object_call(&mut self, client: usize, wish: Wish) {
        let rack = self.clients[client].rack;
        let life = self.racks[rack].life;
        let one = &mut self.objects.clients[client];
        one.call += 1;
        one.waits = Some((wish, life));
        let (id, call) = (one.id.0, one.call);
        self.after(MICRO, Event::ObjectCall { rack, life, client, id, call });
    }

    /// A daemon serves a client's call.
    pub(crate) fn object_called(
        &mut self,
        rack: usize,
        life: u64,
        client: usize,
        id: ClientId,
        call: u32,
    ) {
        let ObjectClient { id: now, waits, call: current, .. } = self.objects.clients[client];
        let Some((wish, _)) = waits.filter(|_| (id, call) == (now, current)) else { return };
        if self.racks[rack].life != life {
            return;
        }
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let count = if let Wish::Refill(count) = wish { count } else { 0 };
        daemon.exchange.calls.insert(id, ObjectCall { call, count, tried: Vec::new() });
        let caller = Caller { client: id, thread: 0, cell: 0, call };
        match wish {
            Wish::Refill(count) => self.refill(rack, caller, count),
            Wish::Release => self.release(rack, caller),
        }
    }

    pub(super) fn refill(&mut self, rack: usize, caller: Caller, count: u64) {
        let id = caller.client;
        let mut filled = self.racks[rack].memory.files.get(&id).map_or(0, |file| file.inbox.len());
        if filled == 0 {
            while (filled as u64) < count {
                let memory = &mut self.racks[rack].memory;
                let Some(addr) = memory.candidate() else { break };
                // Noted first: a crash in between leaves a note of a free object.
                memory.files.entry(id).or_default().inbox.push(addr);
                if !self.burns(rack) {
                    return;
                }
                self.allocate_object(rack, addr, Some(id));
                filled += 1;
            }
        }
        if filled > 0 {
            return self.finish_object_call(
                rack,
                caller,
                Some(CallResult::Allocated(filled as u64)),
            );
        }
        if let Some(event) = self.refill_elsewhere(rack, caller) {
            self.feed(rack, event);
        }
    }

    /// Returns the request to the next rack; `None` if all were asked: the caller is answered.
    pub(super) fn refill_elsewhere(&mut self, rack: usize, caller: Caller) -> Option<RackEvent> {
        let daemon = self.racks[rack].daemon.as_mut()?;
        let calls = &daemon.exchange.calls;
        let ObjectCall { tried, count, .. } =
            calls.get(&caller.client).filter(|open| open.call == caller.call)?;
        let others: Vec<usize> =
            (0..RACKS).filter(|other| *other != rack && !tried.contains(other)).collect();
        let count = *count;
        if others.is_empty() {
            self.finish_object_call(rack, caller, None);
            return None;
        }
        let to = rack_id(others[self.objects.rng.below(others.len())]);
        let allocate = ExchangeEvent::Allocate { caller, rack: to, bytes: 1, count };
        Some(RackEvent::Exchange(allocate))
    }

    /// Frees the objects of the outbox: those of live pages here at once.
    pub(super) fn release(&mut self, rack: usize, caller: Caller) {
        let id = caller.client;
        let owner = ClientThread { client: id, thread: 0 };
        let file = self.racks[rack].memory.files.get(&id);
        let outbox = file.map_or(Vec::new(), |file| file.outbox.clone());
        let mut elsewhere = Vec::new();
        for addr in outbox {
            let found = object_at(addr).and_then(|(page, _)| self.racks[rack].memory.find(page));
            if found.is_none_or(|found| found.word.state() != Some(PageState::Live)) {
                elsewhere.push(addr);
                continue;
            }
            if !self.burns(rack) {
                return;
            }
            self.free_object(rack, addr, Some(id));
            if !self.burns(rack) {
                return;
            }
            self.strike(rack, owner, &[addr]);
        }
        if elsewhere.is_empty() {
            return self.finish_object_call(rack, caller, Some(CallResult::Freed(0)));
        }
        let (caller, addrs) = (Some(caller), elsewhere);
        self.feed(
            rack,
            RackEvent::Exchange(ExchangeEvent::Return { owner, caller, addrs, refused: 0 }),
        );
    }

    /// Answers a client; `None`: the pool has no memory.
    pub(super) fn finish_object_call(
        &mut self,
        rack: usize,
        caller: Caller,
        result: Option<CallResult>,
    ) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let calls = &mut daemon.exchange.calls;
        if calls.get(&caller.client).is_none_or(|open| open.call != caller.call) {
            return;
        }
        calls.remove(&caller.client);
        let mut clients = self.objects.clients.iter();
        let is_its = |one: &ObjectClient| one.id == caller.client && one.call == caller.call;
        let Some(client) = clients.position(is_its) else { return };
        self.objects.clients[client].waits = None;
        let file = self.file(client);
        match result {
            Some(CallResult::Allocated(count)) => {
                let taken = std::mem::take(&mut file.inbox);
                if taken.len() as u64 != count {
                    let found = taken.len();
                    self.breaks(|| format!("{count} objects were allocated, {found} are there"));
                }
                self.seen.allocated += count;
                for addr in taken {
                    self.check_taken(addr);
                    self.file(client).magazine.push(addr);
                }
            }
            Some(CallResult::Freed(refused)) => {
                let left = file.outbox.len();
                if refused > 0 || left > 0 {
                    self.breaks(|| format!("of freed objects {refused} were free, {left} stay"));
                }
            }
            Some(CallResult::Invalid) => self.breaks(|| "an allocation is refused".to_owned()),
            Some(CallResult::Kept(_)) | None => {}
        }
    }

    /// Kills the client's process as far as objects go; another one replaces it.
    pub(crate) fn crash_object_client(&mut self, client: usize) {
        if !self.objects.on {
            return;
        }
        let rack = self.clients[client].rack;
        self.file(client).gone = true;
        let id = self.objects.clients[client].id;
        let life = self.racks[rack].life;
        self.after(MICRO, Event::ObjectsGone { rack, life, id: id.0 });
        let new = ClientId(u32::try_from(self.objects.number()).unwrap_or(u32::MAX));
        let one = &mut self.objects.clients[client];
        (one.id, one.waits) = (new, None);
        self.objects.publications[client] = None;
        self.racks[rack].memory.files.insert(new, ObjectFile::default());
    }

    /// A daemon has learned that a client has gone.
    pub(crate) fn objects_gone(&mut self, rack: usize, life: u64, id: u32) {
        let client = ClientId(id);
        let is_its = self.racks[rack].life == life;
        if is_its && let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.exchange.calls.remove(&client);
            daemon.exchange.gone.insert(client);
            self.feed(rack, RackEvent::Recovery(RecoveryEvent::ClientGone(client)));
            self.report_ended_operations(rack);
        }
    }

    /// Ends the clients that are in a publication, and some of the others.
    pub(crate) fn end_publishers(&mut self) {
        if !self.objects.on {
            return;
        }
        for client in 0..CLIENTS {
            if self.is_publishing(client) || self.objects.rng.percent(50) {
                self.crash_object_client(client);
            }
        }
    }
}
