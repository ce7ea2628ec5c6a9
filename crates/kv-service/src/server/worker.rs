use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use rackpool_kv::Ahead;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use slab::Slab;

use super::connection::{AHEAD, Connection, Desk, Next};
use super::listeners::Listeners;
use super::mailbox::Mailbox;
use super::stream::Stream;
use crate::gate::Gate;
use crate::session::Session;
use crate::shared::{Client, Shared};
use crate::store::Store;
use crate::sweep::Sweep;

const WAKER: Token = Token(usize::MAX);
const TCP: Token = Token(usize::MAX - 1);
const UNIX: Token = Token(usize::MAX - 2);
/// How often a thread looks after what nobody asks for.
const TICK: Duration = Duration::from_millis(100);

/// So many connections are read from before the first of them is served.
const GROUP: usize = 16;

/// So many looks at its sockets, of half a microsecond each, before a thread that has served somebody
/// sleeps: whoever asks next need not wake it, which costs that one more than the looks cost here.
const LOOKS: u32 = 16;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A thread's event loop.
#[derive(Debug)]
pub struct Worker {
    poll: Poll,
    desk: Desk,
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    connections: Slab<Connection>,
    /// Connections to serve before the next wait.
    ready: Vec<usize>,
    mailboxes: Arc<[Mailbox]>,
    /// The first thread lets clients in and sweeps.
    door: Option<(Listeners, Sweep)>,
    /// How often connections had been marked to end when this thread last looked.
    kills: u64,
    /// Clients may wait at the door though it said so before.
    door_is_open: bool,
}

impl Worker {
    /// Where a thread waits, and its mailbox.
    pub fn prepare() -> io::Result<(Poll, Mailbox)> {
        let poll = Poll::new()?;
        let mailbox = Mailbox::new(&poll, WAKER)?;
        Ok((poll, mailbox))
    }

    /// The loop of thread number `thread`.
    pub fn new(
        poll: Poll,
        (thread, store): (usize, Store),
        shared: Arc<Shared>,
        gate: Arc<Gate>,
        mailboxes: Arc<[Mailbox]>,
        listeners: Option<Listeners>,
    ) -> io::Result<Self> {
        let mut door = listeners.map(|listeners| (listeners, Sweep::default()));
        if let Some((listeners, _)) = &mut door {
            listeners.register(poll.registry(), [TCP, UNIX])?;
        }
        Ok(Self {
            poll,
            desk: Desk {
                store,
                thread,
                inputs: Vec::new(),
                output: Vec::new(),
                ahead: Ahead::default(),
                now: Instant::now(),
            },
            shared,
            gate,
            connections: Slab::new(),
            ready: Vec::new(),
            kills: 0,
            mailboxes,
            door_is_open: door.is_some(),
            door,
        })
    }

    /// Serves until the service ends.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut next_tick = Instant::now() + TICK;
        let mut looks = 0_u32;
        while !self.shared.has_to_end() {
            let now = Instant::now();
            let wait = if self.ready.is_empty() && looks == 0 {
                next_tick.saturating_duration_since(now)
            } else {
                Duration::ZERO
            };
            if let Err(error) = self.poll.poll(&mut events, Some(wait))
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            looks = if events.is_empty() { looks.saturating_sub(1) } else { LOOKS };
            for event in &events {
                match event.token() {
                    WAKER => {}
                    TCP | UNIX => self.door_is_open = true,
                    Token(index) => {
                        if let Some(connection) = self.connections.get_mut(index) {
                            let ends = event.is_read_closed() || event.is_error();
                            if ends || event.is_readable() {
                                connection.set_readable(ends);
                            }
                            self.ready.push(index);
                        }
                    }
                }
            }
            self.let_in();
            for stream in self.own_mailbox().take() {
                self.adopt(stream);
            }
            self.serve_all();
            if Instant::now() >= next_tick {
                self.tick();
                next_tick = Instant::now() + TICK;
            }
        }
        Ok(())
    }

    fn own_mailbox(&self) -> &Mailbox {
        &self.mailboxes[self.desk.thread]
    }

    /// Serves who is ready, some at a time: what their requests ask for comes into the cache
    /// together.
    fn serve_all(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        if !ready.is_empty() {
            self.desk.now = Instant::now();
        }
        let mut first = 0;
        while first < ready.len() {
            let mut end = first;
            while end < ready.len() && end - first < GROUP && self.desk.ahead.len() < AHEAD {
                if let Some(connection) = self.connections.get_mut(ready[end]) {
                    connection.look_ahead(&mut self.desk);
                }
                end += 1;
            }
            self.desk.store.keys.prefetch(&mut self.desk.ahead);
            for index in &ready[first..end] {
                self.serve(*index);
            }
            first = end;
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        match connection.serve(&mut self.desk, &self.shared, &self.gate) {
            Next::Wait => self.await_room(index),
            Next::Again => self.ready.push(index),
            Next::Close => self.close(index),
        }
    }

    fn close(&mut self, index: usize) {
        let mut connection = self.connections.remove(index);
        connection.session.forget_watched(&self.shared.watches);
        self.shared.clients.remove(connection.session.id);
        self.own_mailbox().ended();
    }

    /// Lets a connection's socket tell when there is room for answers, as long as some wait: one that
    /// always did would wake this thread each time that the client has read an answer.
    fn await_room(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let needs_room = connection.needs_room();
        if needs_room == connection.awaits_room {
            return;
        }
        let interests =
            if needs_room { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let registry = self.poll.registry();
        match registry.reregister(&mut connection.stream, Token(index), interests) {
            Ok(()) => connection.awaits_room = needs_room,
            Err(error) => {
                tracing::warn!("a client can't be served any more: {error}");
                self.close(index);
            }
        }
    }

    /// Lets in who waits, each to the thread that has the fewest.
    fn let_in(&mut self) {
        while self.door_is_open {
            let Some((listeners, _)) = &self.door else { return };
            match listeners.accept() {
                Ok(stream) => self.place(stream),
                Err(error) => {
                    // What else is wrong may be over at the next tick, which looks again.
                    self.door_is_open = false;
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!("a client could not be let in: {error}");
                    }
                }
            }
        }
    }

    fn place(&self, mut stream: Stream) {
        let stats = self.shared.stats(self.desk.thread);
        if self.mailboxes.iter().map(Mailbox::load).sum::<usize>() >= self.shared.max_clients {
            stats.rejected.add(1);
            // It is told why if its socket takes that at once.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        stats.connections.add(1);
        let fewest = self.mailboxes.iter().min_by_key(|mailbox| mailbox.load());
        if let Some(mailbox) = fewest
            && let Err(error) = mailbox.post(stream)
        {
            tracing::warn!("a thread can't be woken: {error}");
        }
    }

    fn adopt(&mut self, mut stream: Stream) {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (addresses, descriptor) = (stream.addresses(), stream.descriptor());
        let kind = stream.flag();
        let entry = self.connections.vacant_entry();
        let index = entry.key();
        let registry = self.poll.registry();
        if let Err(error) = registry.register(&mut stream, Token(index), Interest::READABLE) {
            tracing::warn!("a client can't be served: {error}");
            self.own_mailbox().ended();
            return;
        }
        let session = Session::new(id, self.shared.password.is_none());
        let client =
            Client::new(addresses, (descriptor, kind), size_of::<Connection>(), &session.activity);
        entry.insert(Connection::new(stream, session));
        self.shared.clients.add(id, client);
        self.ready.push(index);
    }

    /// Ends the connections that others wanted to end.
    fn end_killed(&mut self) {
        let kills = self.shared.clients.kills();
        if kills == self.kills {
            return;
        }
        self.kills = kills;
        let is_killed = |(index, connection): (usize, &Connection)| {
            self.shared.clients.is_killed(connection.session.id).then_some(index)
        };
        let killed: Vec<usize> = self.connections.iter().filter_map(is_killed).collect();
        killed.into_iter().for_each(|index| self.close(index));
    }

    fn tick(&mut self) {
        self.end_killed();
        if let Some((_, sweep)) = &mut self.door {
            self.door_is_open = true;
            let turn = self.gate.turn(self.desk.thread);
            match sweep.step(&mut self.desk.store) {
                Ok(expired) => self.shared.stats(self.desk.thread).expired.add(expired),
                Err(failure) if failure.is_forgotten() => self.shared.end(&failure.to_string()),
                Err(failure) => tracing::debug!("no keys were swept: {failure}"),
            }
            drop(turn);
        }
    }
}
