//! Objects of pages, and the clients' cells that hold them: clients allocate and free objects, here
//! and in other racks. This is the shell of a rack's exchanges.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{ClientId, FrameId, GlobalAddr, PageId, PageSize, PageState};
use rackpool_proto::exchange::{
    AskedState, CallResult, Caller, ClientThread, ExchangeAction, ExchangeEvent, ServedState,
};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::RackEvent;
use rackpool_wire::peer::{PeerReply, PeerRequest};

use crate::message::Message;
use crate::rng::{Rng, mix};
use crate::rules::{CLIENTS, MICRO, MILLI, RACKS, STORM};
use crate::world::{Event, World, rack_id};

/// Objects in a page.
pub(crate) const OBJECTS: usize = 4;
/// The pool's page size.
const PAGE: PageSize = PageSize::DEFAULT;
/// The most objects that a client keeps.
const KEPT: usize = 6;

/// The slab header, bitmap and marks of a frame. Header and bitmap travel with the page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Objects {
    pub(crate) is_slab: bool,
    pub(crate) used: [bool; OBJECTS],
    /// The client that holds each object; `None`: a program, or the pool's other racks.
    pub(crate) marks: [Option<ClientId>; OBJECTS],
}

/// The cells of a client's file, which survives daemon and client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectFile {
    pub(crate) inbox: Vec<GlobalAddr>,
    pub(crate) outbox: Vec<GlobalAddr>,
    pub(crate) magazine: Vec<GlobalAddr>,
    /// Set when the client has gone.
    pub(crate) gone: bool,
}

/// A call of a client that its daemon has to answer.
#[derive(Clone, Debug)]
pub(crate) struct ObjectCall {
    pub(crate) call: u32,
    count: u64,
    /// Racks without memory.
    tried: Vec<usize>,
}

/// What a client does with objects.
#[derive(Clone, Copy, Debug)]
struct ObjectClient {
    id: ClientId,
    /// The call that it waits for, and the daemon that has it.
    waits: Option<(Wish, u64)>,
    call: u32,
    /// Counts steps; a wake-up for an earlier step is ignored.
    turn: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Refill(u64),
    Release,
}

/// A message of an exchange. It is lost if one of the daemons has ended meanwhile.
#[derive(Clone, Debug)]
struct Parcel {
    lives: (u64, u64),
    attempt: u64,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Request(PeerRequest),
    Reply(PeerReply),
}

/// All that the world keeps for objects.
#[derive(Debug)]
pub(crate) struct ObjectWorld {
    /// Whether clients use objects in this world.
    pub(crate) on: bool,
    rng: Rng,
    clients: Vec<ObjectClient>,
    parcels: BTreeMap<u64, Parcel>,
    last: u64,
}

/// What a daemon keeps for exchanges.
#[derive(Debug, Default)]
pub(crate) struct ExchangeShell {
    /// Unanswered calls of clients.
    pub(crate) calls: BTreeMap<ClientId, ObjectCall>,
    /// The last request to each rack.
    attempts: BTreeMap<usize, u64>,
    /// Unanswered requests of other racks: the rack, and its number of the request.
    asks: BTreeMap<u64, (usize, u64)>,
    /// Clients that have gone, as far as the daemon knows.
    pub(crate) gone: BTreeSet<ClientId>,
}

impl ObjectFile {
    fn cells(&mut self) -> [&mut Vec<GlobalAddr>; 3] {
        [&mut self.inbox, &mut self.outbox, &mut self.magazine]
    }

    /// Returns the objects of all cells.
    pub(crate) fn held(&self) -> impl Iterator<Item = GlobalAddr> {
        self.inbox.iter().chain(&self.outbox).chain(&self.magazine).copied()
    }
}

impl ObjectWorld {
    pub(crate) fn new(seed: u64, on: bool) -> Self {
        let client = |id| ObjectClient { id: ClientId(id), waits: None, call: 0, turn: 0 };
        let clients = (1..).take(CLIENTS).map(client).collect();
        let last = CLIENTS as u64;
        Self { on, rng: Rng::new(mix(!seed)), clients, parcels: BTreeMap::new(), last }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Returns the page of an object, and its index there.
pub(crate) fn object_at(addr: GlobalAddr) -> Option<(PageId, usize)> {
    let bytes = PAGE.bytes() / OBJECTS as u64;
    let index = usize::try_from(addr.offset(PAGE) / bytes).ok()?;
    Some((addr.page(PAGE)?, index))
}

/// Returns the address of an object of a page.
pub(crate) fn object_addr(page: PageId, index: usize) -> Option<GlobalAddr> {
    let bytes = PAGE.bytes() / OBJECTS as u64;
    GlobalAddr::new(page, bytes * index as u64, PAGE).ok()
}

impl<B: Bugs> World<B> {
    /// Begins the activity of all clients.
    pub(crate) fn begin_objects(&mut self) {
        for client in 0..CLIENTS {
            let (rack, id) = (self.clients[client].rack, self.objects.clients[client].id);
            self.racks[rack].memory.files.insert(id, ObjectFile::default());
            self.next_object_step(client);
        }
    }

    fn next_object_step(&mut self, client: usize) {
        self.objects.clients[client].turn += 1;
        let turn = self.objects.clients[client].turn;
        let wait = self.objects.rng.within(500 * MICRO..15 * MILLI);
        self.after(wait, Event::ObjectStep { client, turn });
    }

    fn file(&mut self, client: usize) -> &mut ObjectFile {
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
            None if self.now < STORM => self.begin_object_call(client),
            None => return,
            Some(_) => {}
        }
        self.next_object_step(client);
    }

    fn begin_object_call(&mut self, client: usize) {
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

    fn post_object_call(&mut self, client: usize, wish: Wish) {
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

    fn refill(&mut self, rack: usize, caller: Caller, count: u64) {
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
    fn refill_elsewhere(&mut self, rack: usize, caller: Caller) -> Option<RackEvent> {
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
    fn release(&mut self, rack: usize, caller: Caller) {
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
    fn finish_object_call(&mut self, rack: usize, caller: Caller, result: Option<CallResult>) {
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
        self.racks[rack].memory.files.insert(new, ObjectFile::default());
    }

    /// A daemon has learned that a client has gone.
    pub(crate) fn objects_gone(&mut self, rack: usize, life: u64, id: u32) {
        if self.racks[rack].life == life
            && let Some(event) = self.return_of(rack, ClientId(id))
        {
            self.feed(rack, event);
        }
    }

    fn return_of(&mut self, rack: usize, client: ClientId) -> Option<RackEvent> {
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.exchange.calls.remove(&client);
            daemon.exchange.gone.insert(client);
        }
        let addrs = self.racks[rack].memory.files.get(&client)?.held().collect();
        let owner = ClientThread { client, thread: 0 };
        Some(RackEvent::Exchange(ExchangeEvent::Return { owner, caller: None, addrs, refused: 0 }))
    }

    /// Tells the machine of a started daemon what its predecessor has left.
    pub(crate) fn restart_objects(&mut self, rack: usize) {
        if !self.objects.on {
            return;
        }
        let memory = &self.racks[rack].memory;
        let records = (0..RACKS).map(|other| (rack_id(other), memory.peers[other].clone()));
        let mut events = vec![RackEvent::Exchange(ExchangeEvent::Restarted(records.collect()))];
        let gone = memory.files.iter().filter(|(_, file)| file.gone).map(|(id, _)| *id);
        for client in gone.collect::<Vec<_>>() {
            events.extend(self.return_of(rack, client));
        }
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        events.into_iter().for_each(|event| daemon.machine.handle(event));
    }

    pub(crate) fn exchange(&mut self, rack: usize, action: ExchangeAction) {
        match action {
            ExchangeAction::StoreAsked(to, record) => {
                let to = usize::from(to.0);
                let stored = &mut self.racks[rack].memory.peers[to].asked;
                if record.state != AskedState::Idle {
                    let state = stored.state;
                    stored.clone_from(&record);
                    stored.state = state;
                    if !self.burns(rack) {
                        return;
                    }
                }
                self.racks[rack].memory.peers[to].asked.state = record.state;
            }
            ExchangeAction::StoreServed(from, record) => {
                let from = usize::from(from.0);
                let stored = &mut self.racks[rack].memory.peers[from].served;
                if record.state != ServedState::Writing {
                    (stored.memory, stored.sequence) = (record.memory, record.sequence);
                    if !self.burns(rack) {
                        return;
                    }
                    let stored = &mut self.racks[rack].memory.peers[from].served;
                    let state = stored.state;
                    stored.clone_from(&record);
                    stored.state = state;
                    if !self.burns(rack) {
                        return;
                    }
                }
                self.racks[rack].memory.peers[from].served.state = record.state;
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
            ExchangeAction::NeedPage(_) => {}
        }
    }

    fn tried(&mut self, rack: usize, caller: Caller, other: usize) {
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
    fn forget_file(&mut self, rack: usize, client: ClientId) {
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

    fn strike(&mut self, rack: usize, owner: ClientThread, addrs: &[GlobalAddr]) {
        if let Some(file) = self.racks[rack].memory.files.get_mut(&owner.client) {
            for cells in file.cells() {
                cells.retain(|addr| !addrs.contains(addr));
            }
        }
    }

    fn object_frame(&mut self, rack: usize, addr: GlobalAddr) -> Option<(FrameId, usize)> {
        let (page, index) = object_at(addr)?;
        let found = self.racks[rack].memory.find(page)?;
        if found.word.state() != Some(PageState::Live) {
            let state = found.word.state();
            self.breaks(|| format!("an object of {page}, which is {state:?}, changes"));
        }
        Some((found.frame, index))
    }

    fn allocate_object(&mut self, rack: usize, addr: GlobalAddr, holder: Option<ClientId>) {
        let Some((frame, index)) = self.object_frame(rack, addr) else {
            return self.breaks(|| format!("{addr} is allocated in rack {rack}, without its page"));
        };
        let objects = &mut self.racks[rack].memory.frame(frame).objects;
        objects.marks[index] = holder;
        if std::mem::replace(&mut objects.used[index], true) {
            self.breaks(|| format!("{addr} is allocated twice"));
        }
    }

    fn free_object(&mut self, rack: usize, addr: GlobalAddr, client: Option<ClientId>) {
        if self.holders(addr, |file| &file.magazine) > 0 {
            self.breaks(|| format!("{addr} is freed while a client holds it"));
        }
        let Some((frame, index)) = self.object_frame(rack, addr) else {
            return self.breaks(|| format!("{addr} is freed in rack {rack}, without its page"));
        };
        let objects = &mut self.racks[rack].memory.frame(frame).objects;
        let is_others = objects.marks[index].is_some_and(|holder| Some(holder) != client);
        if !std::mem::replace(&mut objects.used[index], false) || is_others {
            self.breaks(|| format!("{addr} is freed, and is free or another client's"));
        }
        self.seen.returned += 1;
    }

    /// Returns the number of live clients whose cells hold an object.
    fn holders(&self, addr: GlobalAddr, cells: impl Fn(&ObjectFile) -> &Vec<GlobalAddr>) -> usize {
        let files = self.racks.iter().flat_map(|rack| rack.memory.files.values());
        files.filter(|file| !file.gone && cells(file).contains(&addr)).count()
    }

    /// Checks that an object which a client takes is allocated and nobody else's.
    fn check_taken(&mut self, addr: GlobalAddr) {
        let files = self.racks.iter().flat_map(|rack| rack.memory.files.values());
        let holds = |file: &&ObjectFile| file.held().any(|held| held == addr);
        let holders = files.filter(holds).count();
        if holders > 0 || !self.is_used_somewhere(addr) {
            self.breaks(|| format!("{addr} is allocated, is free or has {holders} holders"));
        }
    }

    /// Returns true if the object's bit is set in a frame where its page can be read.
    fn is_used_somewhere(&self, addr: GlobalAddr) -> bool {
        let Some((page, index)) = object_at(addr) else { return false };
        let frames = self.racks.iter().flat_map(|rack| &rack.memory.frames);
        let mut of_page = frames.filter(|one| one.word.page() == page && one.word.is_readable());
        of_page.any(|one| one.objects.used[index])
    }

    fn request(&mut self, rack: usize, to: usize, request: PeerRequest) {
        let attempt = self.objects.number();
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.exchange.attempts.insert(to, attempt);
        let life = self.racks[rack].life;
        self.send_parcel(rack, to, attempt, Body::Request(request));
        let wait = self.objects.rng.within(30 * MILLI..90 * MILLI);
        self.after(wait, Event::ExchangeLost { rack, life, to, attempt });
    }

    fn send_parcel(&mut self, from: usize, to: usize, attempt: u64, body: Body) {
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

    fn answer_rack(&mut self, rack: usize, ask: u64, reply: PeerReply) {
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

    /// Describes which exchanges and calls are not finished.
    pub(crate) fn object_unrest(&self) -> Option<String> {
        if !self.objects.on {
            return None;
        }
        if let Some(client) = self.objects.clients.iter().position(|one| one.waits.is_some()) {
            return Some(format!("client {client} waits for objects"));
        }
        self.racks.iter().enumerate().find_map(|(index, rack)| {
            let daemon = rack.daemon.as_ref()?;
            let gone = rack.memory.files.values().filter(|file| file.gone).count();
            let exchanges = daemon.machine.exchanging();
            let rests = gone + exchanges == 0;
            (!rests).then(|| format!("rack {index} has {exchanges} exchanges, {gone} dead clients"))
        })
    }

    /// Checks that at rest each allocated object is in exactly one cell of a live client, and each
    /// cell holds an allocated object.
    pub(crate) fn check_objects(&self) -> Result<(), String> {
        if !self.objects.on {
            return Ok(());
        }
        let files = || self.racks.iter().flat_map(|rack| rack.memory.files.values());
        let mut held: BTreeMap<GlobalAddr, usize> = BTreeMap::new();
        for addr in files().flat_map(ObjectFile::held) {
            *held.entry(addr).or_default() += 1;
        }
        for frame in self.racks.iter().flat_map(|rack| &rack.memory.frames) {
            let is_live = frame.word.state() == Some(PageState::Live) && frame.objects.is_slab;
            for index in (0..OBJECTS).filter(|index| is_live && frame.objects.used[*index]) {
                let addr = object_addr(frame.word.page(), index).ok_or("no such object")?;
                match held.remove(&addr) {
                    Some(1) => {}
                    Some(count) => return Err(format!("{addr} is in {count} cells")),
                    None => return Err(format!("{addr} is allocated, and nobody has it")),
                }
            }
        }
        match held.first_key_value() {
            Some((addr, _)) => Err(format!("{addr} is in a cell, and is free")),
            None => Ok(()),
        }
    }
}
