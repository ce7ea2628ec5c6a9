use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use rackpool_kv::Lookahead;
use rackpool_model::ByteSize;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use slab::Slab;

use super::connection::{AHEAD, Connection, Desk, Next};
use super::long_commands::{Long, LongCommandDone, ToLong};
use super::mailbox::Mailbox;
use super::stream::Stream;
use crate::memory_limit::Evictor;
use crate::resp::Views;
use crate::session::Session;
use crate::shared::{ClientEntry, ServiceState};
use crate::store::Store;

const WAKER: Token = Token(usize::MAX);
/// The interval at which a thread checks whether the service ends.
const TICK: Duration = Duration::from_millis(100);

/// The most connections that are read before the first of them is served.
const GROUP: usize = 16;

/// The number of polls, of half a microsecond each, before a thread that has served a connection
/// sleeps. A client that sends its next request meanwhile does not have to wake the thread, which
/// would cost the client more than the polls cost here.
const LOOKS: u32 = 16;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A thread's event loop.
#[derive(Debug)]
pub struct Worker {
    poll: Poll,
    desk: Desk,
    shared: Arc<ServiceState>,
    connections: Slab<Connection>,
    /// Connections to serve before the next wait.
    ready: Vec<usize>,
    /// When to serve connections whose answers are delayed.
    timers: BinaryHeap<Reverse<Timer>>,
    mailboxes: Arc<[Mailbox]>,
    /// The channel to the threads for long commands.
    to_long: ToLong,
    /// The value of [`Clients::kills`](crate::shared::Clients::kills) at the last check.
    kills: u64,
}

/// When to serve a connection. Timers are ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Timer {
    at: Instant,
    /// The connection's index.
    index: usize,
    /// The connection's id: its index may be reused.
    id: u64,
}

impl Worker {
    /// The poll of a thread, and its mailbox.
    pub fn prepare() -> io::Result<(Poll, Mailbox)> {
        let poll = Poll::new()?;
        let mailbox = Mailbox::new(&poll, WAKER)?;
        Ok((poll, mailbox))
    }

    /// The event loop of thread number `thread`.
    pub fn new(
        poll: Poll,
        thread: usize,
        store: Store,
        shared: Arc<ServiceState>,
        mailboxes: Arc<[Mailbox]>,
        to_long: ToLong,
    ) -> Self {
        Self {
            poll,
            desk: Desk {
                store,
                evictor: Evictor::default(),
                thread,
                inputs: Vec::new(),
                output: Vec::new(),
                lookahead: Lookahead::default(),
                now: Instant::now(),
            },
            shared,
            connections: Slab::new(),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            kills: 0,
            mailboxes,
            to_long,
        }
    }

    /// Serves until the service ends.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut looks = 0_u32;
        while !self.shared.has_to_end() {
            let now = Instant::now();
            let wait = if self.ready.is_empty() && looks == 0 {
                let next = self.timers.peek().map(|Reverse(timer)| timer.at);
                next.map_or(TICK, |next| TICK.min(next.saturating_duration_since(now)))
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
            for stream in self.own_mailbox().take() {
                self.adopt(stream);
            }
            for done in self.own_mailbox().take_done() {
                self.come_back(done);
            }
            self.ring_timers();
            self.serve_all();
            self.end_killed();
        }
        self.shared.close_listeners();
        Ok(())
    }

    fn own_mailbox(&self) -> &Mailbox {
        &self.mailboxes[self.desk.thread]
    }

    /// Serves the ready connections in groups. The keys that the requests of a group name are
    /// prefetched together.
    fn serve_all(&mut self) {
        let ready = std::mem::take(&mut self.ready);
        if !ready.is_empty() {
            self.desk.now = Instant::now();
        }
        let mut first = 0;
        while first < ready.len() {
            let mut end = first;
            while end < ready.len() && end - first < GROUP && self.desk.lookahead.len() < AHEAD {
                if let Some(connection) = self.connections.get_mut(ready[end]) {
                    connection.look_ahead(&mut self.desk);
                }
                end += 1;
            }
            self.desk.store.keys.prefetch(&mut self.desk.lookahead);
            for index in &ready[first..end] {
                self.serve(*index);
            }
            first = end;
        }
    }

    fn serve(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let next = connection.serve(&mut self.desk, &self.shared);
        if let Some((session, request)) = connection.take_long() {
            let thread = self.desk.thread;
            if let Err(long) = self.to_long.post(Long { thread, index, session, request }) {
                // The service is ending.
                connection.come_back(long.session, Vec::new(), Views::default());
                return self.close(index);
            }
        }
        match next {
            Next::Wait => self.await_room(index),
            Next::Again => self.ready.push(index),
            Next::At(at) => {
                self.timers.push(Reverse(Timer { at, index, id: connection.session.id }));
            }
            Next::Close => self.close(index),
        }
        if self.shared.client_memory.is_exceeded() {
            self.evict();
        }
    }

    /// Marks the largest connections of all threads to be closed, since all connections together
    /// exceed the memory limit.
    fn evict(&self) {
        let memory = &self.shared.client_memory;
        let evicted = self.shared.clients.evict(memory.held(), memory.limit());
        if evicted == 0 {
            return;
        }
        self.shared.stats(self.desk.thread).evicted.add(evicted);
        tracing::warn!(
            "all connections together held more than {}: closed the {evicted} that held the most",
            ByteSize(memory.limit() as u64)
        );
        for mailbox in self.mailboxes.iter() {
            if let Err(error) = mailbox.wake() {
                tracing::warn!("a thread can't be woken: {error}");
            }
        }
    }

    /// Makes connections ready whose timer has expired.
    fn ring_timers(&mut self) {
        while let Some(Reverse(Timer { at, index, id })) = self.timers.peek().copied() {
            if Instant::now() < at {
                return;
            }
            self.timers.pop();
            // The slot may have been reused for another connection.
            if self.connections.get(index).is_some_and(|found| found.session.id == id) {
                self.ready.push(index);
            }
        }
    }

    /// Takes the result of a long command; drops it if its connection was closed meanwhile.
    fn come_back(&mut self, done: LongCommandDone) {
        let LongCommandDone { index, mut session, output, views } = done;
        let connection = self.connections.get_mut(index);
        match connection.filter(|connection| connection.session.id == session.id) {
            Some(connection) => {
                connection.come_back(session, output, views);
                self.ready.push(index);
            }
            None => session.forget_watched(&self.shared.watches),
        }
    }

    fn close(&mut self, index: usize) {
        let mut connection = self.connections.remove(index);
        connection.session.forget_watched(&self.shared.watches);
        connection.hold(0, &self.shared.client_memory);
        self.shared.clients.remove(connection.session.id);
        self.own_mailbox().ended();
    }

    /// Registers a connection for writability while answers wait, and only then. Otherwise the
    /// socket would wake this thread each time that the client has read an answer.
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
        let client = ClientEntry::new(
            addresses,
            descriptor,
            kind,
            size_of::<Connection>(),
            &session.activity,
        );
        entry.insert(Connection::new(stream, session));
        self.shared.clients.add(id, client);
        self.ready.push(index);
    }

    /// Closes the connections of this thread that are marked.
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
}
