//! Connections to the metadata server. Each is a TCP connection: what is sent over it comes in
//! order, late when it was lost on the way, or ends with it. Each side learns of the end sooner or
//! later.

use std::collections::VecDeque;
use std::hash::Hash;
use std::mem::discriminant;

use rackpool_proto::metadata::{ConnectionToken, Event as ServerEvent};
use rackpool_proto::planted::Bugs;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};

use crate::message::{Call, Node};
use crate::rules::MILLI;
use crate::trace::Trace;
use crate::world::{Event, World};

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A daemon, in this life of it.
    Rack { rack: usize, life: u64 },
    /// A client that asks one thing.
    Client(Call),
    /// A daemon of this rack that gives its lease back while it stops.
    Goodbye(usize),
}

/// One way of a connection. `None`: no more will come.
#[derive(Debug)]
struct Way<M> {
    queue: VecDeque<Option<(u64, M)>>,
    /// When the last of them arrives.
    last: u64,
    /// Whoever is at its end takes what comes.
    open: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) owner: Owner,
    /// The life of the metadata server at its other end.
    life: u64,
    /// To the metadata server.
    up: Way<MetadataRequest>,
    /// From it.
    down: Way<MetadataReply>,
}

impl<M> Way<M> {
    const fn new(now: u64) -> Self {
        Self { queue: VecDeque::new(), last: now, open: true }
    }

    /// When a message arrives that by itself would come at `at`.
    fn put(&mut self, at: u64, message: Option<(u64, M)>) -> u64 {
        self.queue.push_back(message);
        self.last = at.max(self.last + 1);
        self.last
    }
}

impl<B: Bugs> World<B> {
    /// A connection to the metadata server; `None` when it is down or can't be reached.
    pub(crate) fn connect(&mut self, owner: Owner) -> Option<usize> {
        let (here, there) = (self.host(owner), Node::Server);
        let cut = self.weather.is_cut(self.now, here, there)
            || self.weather.is_cut(self.now, there, here);
        if cut || !self.server.is_up() {
            return None;
        }
        let (life, now) = (self.server.life, self.now);
        self.connections.push(Connection { owner, life, up: Way::new(now), down: Way::new(now) });
        Some(self.connections.len() - 1)
    }

    fn host(&self, owner: Owner) -> Node {
        Node::Rack(match owner {
            Owner::Rack { rack, .. } | Owner::Goodbye(rack) => rack,
            Owner::Client(call) => self.clients[call.client].rack,
        })
    }

    /// When bytes arrive that are sent now: what is lost is sent again until it arrives.
    fn arrival(&mut self, from: Node, to: Node) -> u64 {
        let mut at = self.now + self.weather.delay(&mut self.rng);
        if self.rng.percent(self.weather.loss) {
            at += self.rng.within(MILLI..40 * MILLI);
        }
        if let Some(healed) = self.weather.cut_until(self.now, from, to) {
            at = at.max(healed + self.rng.within(0..40 * MILLI));
        }
        at
    }

    fn put_up(&mut self, connection: usize, message: Option<(u64, MetadataRequest)>) {
        let host = self.host(self.connections[connection].owner);
        let at = self.arrival(host, Node::Server);
        let at = self.connections[connection].up.put(at, message);
        self.after(at - self.now, Event::ToServer { connection });
    }

    fn put_down(&mut self, connection: usize, message: Option<(u64, MetadataReply)>) {
        let owner = self.connections[connection].owner;
        let host = self.host(owner);
        let at = self.arrival(Node::Server, host);
        let at = self.connections[connection].down.put(at, message);
        let rack = match owner {
            Owner::Rack { rack, .. } | Owner::Goodbye(rack) => Some(rack),
            Owner::Client(_) => None,
        };
        self.after(at - self.now, Event::FromServer { rack, connection });
    }

    /// Asks the metadata server. It is lost when the connection has ended.
    pub(crate) fn tell_server(&mut self, connection: usize, tag: u64, request: MetadataRequest) {
        if self.connections[connection].down.open {
            self.put_up(connection, Some((tag, request)));
        }
    }

    /// The metadata server answers. It is lost when the connection has ended.
    pub(crate) fn server_tells(&mut self, connection: usize, tag: u64, reply: MetadataReply) {
        if self.connections[connection].up.open {
            self.put_down(connection, Some((tag, reply)));
        }
    }

    /// Whoever opened it closes it: what it has sent arrives before that.
    pub(crate) fn close(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].down.open, false) {
            self.put_up(connection, None);
        }
    }

    /// Whoever opened it has died: what it has sent last may be lost.
    pub(crate) fn abort(&mut self, connection: usize) {
        if self.rng.percent(50) {
            self.connections[connection].up.queue.clear();
        }
        self.close(connection);
    }

    /// The metadata server has died: the kernel closes all its connections, and what was sent last
    /// may be lost.
    pub(crate) fn close_all_of_the_server(&mut self) {
        for connection in 0..self.connections.len() {
            let one = &mut self.connections[connection];
            if one.life != self.server.life || !std::mem::replace(&mut one.up.open, false) {
                continue;
            }
            if self.rng.percent(50) {
                self.connections[connection].down.queue.clear();
            }
            self.put_down(connection, None);
        }
    }

    /// The network ends a connection. Both sides learn of it, at their time.
    pub(crate) fn break_connection(&mut self, connection: usize) {
        let wait = [self.rng.within(0..100 * MILLI), self.rng.within(0..100 * MILLI)];
        let (now, one) = (self.now, &mut self.connections[connection]);
        one.up.queue.clear();
        one.down.queue.clear();
        one.up.last = one.up.last.max(now + wait[0]);
        one.down.last = one.down.last.max(now + wait[1]);
        self.put_up(connection, None);
        self.put_down(connection, None);
    }

    /// The next message of a connection arrives at the metadata server.
    pub(crate) fn server_hears(&mut self, connection: usize) {
        let (server, one) = (&self.server, &mut self.connections[connection]);
        let Some(message) = one.up.queue.pop_front() else { return };
        if !server.is_up() || server.life != one.life || !one.up.open {
            return;
        }
        let Some((tag, request)) = message else {
            one.up.open = false;
            return;
        };
        hash_request(&request, &mut self.trace);
        let from = ConnectionToken(connection as u64);
        let checks = self.expects_refusal(from, &request);
        self.feed_server(ServerEvent::Requested { from, tag, request });
        if checks {
            self.check_refused(from);
        }
    }

    /// The next message of a connection arrives at whoever opened it.
    pub(crate) fn peer_hears(&mut self, connection: usize) {
        let one = &mut self.connections[connection];
        let Some(message) = one.down.queue.pop_front() else { return };
        if !one.down.open {
            return;
        }
        match &message {
            None => one.down.open = false,
            Some((_, reply)) => hash_reply(reply, &mut self.trace),
        }
        match one.owner {
            Owner::Rack { rack, life } => self.link_heard(rack, life, connection, message),
            Owner::Client(call) => {
                self.close(connection);
                self.root_told(call, message.map(|(_, reply)| reply));
            }
            Owner::Goodbye(_) => self.close(connection),
        }
    }
}

/// What of a message the trace is about.
fn hash_request(request: &MetadataRequest, trace: &mut Trace) {
    discriminant(request).hash(trace);
    match request {
        MetadataRequest::Register(announced) => announced.incarnation.hash(trace),
        MetadataRequest::Swap { message, .. } => message.hash(trace),
        MetadataRequest::Locate { page } => page.hash(trace),
        MetadataRequest::PutRoot { name, expected, new } => (name, expected, new).hash(trace),
        _ => {}
    }
}

fn hash_reply(reply: &MetadataReply, trace: &mut Trace) {
    discriminant(reply).hash(trace);
    match reply {
        MetadataReply::Registered { pages, .. } => pages.first.hash(trace),
        MetadataReply::Renewed { version, members, .. }
        | MetadataReply::Members { version, members } => (version, members.len()).hash(trace),
        MetadataReply::Located { pages, home } => (pages.first, home).hash(trace),
        MetadataReply::Root { addr, changed } => (addr, changed).hash(trace),
        MetadataReply::Refused(refusal) => discriminant(refusal).hash(trace),
        MetadataReply::Swap { message, .. } => message.hash(trace),
        _ => {}
    }
}
