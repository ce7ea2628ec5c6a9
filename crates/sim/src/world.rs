//! The world: its nodes, its time and its events.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use rackpool_model::{ClientId, PageId, PageRange, RackId};
use rackpool_proto::Time;
use rackpool_proto::planted_bugs::{Bug, Bugs};

use crate::calls::Request;
use crate::client::Client;
use crate::connection::Connection;
use crate::daemon::Daemon;
use crate::damage::Damage;
use crate::fabric::{Endpoint, OneSided};
use crate::faults::Weather;
use crate::history::History;
use crate::link::ServerLink;
use crate::memory::Memory;
use crate::message::{Call, Message, Node};
use crate::objects::ObjectWorld;
use crate::queue::Queue;
use crate::rng::{Rng, mix};
use crate::rules::{CALM, CLIENTS, MICRO, MOST_EVENTS, RACKS, SKEW_PPM, STORM};
use crate::server::ServerNode;
use crate::trace::Trace;
use crate::{Failure, Seen};

/// An event. A paused node executes it later, a dead one not at all.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Event {
    Deliver { to: usize, from: usize, message: Message },
    Wake(Node, u64),
    Asked { rack: usize, life: u64, call: Call, request: Request },
    Unanswered { rack: usize, question: u64, cuts_off: bool },
    Step { client: usize, step: u64 },
    Land { id: u64, part: usize },
    Ended { id: u64, found: Option<u64> },
    EndpointEnded { rack: usize, life: u64, endpoint: usize },
    ToServer { connection: usize },
    FromServer { rack: Option<usize>, connection: usize },
    LinkDue { rack: usize, life: u64, turn: u64 },
    Persisted { life: u64, batch: u64, fails: bool },
    ObjectStep { client: usize, turn: u64 },
    ObjectCall { rack: usize, life: u64, client: usize, id: u32, call: u32 },
    ObjectsGone { rack: usize, life: u64, id: u32 },
    ExchangeLost { rack: usize, life: u64, to: usize, attempt: u64 },
    WordLost { rack: usize, life: u64, number: u64 },
    ServerEnds { life: u64 },
    Restart(Node),
    Fault,
}

const MILLION: u64 = 1_000_000;

/// A clock that runs at its own speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: u64,
    /// Its speed, in millionths of true time.
    rate: u64,
}

#[derive(Debug)]
pub(crate) struct RackNode<B> {
    pub(crate) memory: Memory,
    /// None while the process is dead.
    pub(crate) link: Option<ServerLink>,
    /// None before the memory has pages, and while the process is dead.
    pub(crate) daemon: Option<Daemon<B>>,
    /// The page ids assigned to its memory, as the metadata server has told it.
    pub(crate) pages: Option<PageRange>,
    /// Counts from 1; grows with each daemon.
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) paused_until: u64,
    /// When it was stopped, and until when. No two of them overlap.
    pub(crate) pauses: Vec<(u64, u64)>,
    pub(crate) wake_at: u64,
    /// The number of actions after which the daemon dies.
    pub(crate) fuse: Option<u64>,
    pub(crate) damages: Vec<Damage>,
}

#[derive(Debug)]
pub(crate) struct World<B> {
    pub(crate) bugs: B,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) racks: Vec<RackNode<B>>,
    pub(crate) server: ServerNode<B>,
    pub(crate) clients: Vec<Client>,
    /// Connections to the metadata server.
    pub(crate) connections: Vec<Connection>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) one_sided: BTreeMap<u64, OneSided>,
    pub(crate) next_one_sided: u64,
    pub(crate) weather: Weather,
    pub(crate) history: History,
    pub(crate) objects: ObjectWorld,
    /// Pages that clients have allocated and not freed.
    pub(crate) allocated: Vec<PageId>,
    /// Pages that are allocated, and since when clients may know that.
    pub(crate) allocated_since: BTreeMap<PageId, u64>,
    /// All faults have ended, and clients read every word.
    pub(crate) works: bool,
    /// Where each page was last readable: rack, frame, epoch.
    pub(crate) lived: BTreeMap<PageId, (usize, u32, u32)>,
    /// The last epoch in which each page was written one-sided.
    pub(crate) written: BTreeMap<PageId, u32>,
    pub(crate) seen: Seen,
    pub(crate) broken: Option<String>,
    pub(crate) trace: Trace,
    queue: Queue,
    seed: u64,
}

impl Clock {
    fn new(rng: &mut Rng) -> Self {
        let rate = rng.within(MILLION - SKEW_PPM..MILLION + 1 + SKEW_PPM);
        Self { offset: rng.within(0..1 << 40), rate }
    }

    pub(crate) fn read(&self, now: u64) -> Time {
        Time::from_nanos(self.offset + now * self.rate / MILLION)
    }

    /// Returns the first point in true time at which the clock shows `time`; the last one if that
    /// is hours away.
    fn local_time(&self, time: Time) -> u64 {
        let ticks = time.as_nanos().saturating_sub(self.offset);
        ticks.checked_mul(MILLION).map_or(u64::MAX, |ticks| ticks.div_ceil(self.rate))
    }
}

pub(crate) fn rack_id(rack: usize) -> RackId {
    RackId(u16::try_from(rack).unwrap_or(u16::MAX))
}

impl<B: Bugs> World<B> {
    pub(crate) fn new(seed: u64, bugs: B) -> Self {
        let mut rng = Rng::new(mix(seed));
        let racks = (0..RACKS).map(|_| RackNode {
            memory: Memory::unformatted(),
            link: None,
            daemon: None,
            pages: None,
            life: 0,
            clock: Clock::new(&mut rng),
            paused_until: 0,
            pauses: Vec::new(),
            wake_at: 0,
            fuse: None,
            damages: Vec::new(),
        });
        let racks = racks.collect();
        let server = ServerNode::new(Clock::new(&mut rng));
        let weather = Weather::new(&mut rng);
        // The other worlds run as they would without objects.
        let objects = ObjectWorld::new(seed, seed % 2 == 1 && weather.scribbled.is_none());
        Self {
            bugs,
            rng,
            now: 0,
            racks,
            server,
            clients: (0..CLIENTS).map(|client| Client::new(client % RACKS)).collect(),
            connections: Vec::new(),
            endpoints: Vec::new(),
            one_sided: BTreeMap::new(),
            next_one_sided: 0,
            weather,
            history: History::default(),
            objects,
            allocated: Vec::new(),
            allocated_since: BTreeMap::new(),
            works: false,
            lived: BTreeMap::new(),
            written: BTreeMap::new(),
            seen: Seen::default(),
            broken: None,
            trace: Trace::default(),
            queue: Queue::default(),
            seed,
        }
    }

    /// Runs faults, then a calm in which the world must come to rest and work.
    pub(crate) fn run(mut self) -> Result<Seen, Box<Failure>> {
        let result = self.storm_and_calm();
        self.seen.trace = self.trace.finish();
        (self.seen.acknowledged, self.seen.indeterminate) = self.history.counts();
        let (seed, seen) = (self.seed, self.seen);
        result.map(|()| seen).map_err(|what| Box::new(Failure { seed, what, seen }))
    }

    fn storm_and_calm(&mut self) -> Result<(), String> {
        self.start(Node::Server);
        for rack in 0..RACKS - 1 {
            self.start(Node::Rack(rack));
        }
        self.after(self.weather.joins, Event::Restart(Node::Rack(RACKS - 1)));
        for client in 0..CLIENTS {
            self.next_step(client, client as u64 * MICRO);
        }
        self.after(0, Event::Fault);
        if self.objects.on {
            self.begin_objects();
        }
        self.run_until(STORM, |_| false)?;
        // The last event may have been earlier.
        self.now = STORM;
        self.clear_up();
        self.end_publishers();
        self.rest("after the faults have healed")?;
        self.read_everything()?;
        self.rest("after reading everything")?;
        self.move_one_page()?;
        self.rest("after one more swap")?;
        self.check_frames()?;
        self.check_objects()?;
        self.check_damage()?;
        self.check_membership()?;
        self.history.check()
    }

    fn rest(&mut self, when: &str) -> Result<(), String> {
        self.run_until(self.now + CALM, Self::is_at_rest)?;
        if self.is_at_rest() { Ok(()) } else { Err(format!("{when}: {}", self.unrest())) }
    }

    pub(crate) fn run_until(
        &mut self,
        end: u64,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        while self.queue.next_time().is_some_and(|time| time <= end) && !enough(self) {
            let Some((time, event)) = self.queue.pop() else { break };
            self.now = time;
            self.happen(event);
            if let Some(what) = self.broken.take() {
                return Err(what);
            }
            if self.seen.events > MOST_EVENTS {
                return Err(format!("{MOST_EVENTS} events: somebody talks without end"));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        if let Some(node) = event.node() {
            let paused_until = match node {
                Node::Server => self.server.paused_until,
                Node::Rack(rack) => self.racks[rack].paused_until,
            };
            if paused_until > self.now {
                return self.after(paused_until - self.now, event);
            }
        }
        self.seen.events += 1;
        (self.now, &event).hash(&mut self.trace);
        match event {
            Event::Deliver { to, from, message } => self.rack_got(to, from, message),
            Event::ToServer { connection } => self.server_hears(connection),
            Event::FromServer { connection, .. } => self.peer_hears(connection),
            Event::LinkDue { rack, life, turn } => self.link_due(rack, life, turn),
            Event::Wake(Node::Server, life) => self.server_woke(life),
            Event::Wake(Node::Rack(rack), life) => self.rack_woke(rack, life),
            Event::Asked { rack, life, call, request } => self.asked(rack, life, call, request),
            Event::Unanswered { rack, question, cuts_off } => {
                self.unanswered(rack, question, cuts_off);
            }
            Event::Step { client, step } => self.client_step(client, step),
            Event::Land { id, part } => self.land(id, part),
            Event::Ended { id, found } => self.one_sided_ended(id, found),
            Event::EndpointEnded { rack, life, endpoint } => {
                self.endpoint_ended(rack, life, endpoint);
            }
            Event::Persisted { life, batch, fails } => self.persisted(life, batch, fails),
            Event::ObjectStep { client, turn } => self.object_step(client, turn),
            Event::ObjectCall { rack, life, client, id, call } => {
                self.object_called(rack, life, client, ClientId(id), call);
            }
            Event::ObjectsGone { rack, life, id } => self.objects_gone(rack, life, id),
            Event::ExchangeLost { rack, life, to, attempt } => {
                self.exchange_lost(rack, life, to, attempt);
            }
            Event::WordLost { rack, life, number } => self.word_lost(rack, life, number),
            Event::ServerEnds { life } => self.end_server(life),
            Event::Restart(node) => self.start(node),
            Event::Fault => self.fault(),
        }
    }

    pub(crate) fn after(&mut self, wait: u64, event: Event) {
        self.queue.push(self.now + wait, event);
    }

    /// Sends a message between racks through the fabric, which may lose, duplicate and delay it.
    pub(crate) fn send(&mut self, from: usize, to: usize, message: Message) {
        let cut = self.weather.is_cut(self.now, Node::Rack(from), Node::Rack(to));
        if cut || self.rng.percent(self.weather.loss) {
            return self.message_lost(to, from, message);
        }
        let copies =
            if !message.is_sent_once() && self.rng.percent(self.weather.double) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.weather.delay(&mut self.rng);
            self.after(delay, Event::Deliver { to, from, message });
        }
    }

    /// A message was lost, with the endpoint over which it went.
    pub(crate) fn message_lost(&mut self, to: usize, from: usize, message: Message) {
        match message {
            Message::Lookup { question, .. } => self.request_lost(from, question),
            Message::LeaseAnswer { question, .. } => self.request_lost(to, question),
            _ => {}
        }
    }

    /// Schedules the next wake-up of a node's machines.
    pub(crate) fn wake(&mut self, node: Node, deadline: Option<Time>, at_latest: Option<u64>) {
        let (clock, life, wake_at) = match node {
            Node::Server => (self.server.clock, self.server.life, &mut self.server.wake_at),
            Node::Rack(rack) => {
                let rack = &mut self.racks[rack];
                (rack.clock, rack.life, &mut rack.wake_at)
            }
        };
        let deadline = deadline.map(|deadline| clock.local_time(deadline));
        let Some(at) = deadline.into_iter().chain(at_latest).min() else { return };
        let at = at.max(self.now + 20 * MICRO);
        // A wake-up already scheduled is early enough.
        if at == u64::MAX || (*wake_at > self.now && *wake_at <= at) {
            return;
        }
        *wake_at = at;
        self.after(at - self.now, Event::Wake(node, life));
    }

    pub(crate) fn start(&mut self, node: Node) {
        match node {
            Node::Server => self.start_server(),
            Node::Rack(rack) if self.racks[rack].link.is_none() => {
                let node = &mut self.racks[rack];
                node.life += 1;
                node.wake_at = 0;
                node.link = Some(ServerLink::new());
                self.connect_link(rack);
                // Unformatted memory has to wait for its page ids.
                if self.racks[rack].pages.is_some() {
                    self.start_daemon(rack);
                }
            }
            Node::Rack(_) => {}
        }
    }

    pub(crate) fn start_daemon(&mut self, rack: usize) {
        let node = &mut self.racks[rack];
        let now = node.clock.read(self.now);
        if !self.bugs.has(Bug::TrustCopiesOverARestart) {
            node.memory.hide_all();
        }
        node.daemon = Some(Daemon::new(now, rack, node.life, &node.memory, self.bugs));
        self.restart_objects(rack);
        self.rack_woke(rack, self.racks[rack].life);
        self.resume_freeing(rack);
    }

    pub(crate) fn breaks(&mut self, what: impl FnOnce() -> String) {
        if self.broken.is_none() {
            self.broken = Some(what());
        }
    }
}

impl Event {
    /// Returns the node that executes the event, if it can be paused.
    const fn node(&self) -> Option<Node> {
        match self {
            Self::Wake(node, _) => Some(*node),
            Self::Deliver { to: rack, .. }
            | Self::FromServer { rack: Some(rack), .. }
            | Self::LinkDue { rack, .. }
            | Self::Asked { rack, .. }
            | Self::ObjectCall { rack, .. }
            | Self::ObjectsGone { rack, .. }
            | Self::ExchangeLost { rack, .. }
            | Self::WordLost { rack, .. }
            | Self::Unanswered { rack, .. }
            | Self::EndpointEnded { rack, .. } => Some(Node::Rack(*rack)),
            Self::ToServer { .. } | Self::Persisted { .. } => Some(Node::Server),
            Self::FromServer { rack: None, .. } | Self::Step { .. } | Self::ObjectStep { .. } => {
                None
            }
            Self::Land { .. } | Self::Ended { .. } => None,
            Self::Restart(_) | Self::ServerEnds { .. } | Self::Fault => None,
        }
    }
}
