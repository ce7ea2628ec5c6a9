//! The thread that makes connections, and detects their end where no other thread does, the same
//! for all fabrics. `docs/design/fabric.md` describes the handshake and its limits.

mod accepting;
mod connection;
mod handle;
mod source;
mod stream;
mod succession;
mod transport;
mod watched;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rackpool_sync::eventfd::drain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use connection::Connection;
pub use handle::{ConnectorHandle, Outcomes};
pub use source::Source;
pub use stream::Stream;
pub use transport::{Next, Transport};
use watched::Watched;

use crate::refusals::Refusals;
use crate::{EndpointId, FabricError};

/// Time that an unauthenticated peer has to prove itself, and an authenticated one for each step.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(HANDSHAKE_MS);
/// The same in milliseconds.
pub const HANDSHAKE_MS: u64 = 5000;
/// Interval at which the connector retries what it cannot wait for with poll.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Interval at which probes are polled.
const PROBE_EVERY: Duration = Duration::from_millis(1);

/// A command of the fabric to its connector.
pub enum Command<T: Transport> {
    /// Connect to a peer.
    Connect {
        /// The endpoint to be.
        endpoint: EndpointId,
        /// Where the peer listens.
        address: T::Address,
    },
    /// The owner has given up the endpoint: stop connecting.
    Abandon {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// The endpoint has ended: destroy what is left and stop watching its socket.
    Forget {
        /// The endpoint.
        endpoint: EndpointId,
        /// Its socket's number.
        watch: u64,
        /// What is left.
        remains: T::Remains,
    },
    /// Terminate the thread.
    Stop,
}

/// A report of the connector to its fabric.
pub enum Outcome<T: Transport> {
    /// An endpoint is established.
    Ready {
        /// `None` if the peer connected.
        endpoint: Option<EndpointId>,
        /// The number under which its socket is watched.
        watch: u64,
        /// What the transport made.
        link: T::Link,
    },
    /// The connection to a peer failed.
    Failed {
        /// The endpoint.
        endpoint: EndpointId,
        /// The cause.
        error: FabricError,
    },
    /// A connection that the owner gave up is closed.
    Abandoned {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// The socket of an endpoint has ended: the peer is gone.
    Gone {
        /// The number of the socket.
        watch: u64,
        /// Whether the peer announced it.
        said_goodbye: bool,
    },
    /// The peer sent something else on the socket of an endpoint, which is a protocol violation.
    Broken {
        /// The number of the socket.
        watch: u64,
    },
    /// Another incarnation of the peer's rack connects: end the endpoint. That connection waits for
    /// [`Command::Forget`].
    Superseded {
        /// The number of its socket.
        watch: u64,
    },
    /// What was left of an endpoint is destroyed.
    Forgotten {
        /// The endpoint.
        endpoint: EndpointId,
        /// Whether the peer announced its end.
        said_goodbye: bool,
    },
}

/// The thread that listens and connects, so that no other thread of a fabric waits for the network,
/// for peers that have proved nothing, or for a device that makes or destroys an endpoint.
struct Connector<T: Transport> {
    transport: T,
    listener: OwnedFd,
    control: Arc<OwnedFd>,
    commands: Receiver<Command<T>>,
    /// Sorted by age, the oldest first.
    connections: Vec<Connection<T>>,
    refusals: Refusals,
    watched: Vec<Watched>,
    next_watch: u64,
    /// Set when the process ran out of descriptors: accept no connection before this time.
    accept_again_at: Option<Instant>,
}

impl<T: Transport> Connector<T> {
    /// Runs until `Stop`.
    fn run(mut self) {
        loop {
            let mut ready = self.wait().into_iter();
            let mut next = || ready.next().unwrap_or(PollFlags::empty());
            let (control, listener) = (next(), next());
            let connections = std::mem::take(&mut self.connections);
            let connections: Vec<_> = connections.into_iter().map(|one| (next(), one)).collect();
            let watched: Vec<_> = self.watched.iter().map(|_| next()).collect();

            self.go_on(connections);
            self.look_at_watched(&watched);
            self.accept_again_at = self.accept_again_at.filter(|at| *at > Instant::now());
            if !listener.is_empty() {
                self.accept();
            }
            if !control.is_empty() {
                drain(&*self.control);
            }
            if !self.obey() {
                return;
            }
            self.let_succeed();
            self.join();
        }
    }

    /// Sleeps until an event or a deadline. Returns the poll flags of each descriptor, in the order
    /// of `run`.
    fn wait(&self) -> Vec<PollFlags> {
        // poll reports errors and ends even without flags, so another descriptor takes the place of
        // one that is not waited for.
        let silent = || PollFd::new(&*self.control, PollFlags::empty());
        let listener = PollFd::new(&self.listener, PollFlags::IN);
        let mut fds = vec![
            PollFd::new(&*self.control, PollFlags::IN),
            if self.accept_again_at.is_none() { listener } else { silent() },
        ];
        fds.extend(self.connections.iter().map(|one| match one.waits_for() {
            Some(flags) => PollFd::from_borrowed_fd(one.stream.socket.as_fd(), flags),
            None => silent(),
        }));
        fds.extend(self.watched.iter().map(|one| {
            let socket = one.socket().map(AsFd::as_fd);
            socket.map_or_else(silent, |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        }));
        let timeout = self.next_deadline().map(|at| {
            // Rounded up, so that the deadline has passed after the wait.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_micros(1);
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => fds.iter().map(PollFd::revents).collect(),
            // Interrupted or out of memory: report no events, so that the caller polls again.
            Err(_) => vec![PollFlags::empty(); fds.len()],
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let deadline = |one: &Connection<T>| match (one.is_dialing(), T::is_probing(&one.half)) {
            (true, _) => now + RETRY_AFTER,
            (_, true) => now + PROBE_EVERY,
            _ => one.give_up_at(),
        };
        self.connections.iter().map(deadline).chain(self.accept_again_at).min()
    }

    /// Executes queued commands. Returns false at `Stop`.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Connect { endpoint, address }) => {
                    if let Err(error) = self.connect(endpoint, &address) {
                        self.fail(endpoint, error);
                    }
                }
                Ok(Command::Abandon { endpoint }) => {
                    if self.give_up(endpoint) {
                        self.transport.report(Outcome::Abandoned { endpoint });
                    }
                }
                Ok(Command::Forget { endpoint, watch, remains }) => {
                    drop(remains);
                    let said_goodbye = self.forget(watch);
                    self.transport.report(Outcome::Forgotten { endpoint, said_goodbye });
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn connect(&mut self, endpoint: EndpointId, address: &T::Address) -> Result<(), FabricError> {
        for half in self.transport.begin()? {
            let one = Connection::connect(&self.transport, endpoint, address.clone(), half)?;
            self.connections.push(one);
        }
        Ok(())
    }

    /// Drops the connections of an endpoint. Returns whether there were any.
    fn give_up(&mut self, endpoint: EndpointId) -> bool {
        let before = self.connections.len();
        self.connections.retain(|one| one.endpoint() != Some(endpoint));
        self.connections.len() < before
    }

    fn fail(&mut self, endpoint: EndpointId, error: FabricError) {
        self.give_up(endpoint);
        self.transport.report(Outcome::Failed { endpoint, error });
    }

    /// Continues the handshakes. A fault of a peer ends its own endpoint only.
    fn go_on(&mut self, connections: Vec<(PollFlags, Connection<T>)>) {
        let mut failed = Vec::new();
        for (flags, mut one) in connections {
            let endpoint = one.endpoint();
            if endpoint.is_some_and(|endpoint| failed.contains(&endpoint)) {
                continue;
            }
            match (one.step(&self.transport, flags), endpoint) {
                (Ok(()), _) => self.connections.push(one),
                (Err(error), Some(endpoint)) => {
                    failed.push(endpoint);
                    self.fail(endpoint, error);
                }
                (Err(error), None) => self.refusals.note(one.source(), &error, Instant::now()),
            }
        }
    }

    /// Makes endpoints of the connections that have done their part.
    fn join(&mut self) {
        while let Some(channels) = self.complete() {
            let first = channels.first();
            let endpoint = first.and_then(Connection::endpoint);
            let source = first.map_or(Source::Unknown, Connection::source);
            let watched = first.filter(|_| T::WATCHES);
            let socket = watched.and_then(|one| Some((one.peer().ok()?, &one.stream.socket)));
            let socket = socket.map(|(peer, socket)| (peer, Arc::clone(socket)));
            match (self.transport.establish(channels), endpoint) {
                (Ok(link), _) => {
                    let watch = self.next_watch;
                    self.next_watch += 1;
                    let watched = socket.map(|(peer, socket)| Watched::new(watch, peer, socket));
                    self.watched.extend(watched);
                    self.transport.report(Outcome::Ready { endpoint, watch, link });
                }
                (Err(error), Some(endpoint)) => self.fail(endpoint, error),
                (Err(error), None) => self.refusals.note(source, &error, Instant::now()),
            }
        }
    }

    /// Removes the connections of an endpoint all of which have done their part.
    fn complete(&mut self) -> Option<Vec<Connection<T>>> {
        let all = &self.connections;
        let is_one = |at: usize, other: usize| {
            at == other
                || match (all[at].endpoint(), all[other].endpoint()) {
                    (None, None) => T::belong_together(&all[at], &all[other]),
                    (one, other) => one == other,
                }
        };
        let done: Vec<usize> = (0..all.len()).filter(|at| all[*at].is_done()).collect();
        let group = |at: &usize| -> Vec<usize> {
            done.iter().copied().filter(|other| is_one(*at, *other)).collect()
        };
        let group = done.iter().map(group).find(|group| group.len() == T::CHANNELS)?;
        Some(group.into_iter().rev().map(|at| self.connections.remove(at)).collect())
    }
}

#[cfg(test)]
mod tests;
