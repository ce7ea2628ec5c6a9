//! Racks whose clients lock lines, in a world where processes are killed and stand still, endpoints
//! end, and pages move. A run follows from its seed.

mod client;
mod rack;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use client::{Client, Stage};
use rack::{Daemon, Memory, Message, live};
use rackpool_model::{
    ClaimId, ClientId, LockClaim, LockMode, LockWordIndex, PageEvent, PageId, RackId,
};
use rackpool_proto::Time;
use rackpool_proto::lease::EndpointToken;
use rackpool_proto::lock::{LockEvent, LockRequester, LockRules};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_sync::SplitMix64;
use rackpool_wire::lock::{LockEnd, LockOutcome};

use crate::plant::Plant;

/// A line: page and number.
pub(crate) type Line = (PageId, u32);
/// One of the two counters of a line.
pub(crate) type Counter = (Line, usize);

/// A step takes a microsecond.
const STEP: u64 = 1_000;
pub(crate) const RULES: LockRules = LockRules {
    lease: Duration::from_micros(2_000),
    earlier_holders: Duration::from_micros(3_000),
    cached_reads: Duration::from_micros(CACHED + 50),
};
/// How long a client reads lines that it has fetched, in steps.
const CACHED: u64 = 500;
/// The time in which a request must have been granted, whatever fails.
const TIMEOUT: Duration = Duration::from_micros(60_000);
/// The timeout of programs that do not wait for long.
const SHORT: Duration = Duration::from_micros(150);
/// The longest time, in steps, until both ends of an endpoint know of its end, and the longest that
/// an operation is under way.
const NOTICE: u64 = 300;
/// The number of steps in which faults happen, and until the end.
const FAULTY: u64 = 20_000;
const LIMIT: u64 = 40_000;
const RACKS: usize = 2;
const CLIENTS: usize = 5;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    Some,
}

/// What a run went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) held: u32,
    pub(crate) recovered: u32,
    pub(crate) lost: u32,
    pub(crate) moved: u32,
    pub(crate) withdrawn: u32,
    /// Unlocks before everything was written back.
    pub(crate) given_up: u32,
    /// The longest wait of a writer for its lock, in steps.
    pub(crate) longest_wait: u64,
}

struct Rack {
    memory: Memory,
    daemon: Daemon,
    /// Requests of other racks that are being handled.
    asks: Vec<(EndpointToken, u64)>,
}

/// A connection over which one rack sends requests to another.
struct Endpoint {
    token: EndpointToken,
    requester: usize,
    home: usize,
    /// Whether each end knows of no end yet.
    at_requester: bool,
    at_home: bool,
    to_home: VecDeque<Message>,
    to_requester: VecDeque<Message>,
    /// The requests that the home has not answered.
    open: Vec<u64>,
}

/// What a daemon does for a client in another rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Reads the lines of its lock, for this part of its work.
    Fetch(usize),
    /// Writes the counter back that was written as this one.
    WriteBack(usize),
}

/// An operation that a daemon executes in another rack.
struct Operation {
    client: ClientId,
    work: Work,
    token: EndpointToken,
    posted: u64,
    /// The counter that it writes.
    write: Option<(Counter, u64)>,
}

/// An unlock that waits at the home, because the page can't be written at the moment.
struct ParkedUnlock {
    home: usize,
    requester: usize,
    token: EndpointToken,
    number: u64,
    end: LockEnd,
    written: BTreeMap<Counter, u64>,
}

pub(crate) struct World {
    faults: Faults,
    plant: Plant,
    now: u64,
    draw: SplitMix64,
    racks: Vec<Rack>,
    clients: Vec<Client>,
    endpoints: Vec<Endpoint>,
    operations: Vec<Operation>,
    data: BTreeMap<Line, [u64; 2]>,
    acknowledged: BTreeMap<Line, u64>,
    /// What the holders of locks, by rack and number, have written and the next ones must find.
    owed: BTreeMap<(usize, u64), BTreeMap<Counter, u64>>,
    parked: Vec<ParkedUnlock>,
    claims: Vec<LockClaim>,
    /// What the first client locks always.
    writer: Option<LockClaim>,
    /// The page that moves, from which rack, since when.
    moving: Option<(PageId, usize, u64)>,
    last_client: u32,
    last_token: u64,
    seen: Seen,
}

impl Seen {
    pub(crate) fn add(&mut self, more: &Self) {
        self.held += more.held;
        self.recovered += more.recovered;
        self.lost += more.lost;
        self.moved += more.moved;
        self.withdrawn += more.withdrawn;
        self.given_up += more.given_up;
        self.longest_wait = self.longest_wait.max(more.longest_wait);
    }
}

/// Two lines of a page that have the same lock word.
fn colliding(page: PageId) -> [u32; 2] {
    let mut seen = BTreeMap::new();
    let mut lines = (0..1 << 20).filter_map(|line| {
        let other = seen.insert(LockWordIndex::of(page, line), line)?;
        Some([other, line])
    });
    lines.next().unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults, bug: Option<Bug>) -> Self {
        let (first, second) = (PageId(1), PageId(2));
        let [one, other] = colliding(first);
        let lines = [(first, one, 1), (first, other, 1), (first, one, 2), (second, 0, 1)];
        let of =
            |mode| lines.map(|(page, line, n)| LockClaim::of_lines(page, line, n, mode).unwrap());
        let plant = Plant(bug);
        let racks = (0..RACKS).map(|rack| Rack {
            memory: Memory {
                pages: [first, second]
                    .into_iter()
                    .skip(rack)
                    .take(1)
                    .map(|p| (p, live(p)))
                    .collect(),
                ..Memory::default()
            },
            daemon: Daemon::new(Time::ZERO, &Memory::default(), plant),
            asks: Vec::new(),
        });
        let mut world = Self {
            faults,
            plant,
            now: 1,
            draw: SplitMix64::new(seed),
            racks: racks.collect(),
            clients: Vec::new(),
            endpoints: Vec::new(),
            operations: Vec::new(),
            data: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            owed: BTreeMap::new(),
            parked: Vec::new(),
            claims: [of(LockMode::Read), of(LockMode::Write)].concat(),
            writer: None,
            moving: None,
            last_client: 0,
            last_token: 0,
            seen: Seen::default(),
        };
        for index in 0..CLIENTS {
            let client = world.new_client(index % RACKS);
            world.clients.push(client);
        }
        world
    }

    /// One writer among readers of one line, without faults.
    pub(crate) fn of_readers(seed: u64, bug: Option<Bug>) -> Self {
        let mut world = Self::new(seed, Faults::None, bug);
        let of = |mode| LockClaim::of_lines(PageId(1), 0, 1, mode).unwrap();
        world.writer = Some(of(LockMode::Write));
        world.claims = vec![of(LockMode::Read)];
        for index in 0..CLIENTS {
            world.clients[index].claim = world.next_claim(index);
        }
        world
    }

    /// What a client locks next.
    fn next_claim(&mut self, index: usize) -> LockClaim {
        match self.writer {
            Some(claim) if index == 0 => claim,
            _ => self.draw_claim(),
        }
    }

    fn new_client(&mut self, rack: usize) -> Client {
        self.last_client += 1;
        let client = ClientId(self.last_client);
        self.racks[rack].memory.beats.insert(client, 0);
        let claim = self.draw_claim();
        Client::new(rack, ClaimId { client, thread: 0, index: 0 }, claim)
    }

    fn draw_claim(&mut self) -> LockClaim {
        let index = self.below(self.claims.len() as u64);
        self.claims[usize::try_from(index).unwrap()]
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.draw.draw() % limit
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now * STEP)
    }

    fn home_of(&self, page: PageId) -> RackId {
        let home = self.racks.iter().position(|rack| rack.memory.pages.contains_key(&page));
        RackId(u16::try_from(home.unwrap()).unwrap())
    }

    /// Runs the world to its end. Returns what was violated.
    pub(crate) fn run(mut self) -> Result<Seen, String> {
        while self.now < LIMIT {
            self.now += 1;
            if self.faults == Faults::Some && self.now < FAULTY && self.chance(400) {
                self.fault();
            }
            match self.below(4) {
                0 => self.daemon_steps()?,
                1 => self.deliver()?,
                _ => self.some_client_step()?,
            }
            self.look_at_move()?;
        }
        for (index, client) in self.clients.iter().enumerate() {
            let waited = self.now - client.asked_at;
            if matches!(client.stage, Stage::Asking(_)) && waited * STEP > 25_000_000 {
                return Err(format!("client {index} waits since {waited} us: {client:?}"));
            }
        }
        Ok(self.seen)
    }

    fn some_client_step(&mut self) -> Result<(), String> {
        let index = usize::try_from(self.below(CLIENTS as u64)).unwrap();
        if self.clients[index].stopped_until > self.now {
            return Ok(());
        }
        let (rack, client) = (self.clients[index].rack, self.clients[index].id.client);
        *self.racks[rack].memory.beats.entry(client).or_default() += 1;
        self.client_step(index)
    }

    /// A daemon does a step; its answers and messages leave.
    fn daemon_steps(&mut self) -> Result<(), String> {
        let index = usize::try_from(self.below(RACKS as u64)).unwrap();
        let now = self.time();
        for _ in 0..=self.below(6) {
            let rack = &mut self.racks[index];
            let is_idle = !rack.daemon.step(now, &mut rack.memory);
            self.send(index)?;
            if is_idle {
                self.idle(index);
                break;
            }
        }
        Ok(())
    }

    fn send(&mut self, rack: usize) -> Result<(), String> {
        let daemon = &mut self.racks[rack].daemon;
        let (answers, requests) =
            (std::mem::take(&mut daemon.answers), std::mem::take(&mut daemon.requests));
        let replies = std::mem::take(&mut daemon.replies);
        let forgotten = std::mem::take(&mut daemon.forgotten);
        for answer in answers {
            if let Some(index) = self.clients.iter().position(|client| client.id == answer.id) {
                self.answered(index, &answer)?;
            }
        }
        for (home, message) in requests {
            let index = self.connect(rack, usize::from(home.0));
            let endpoint = &mut self.endpoints[index];
            if let Message::Lock { number, .. } = message {
                endpoint.open.push(number);
            }
            endpoint.to_home.push_back(message);
        }
        for client in forgotten {
            if self.clients.iter().all(|living| living.id.client != client) {
                self.racks[rack].memory.caches.retain(|id, _| id.client != client);
            }
        }
        for (token, message) in replies {
            if let Message::Decided { number, .. } = message {
                self.racks[rack].asks.retain(|ask| *ask != (token, number));
            }
            if let Some(endpoint) = self.endpoints.iter_mut().find(|e| e.token == token) {
                match endpoint.requester == rack {
                    true => endpoint.to_home.push_back(message),
                    false => endpoint.to_requester.push_back(message),
                }
            }
        }
        Ok(())
    }

    /// A daemon has handled all events: requests without an answer are queued, and unlocks are
    /// done.
    fn idle(&mut self, rack: usize) {
        for (token, number) in std::mem::take(&mut self.racks[rack].asks) {
            let message = Message::Decided { number, outcome: LockOutcome::Queued };
            if let Some(endpoint) = self.endpoints.iter_mut().find(|e| e.token == token) {
                endpoint.to_requester.push_back(message);
            }
        }
        for index in 0..CLIENTS {
            if let Stage::Telling(again) = self.clients[index].stage
                && self.clients[index].rack == rack
            {
                self.told(index, again);
            }
        }
    }

    /// The endpoint for requests of one rack to another.
    fn connect(&mut self, requester: usize, home: usize) -> usize {
        let is_this = |endpoint: &Endpoint| {
            endpoint.requester == requester && endpoint.home == home && endpoint.at_requester
        };
        if let Some(index) = self.endpoints.iter().position(is_this) {
            return index;
        }
        self.last_token += 1;
        self.endpoints.push(Endpoint {
            token: EndpointToken(self.last_token),
            requester,
            home,
            at_requester: true,
            at_home: true,
            to_home: VecDeque::new(),
            to_requester: VecDeque::new(),
            open: Vec::new(),
        });
        self.endpoints.len() - 1
    }

    /// A message arrives, an operation is executed, or an end of an endpoint is noticed.
    fn deliver(&mut self) -> Result<(), String> {
        if !self.operations.is_empty() && self.chance(2) {
            let index = usize::try_from(self.below(self.operations.len() as u64)).unwrap();
            let operation = self.operations.swap_remove(index);
            self.operate(&operation);
            return Ok(());
        }
        if !self.parked.is_empty() && self.chance(300) {
            let unlock = self.parked.remove(0);
            return self.unlocked(unlock, true);
        }
        if self.endpoints.is_empty() {
            return Ok(());
        }
        let index = usize::try_from(self.below(self.endpoints.len() as u64)).unwrap();
        let endpoint = &mut self.endpoints[index];
        let (token, home, requester) = (endpoint.token, endpoint.home, endpoint.requester);
        if endpoint.at_home != endpoint.at_requester {
            if self.chance(NOTICE / 20) {
                self.end(index);
            }
            return Ok(());
        }
        let to_home = self.endpoints[index].to_home.pop_front();
        if let Some(message) = to_home {
            let rack = &mut self.racks[home];
            rack.daemon.events.push_back(match message {
                Message::Lock { number, claim } => {
                    rack.asks.push((token, number));
                    let requester = LockRequester::Rack(token, number);
                    LockEvent::Requested { requester, claim, timeout: TIMEOUT }
                }
                Message::Unlock { number, end, written } => {
                    let unlock = ParkedUnlock { home, requester, token, number, end, written };
                    return self.unlocked(unlock, false);
                }
                Message::Decided { .. } => return Err("a decision of no home".into()),
            });
        } else if let Some(message) = self.endpoints[index].to_requester.pop_front() {
            let Message::Decided { number, outcome } = message else {
                return Err("a request against the endpoint's direction".into());
            };
            let outcome = Some(outcome);
            self.endpoints[index].open.retain(|open| *open != number);
            self.racks[requester].daemon.events.push_back(LockEvent::Answered {
                number,
                endpoint: token,
                outcome,
            });
        }
        Ok(())
    }

    /// An unlock of another rack's client is at the home: what the holder had not written back is
    /// written, or the unlock waits.
    fn unlocked(&mut self, unlock: ParkedUnlock, has_waited: bool) -> Result<(), String> {
        if !has_waited && !unlock.written.is_empty() && !self.chance(4) {
            self.parked.push(unlock);
            return Ok(());
        }
        let ParkedUnlock { home, requester, token, number, end, written } = unlock;
        let is_held = self.racks[home].daemon.home.writer(token, number).is_some();
        if is_held || self.plant.has(Bug::WriteBackOfEndedLocks) {
            for ((line, counter), value) in written {
                self.data.entry(line).or_default()[counter] = value;
            }
        }
        for ((line, counter), value) in self.owed.remove(&(requester, number)).unwrap_or_default() {
            let found = self.data.get(&line).copied().unwrap_or_default()[counter];
            if is_held && found != value {
                return Err(format!("missing: {value} was written, {found} is there"));
            }
        }
        let event = LockEvent::UnlockedElsewhere { endpoint: token, number, end };
        self.racks[home].daemon.events.push_back(event);
        Ok(())
    }

    /// The home forgets unlocks that wait: their endpoint has ended.
    fn forget_parked(&mut self, token: EndpointToken) {
        if !self.plant.has(Bug::WriteBackOfEndedLocks) {
            self.parked.retain(|unlock| unlock.token != token);
        }
    }

    /// Both ends of an endpoint know of its end.
    fn end(&mut self, index: usize) {
        let mut endpoint = self.endpoints.swap_remove(index);
        let token = endpoint.token;
        self.forget_parked(token);
        if endpoint.at_home {
            self.racks[endpoint.home].daemon.events.push_back(LockEvent::EndpointEnded(token));
            self.racks[endpoint.home].asks.retain(|(over, _)| *over != token);
        }
        if endpoint.at_requester {
            self.unanswered(&mut endpoint);
        }
    }

    /// The requester notices the end.
    fn unanswered(&mut self, endpoint: &mut Endpoint) {
        let token = endpoint.token;
        let daemon = &mut self.racks[endpoint.requester].daemon;
        daemon.events.push_back(LockEvent::EndpointEnded(token));
        for number in endpoint.open.drain(..) {
            daemon.events.push_back(LockEvent::Answered { number, endpoint: token, outcome: None });
        }
        endpoint.to_home.clear();
        endpoint.to_requester.clear();
    }

    /// A daemon does all it has to do.
    fn finish(&mut self, index: usize) -> Result<(), String> {
        let now = self.time();
        loop {
            let rack = &mut self.racks[index];
            if !rack.daemon.step(now, &mut rack.memory) {
                return Ok(());
            }
            self.send(index)?;
        }
    }

    /// A client's operation in another rack: its daemon posts it, after it has done everything that
    /// came before.
    fn post(&mut self, index: usize, work: Work) -> Result<(), String> {
        self.finish(self.clients[index].rack)?;
        let client = &self.clients[index];
        let (rack, id, page) = (client.rack, client.id, client.claim.page());
        let home = usize::from(self.home_of(page).0);
        if home == rack {
            // The lock is being lost.
            return Ok(());
        }
        let endpoint = self.connect(rack, home);
        let token = self.endpoints[endpoint].token;
        let daemon = &self.racks[rack].daemon;
        // As the daemon's shell does: a lock that is valid for another endpoint is being lost.
        let is_valid =
            daemon.remote.endpoints(id.client, id.thread, page).all(|over| over == token);
        if !is_valid || self.racks[rack].memory.lost.contains(&id) {
            return Ok(());
        }
        *self.racks[rack].memory.posted.entry(id).or_default() += 1;
        let cache = self.racks[rack].memory.caches.get(&id);
        let (stage, write) = match work {
            Work::Fetch(part) => (Stage::Fetching(part), None),
            Work::WriteBack(which) => {
                let written = cache.and_then(|cache| cache.written.iter().nth(which));
                (Stage::PostedBack(which), written.map(|(counter, value)| (*counter, *value)))
            }
        };
        self.clients[index].stage = stage;
        let posted = self.now;
        self.operations.push(Operation { client: id.client, work, token, posted, write });
        Ok(())
    }

    fn operate(&mut self, operation: &Operation) {
        let Operation { client, work, token, posted, write } = *operation;
        let Some(index) = self.clients.iter().position(|one| one.id.client == client) else {
            return;
        };
        let endpoint = self.endpoints.iter().find(|endpoint| endpoint.token == token);
        let lands = endpoint.is_some_and(|endpoint| endpoint.at_home);
        let (rack, id, stage) =
            (self.clients[index].rack, self.clients[index].id, self.clients[index].stage);
        if let Some(((line, counter), value)) = write.filter(|_| lands) {
            self.data.entry(line).or_default()[counter] = value;
        }
        match work {
            Work::Fetch(part) if stage == Stage::Fetching(part) => {
                self.clients[index].stage = Stage::Held(part);
                if lands {
                    let counters: Vec<Counter> = self.clients[index].counters().collect();
                    let value =
                        |(line, which): &Counter| self.data.get(line).map_or(0, |two| two[*which]);
                    let fetched = counters.iter().map(|counter| (*counter, value(counter)));
                    self.clients[index].fetched = fetched.collect();
                    self.clients[index].fresh_until = posted + CACHED;
                }
            }
            Work::WriteBack(which) if stage == Stage::PostedBack(which) => {
                self.clients[index].stage = Stage::WritingBack(which);
                if lands {
                    self.written_back(index, which);
                }
            }
            // The client has given it up.
            _ => {}
        }
        self.racks[rack].memory.ended(id);
    }

    /// A writer has unlocked: what it has written is there for ever.
    fn acknowledge(&mut self, claim: LockClaim) -> Result<(), String> {
        for line in claim.first()..claim.first() + claim.lines() {
            let line = (claim.page(), line);
            let acknowledged = self.acknowledged.entry(line).or_default();
            *acknowledged += 1;
            let found = self.data.get(&line).copied().unwrap_or_default()[0];
            if found < *acknowledged {
                return Err(format!("{acknowledged} updates were acknowledged, {found} are there"));
            }
        }
        Ok(())
    }

    fn fault(&mut self) {
        // An endpoint that ends while an unlock waits is too rare otherwise.
        if let Some(token) = self.parked.first().map(|unlock| unlock.token)
            && let Some(index) = self.endpoints.iter().position(|at| at.token == token)
        {
            return self.cut(index);
        }
        match self.below(8) {
            0 => self.kill_daemon(),
            1 | 2 => self.kill_client(),
            3 | 4 => {
                let index = usize::try_from(self.below(CLIENTS as u64)).unwrap();
                self.clients[index].stopped_until = self.now + self.below(6_000);
            }
            5 => {
                if !self.endpoints.is_empty() {
                    let index = usize::try_from(self.below(self.endpoints.len() as u64)).unwrap();
                    self.cut(index);
                }
            }
            _ => self.begin_move(),
        }
    }

    /// One end of an endpoint notices that it has ended.
    fn cut(&mut self, index: usize) {
        let endpoint = &self.endpoints[index];
        if !endpoint.at_home || !endpoint.at_requester {
            return;
        }
        let (token, home) = (endpoint.token, endpoint.home);
        if self.chance(2) {
            self.endpoints[index].at_home = false;
            self.forget_parked(token);
            self.racks[home].daemon.events.push_back(LockEvent::EndpointEnded(token));
        } else {
            let mut endpoint = self.endpoints.swap_remove(index);
            endpoint.at_requester = false;
            self.unanswered(&mut endpoint);
            self.endpoints.push(endpoint);
        }
    }

    fn kill_client(&mut self) {
        let index = usize::try_from(self.below(CLIENTS as u64)).unwrap();
        let rack = self.clients[index].rack;
        let next = self.new_client(rack);
        let gone = std::mem::replace(&mut self.clients[index], next);
        let rack = &mut self.racks[rack];
        rack.memory.drain(gone.id);
        // Its daemon withdraws its operations, or waits for their end.
        self.operations.retain(|operation| operation.client != gone.id.client);
        rack.memory.accesses.remove(&gone.id);
        rack.memory.posted.remove(&gone.id);
        rack.daemon.events.push_back(LockEvent::ClientGone(gone.id.client));
    }

    fn kill_daemon(&mut self) {
        let index = usize::try_from(self.below(RACKS as u64)).unwrap();
        let (now, plant) = (self.time(), self.plant);
        let gone: Vec<LockEvent> = {
            let is_gone = |event: &&LockEvent| {
                matches!(event, LockEvent::ClientGone(_) | LockEvent::ClaimsManaged(_))
            };
            let events = self.racks[index].daemon.events.iter().filter(is_gone);
            events
                .map(|event| match event {
                    LockEvent::ClaimsManaged(client) => LockEvent::ClientGone(*client),
                    other => other.clone(),
                })
                .collect()
        };
        let rack = &mut self.racks[index];
        rack.daemon = Daemon::new(now, &rack.memory, plant);
        rack.daemon.events.extend(gone);
        rack.asks.clear();
        // The operations that it had posted have no user any more.
        for client in self.clients.iter_mut().filter(|client| client.rack == index) {
            self.operations.retain(|operation| operation.client != client.id.client);
            rack.memory.posted.remove(&client.id);
            client.stage = match client.stage {
                Stage::Fetching(part) => Stage::Held(part),
                Stage::PostedBack(which) => Stage::WritingBack(which),
                other => other,
            };
        }
        let lost: Vec<ClaimId> = rack
            .memory
            .claims
            .iter()
            .filter(|(_, claim)| !rack.memory.pages.contains_key(&claim.page()))
            .map(|(id, _)| *id)
            .collect();
        rack.memory.lost.extend(lost);
        let mut ended = Vec::new();
        for at in (0..self.endpoints.len()).rev() {
            let endpoint = &mut self.endpoints[at];
            if endpoint.home == index {
                endpoint.at_home = false;
                ended.push(endpoint.token);
            }
            if endpoint.requester == index {
                endpoint.at_requester = false;
            }
            if !endpoint.at_home && !endpoint.at_requester {
                self.endpoints.swap_remove(at);
            }
        }
        ended.into_iter().for_each(|token| self.forget_parked(token));
        // Clients repeat their calls.
        for at in 0..CLIENTS {
            match self.clients[at].stage {
                Stage::Asking(_) if self.clients[at].rack == index => self.ask(at),
                Stage::Telling(again) if self.clients[at].rack == index => {
                    self.tell_unlock(at, again);
                }
                _ => {}
            }
        }
    }

    fn change(&mut self, rack: usize, page: PageId, event: PageEvent) {
        let rack = &mut self.racks[rack];
        if let Some(word) = rack.memory.pages.get_mut(&page) {
            *word = word.apply(event).unwrap();
        }
        rack.daemon.events.push_back(LockEvent::PageChanged(page));
    }

    fn begin_move(&mut self) {
        let page = if self.chance(2) { PageId(1) } else { PageId(2) };
        if self.moving.is_none() {
            let from = usize::from(self.home_of(page).0);
            self.change(from, page, PageEvent::Frozen);
            self.racks[from].memory.drain_all();
            self.moving = Some((page, from, self.now));
        }
    }

    /// The page moves once none of its locks is held, or the move is aborted.
    fn look_at_move(&mut self) -> Result<(), String> {
        let Some((page, from, since)) = self.moving else { return Ok(()) };
        let rack = &self.racks[from];
        if !rack.daemon.home.is_held(page, &rack.memory) {
            self.moving = None;
            self.seen.moved += 1;
            self.racks[from].memory.pages.remove(&page);
            self.racks[1 - from].memory.pages.insert(page, live(page));
            for rack in &mut self.racks {
                rack.daemon.events.push_back(LockEvent::PageChanged(page));
            }
            // Its clients learn of the page from the daemon.
            self.finish(1 - from)?;
        } else if self.now > since + 500 {
            self.moving = None;
            self.change(from, page, PageEvent::Thawed);
        }
        Ok(())
    }
}
