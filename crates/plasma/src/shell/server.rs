//! The event loop. One thread serves all clients, as in Plasma's own store.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use nix::sys::signalfd::SignalFd;
use rackpool_client::{DaemonError, Pool, RackId};
use rustix::event::{Timespec, epoll};

use super::connection::Connection;
use super::listener::Listener;
use super::look_ups::{Found, LookUps};
use super::store_memory::StoreMemory;
use super::subscription::Subscription;
use crate::machine::{ClientId, Effect, LookedUp, Machine, Now, Progress};
use crate::protocol::reply::Size;
use crate::protocol::{FrameLimits, Request};

/// What an event is about. Clients have two numbers each after these: one for the connection, one
/// for the subscription.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const ANSWERS: u64 = 2;
const STDIN: u64 = 3;
const FIRST_CLIENT: u64 = 2;

/// The daemon's link is checked so often, in milliseconds.
const CHECK_MS: u64 = 1000;

/// The running service.
#[derive(Debug)]
pub(super) struct Server {
    machine: Machine,
    pool: Arc<Pool>,
    memory: StoreMemory,
    look_ups: LookUps,
    listener: Listener,
    epoll: rustix::fd::OwnedFd,
    limits: FrameLimits,
    connections: HashMap<ClientId, Connection>,
    clients: u64,
    started: Instant,
    /// Where pieces are received.
    piece: Vec<u8>,
}

impl Server {
    pub(super) fn new(
        capacity: u64,
        pool: Arc<Pool>,
        mut memory: StoreMemory,
        look_ups: LookUps,
        listener: Listener,
    ) -> anyhow::Result<Self> {
        let machine = Machine::new(capacity, &mut memory);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("can't wait for events")?;
        Ok(Self {
            machine,
            pool,
            memory,
            look_ups,
            listener,
            epoll,
            limits: FrameLimits::of_capacity(capacity),
            connections: HashMap::new(),
            clients: FIRST_CLIENT,
            started: Instant::now(),
            piece: Vec::new(),
        })
    }

    pub(super) fn rack(&self) -> RackId {
        self.pool.rack()
    }

    /// Serves until a signal arrives, or standard input ends if that is wanted.
    pub(super) fn run(&mut self, signals: &SignalFd, stops_with_stdin: bool) -> anyhow::Result<()> {
        let input = epoll::EventFlags::IN;
        self.watch(&self.listener, LISTENER, input)?;
        self.watch(signals, SIGNALS, input)?;
        self.watch(&self.look_ups, ANSWERS, input)?;
        if stops_with_stdin {
            self.watch(io::stdin(), STDIN, input)?;
        }
        let mut checked_ms = 0;
        loop {
            for event in self.wait()? {
                match event.0 {
                    LISTENER => self.accept(),
                    SIGNALS if signals.read_signal()?.is_some() => return Ok(()),
                    SIGNALS => {}
                    ANSWERS => self.take_answers(),
                    STDIN if has_ended() => return Ok(()),
                    STDIN => {}
                    number => self.client_event(ClientId(number / 2), number % 2 == 1, event.1),
                }
            }
            let now = self.now();
            self.machine.advance(now);
            self.execute_effects();
            self.execute_again(now);
            if now.ms.saturating_sub(checked_ms) >= CHECK_MS {
                checked_ms = now.ms;
                if let Err(error @ DaemonError::Forgotten) = self.pool.check_served() {
                    bail!("the service can't go on: {error}");
                }
            }
        }
    }

    /// The events until the next time at which something is to be done.
    fn wait(&self) -> anyhow::Result<Vec<(u64, epoll::EventFlags)>> {
        let again = self.connections.values().filter_map(|connection| connection.again_ms);
        let wakes_ms = again.chain(self.machine.wakes_ms()).min();
        let rest_ms = wakes_ms.map_or(CHECK_MS, |at| at.saturating_sub(self.now().ms));
        let rest_ms = rest_ms.min(CHECK_MS);
        let timeout = Timespec {
            tv_sec: (rest_ms / 1000).try_into().unwrap_or(1),
            tv_nsec: (rest_ms % 1000 * 1_000_000).try_into().unwrap_or(0),
        };
        let mut events = Vec::with_capacity(256);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
        {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => events.clear(),
            Err(error) => return Err(error).context("can't wait for events"),
        }
        Ok(events.iter().map(|event| (event.data.u64(), event.flags)).collect())
    }

    fn now(&self) -> Now {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        Now { ms, unix_s }
    }

    fn watch(
        &self,
        what: impl AsFd,
        number: u64,
        flags: epoll::EventFlags,
    ) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, what, epoll::EventData::new_u64(number), flags)
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!("a connection can't be accepted: {error}");
                    return;
                }
            };
            let client = ClientId(self.clients);
            self.clients += 1;
            let connection = Connection::new(stream);
            if let Err(error) = self.watch(&connection, client.0 * 2, waits_for(true, false)) {
                tracing::warn!("a connection can't be served: {error}");
                continue;
            }
            self.connections.insert(client, connection);
            self.machine.connect(client);
        }
    }

    fn client_event(&mut self, client: ClientId, is_subscription: bool, flags: epoll::EventFlags) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        if is_subscription {
            self.flush_subscription(client);
            return;
        }
        if flags.contains(epoll::EventFlags::IN) && !is_paused(&self.machine, client, connection) {
            match connection.receive(&mut self.piece) {
                Ok(true) => self.execute(client),
                Ok(false) => self.disconnect(client, None),
                Err(error) => self.disconnect(client, Some(&error.to_string())),
            }
        } else if flags
            .intersects(epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR)
        {
            self.disconnect(client, None);
        }
        self.update(client);
    }

    /// Executes the requests that have arrived.
    fn execute(&mut self, client: ClientId) {
        loop {
            let now = self.now();
            let Some(connection) = self.connections.get_mut(&client) else { return };
            if is_paused(&self.machine, client, connection) {
                break;
            }
            if connection.awaits_descriptor {
                if connection.input.unconsumed().is_empty() {
                    break;
                }
                connection.input.consume(1);
                connection.awaits_descriptor = false;
                let Some(socket) = connection.descriptors.pop_front() else {
                    self.disconnect(client, Some("it subscribes without a descriptor"));
                    return;
                };
                self.subscribe(client, Subscription::new(socket));
                continue;
            }
            let frame = match connection.input.first(&self.limits) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return self.disconnect(client, Some(&error.to_string())),
            };
            let length = frame.body.len();
            let progress = match Request::read(frame) {
                Ok(request) => self.machine.request(client, request, now, &mut self.memory),
                Err(error) => return self.disconnect(client, Some(&error.to_string())),
            };
            match progress {
                Progress::Done => {}
                Progress::NeedsDescriptor => connection.awaits_descriptor = true,
                Progress::Again { at_ms } => connection.again_ms = Some(at_ms),
                Progress::Disconnect => return self.disconnect(client, None),
                Progress::Violation(why) => return self.disconnect(client, Some(why)),
            }
            if connection.again_ms.is_none() {
                connection.input.consume_frame(length);
            }
            self.execute_effects();
        }
        self.execute_effects();
    }

    /// Executes again the requests that have waited for memory.
    fn execute_again(&mut self, now: Now) {
        let due = self.connections.iter_mut().filter_map(|(client, connection)| {
            connection.again_ms.take_if(|at_ms| *at_ms <= now.ms).map(|_| *client)
        });
        let due: Vec<_> = due.collect();
        for client in due {
            self.execute(client);
            self.update(client);
        }
    }

    fn take_answers(&mut self) {
        self.look_ups.begin_reading();
        while let Some((id, found)) = self.look_ups.next_answer() {
            let (found, view) = match found {
                Found::Absent => (LookedUp::Absent, None),
                Found::Here(view) => (LookedUp::Here, Some(view)),
                Found::Demoted(view) => {
                    let metadata = view.metadata().len() as u64;
                    (LookedUp::Demoted(Size { data: view.len() as u64, metadata }), Some(view))
                }
            };
            self.memory.arrived = view.map(|view| (id, view));
            self.machine.looked_up(&id, found, self.now(), &mut self.memory);
            self.memory.arrived = None;
            self.execute_effects();
        }
    }

    fn execute_effects(&mut self) {
        while let Some(effect) = self.machine.next_effect() {
            match effect {
                Effect::LookUp { ids } => ids.into_iter().for_each(|id| self.look_ups.ask(id)),
                Effect::Notify { client, info } => self.notify(client, info.notification()),
                Effect::Reply { client, reply, sends_descriptor } => {
                    let Some(connection) = self.connections.get_mut(&client) else { continue };
                    let Some(frame) = reply.encode() else {
                        self.disconnect(client, Some("its reply would exceed 2 GiB"));
                        continue;
                    };
                    connection.reply(frame, sends_descriptor);
                    match connection.flush(self.pool.frames_file()) {
                        Ok(()) => self.resume(client),
                        Err(_) => self.disconnect(client, None),
                    }
                }
            }
        }
    }

    /// The client of a reply may have requests that have arrived before it; the next round executes
    /// them.
    fn resume(&mut self, client: ClientId) {
        if let Some(connection) = self.connections.get_mut(&client)
            && connection.again_ms.is_none()
            && !connection.input.unconsumed().is_empty()
        {
            connection.again_ms = Some(0);
        }
        self.update(client);
    }

    fn subscribe(&mut self, client: ClientId, subscription: Subscription) {
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.subscription = Some(subscription);
        }
        self.machine.subscribe(client, &mut self.memory);
        let number = client.0 * 2 + 1;
        let watched = match &self.connections[&client].subscription {
            Some(subscription) => self.watch(subscription, number, waits_for(false, true)),
            None => Ok(()),
        };
        if let Err(error) = watched {
            self.disconnect(client, Some(&format!("its subscription can't be served: {error}")));
        }
        self.execute_effects();
    }

    fn notify(&mut self, client: ClientId, notification: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Some(subscription) = &mut connection.subscription else { return };
        if subscription.push(notification) {
            self.flush_subscription(client);
        } else {
            tracing::warn!("a subscriber does not read its notifications: it gets no more");
            self.unsubscribe(client);
        }
    }

    fn flush_subscription(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        let Some(subscription) = &mut connection.subscription else { return };
        let flushed = subscription.flush();
        let flags = waits_for(false, subscription.wants_to_write());
        let data = epoll::EventData::new_u64(client.0 * 2 + 1);
        if flushed.is_err() || epoll::modify(&self.epoll, &*subscription, data, flags).is_err() {
            self.unsubscribe(client);
        }
    }

    fn unsubscribe(&mut self, client: ClientId) {
        self.machine.unsubscribe(client);
        if let Some(connection) = self.connections.get_mut(&client) {
            // Its descriptor leaves the set of events as it is closed.
            connection.subscription = None;
        }
    }

    /// Sends what can be sent to a client, and waits for what it needs next.
    fn update(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        if connection.flush(self.pool.frames_file()).is_err() {
            return self.disconnect(client, None);
        }
        let reads = !is_paused(&self.machine, client, connection);
        let flags = waits_for(reads, connection.wants_to_write());
        let data = epoll::EventData::new_u64(client.0 * 2);
        if let Err(error) = epoll::modify(&self.epoll, &*connection, data, flags) {
            self.disconnect(client, Some(&format!("its socket can't be watched: {error}")));
        }
    }

    fn disconnect(&mut self, client: ClientId, why: Option<&str>) {
        if let Some(why) = why {
            tracing::warn!("a client is disconnected: {why}");
        }
        // Its descriptors leave the set of events as they are closed.
        if self.connections.remove(&client).is_some() {
            self.machine.disconnect(client, &mut self.memory);
        }
    }
}

/// Returns true if a client's next request has to wait.
fn is_paused(machine: &Machine, client: ClientId, connection: &Connection) -> bool {
    connection.again_ms.is_some() || machine.is_waiting(client) || connection.has_too_much_unread()
}

fn waits_for(reads: bool, writes: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::RDHUP;
    flags.set(epoll::EventFlags::IN, reads);
    flags.set(epoll::EventFlags::OUT, writes);
    flags
}

/// Reads standard input; returns true at its end.
fn has_ended() -> bool {
    let mut bytes = [0; 64];
    let stdin = io::stdin();
    let fd: BorrowedFd<'_> = stdin.as_fd();
    matches!(rustix::io::read(fd, &mut bytes), Ok(0) | Err(_))
}
