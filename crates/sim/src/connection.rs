//! TCP connections to the metadata server. Bytes sent over one arrive in order; lost ones arrive
//! later, or the connection ends. Each side learns of the end after some time.

use std::collections::VecDeque;
use std::hash::Hash;
use std::mem::discriminant;

use rackpool_proto::metadata::{ConnectionToken, Event as ServerEvent};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};

use crate::message::{Call, Node};
use crate::rules::MILLI;
use crate::trace::Trace;
use crate::world::{Event, World};

/// The process that opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A daemon, in this incarnation.
    Rack { rack: usize, life: u64 },
    /// A client, for one request.
    Client(Call),
    /// A stopping daemon of this rack, which sends `Leave`.
    Goodbye(usize),
}

/// One direction of a connection. `None` in the queue: its end.
#[derive(Debug)]
struct Way<M> {
    queue: VecDeque<Option<(u64, M)>>,
    /// When the last message arrives.
    last: u64,
    /// Whether the receiver still accepts messages.
    open: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) owner: Owner,
    /// The start of the metadata server that accepted it.
    life: u64,
    /// To the metadata server.
    up: Way<MetadataRequest>,
    /// From the metadata server.
    down: Way<MetadataReply>,
}

impl<M> Way<M> {
    const fn new(now: u64) -> Self {
        Self { queue: VecDeque::new(), last: now, open: true }
    }

    /// Queues a message. Returns when it arrives: at `at`, but after all earlier ones.
    fn put(&mut self, at: u64, message: Option<(u64, M)>) -> u64 {
        self.queue.push_back(message);
        self.last = at.max(self.last + 1);
        self.last
    }
}

impl<B: Bugs> World<B> {
    /// Connects to the metadata server; `None` if it is down or can't be reached.
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

    /// Returns when bytes sent now arrive. Lost bytes are sent again until they arrive.
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

    /// Sends a request to the metadata server; it is dropped if the connection has ended.
    pub(crate) fn tell_server(&mut self, connection: usize, tag: u64, request: MetadataRequest) {
        if self.connections[connection].down.open {
            self.put_up(connection, Some((tag, request)));
        }
    }

    /// Sends a message of the metadata server; it is dropped if the connection has ended.
    pub(crate) fn server_tells(&mut self, connection: usize, tag: u64, reply: MetadataReply) {
        if self.connections[connection].up.open {
            self.put_down(connection, Some((tag, reply)));
        }
    }

    /// Closes the connection at its opener; messages sent before arrive.
    pub(crate) fn close(&mut self, connection: usize) {
        if std::mem::replace(&mut self.connections[connection].down.open, false) {
            self.put_up(connection, None);
        }
    }

    /// Ends the connection after its opener has died; messages sent last may be lost.
    pub(crate) fn abort(&mut self, connection: usize) {
        if self.rng.percent(50) {
            self.connections[connection].up.queue.clear();
        }
        self.close(connection);
    }

    /// Ends all connections after the metadata server has died: the kernel closes them, and
    /// messages sent last may be lost.
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

    /// Breaks a connection in the network. Each side learns of it after some time.
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

    /// The next message of a connection arrives at its opener.
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

/// Hashes the parts of a message that identify it in the trace.
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
