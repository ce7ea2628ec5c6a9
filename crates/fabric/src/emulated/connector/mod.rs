mod pending;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{Established, Local};
use super::link::SharedLink;
use super::listener::Listener;
use super::socket::{self, Process};
use crate::{EndpointId, FabricError, Refusals};
use rackpool_sync::eventfd::{drain, signal};

/// Time that a peer has for its part of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(HANDSHAKE_MS);
const HANDSHAKE_MS: u64 = 5000;
/// Interval at which the connector retries what it cannot wait for with poll.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Limit of unauthenticated peers in a handshake. A further peer replaces the oldest.
const MAX_UNAUTHENTICATED: usize = 256;

/// A command of the fabric to its connector.
pub(super) enum Command {
    /// Connect to a socket.
    Connect { endpoint: EndpointId, path: PathBuf },
    /// The owner has given up the endpoint: stop connecting.
    Abandon { endpoint: EndpointId },
    /// The link has ended: stop watching its socket.
    Forget { watch: u64 },
    /// Terminate the thread.
    Stop,
}

/// A report of the connector to its fabric.
pub(super) enum Outcome {
    /// A link is established; `endpoint` is `None` if the peer connected.
    Ready { endpoint: Option<EndpointId>, watch: u64, established: Box<Established> },
    /// The connection to a peer failed.
    Failed { endpoint: EndpointId, error: FabricError },
    /// The socket of a link has ended: the peer is gone.
    Gone { watch: u64 },
    /// The peer sent data on the socket of a link, which is a protocol violation.
    Broken { watch: u64 },
}

/// The thread that makes connections and detects their end. It makes all system calls of this kind,
/// so that the thread that polls the fabric never waits for the operating system.
pub(super) struct Connector {
    local: Local,
    listener: Listener,
    control: Arc<OwnedFd>,
    commands: Receiver<Command>,
    outcomes: Sender<Outcome>,
    outgoing: Vec<Outgoing>,
    /// Sorted by age, the oldest first.
    incoming: Vec<Incoming>,
    refusals: Refusals,
    watched: Vec<Watched>,
    next_watch: u64,
    /// Set when the process ran out of descriptors: accept no connection before this time.
    accept_again_at: Option<Instant>,
}

/// A connection that this side is making.
struct Outgoing {
    endpoint: EndpointId,
    path: PathBuf,
    socket: OwnedFd,
    /// The link that was offered; `None` while the listener's backlog is full.
    offered: Option<SharedLink>,
    give_up_at: Instant,
}

/// A connection of an unauthenticated peer.
struct Incoming {
    socket: OwnedFd,
    from: Option<Process>,
    give_up_at: Instant,
}

/// The socket of a link, watched for the end of the peer.
struct Watched {
    watch: u64,
    socket: Arc<OwnedFd>,
    broken: bool,
}

impl Connector {
    pub(super) fn new(
        local: Local,
        listener: Listener,
        control: Arc<OwnedFd>,
        commands: Receiver<Command>,
        outcomes: Sender<Outcome>,
    ) -> Self {
        Self {
            local,
            listener,
            control,
            commands,
            outcomes,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            refusals: Refusals::default(),
            watched: Vec::new(),
            next_watch: 0,
            accept_again_at: None,
        }
    }

    /// Runs until `Stop`.
    pub(super) fn run(mut self) {
        loop {
            let ready = self.wait();
            let mut ready = ready.into_iter();
            let mut next = || ready.next().unwrap_or(PollFlags::empty());
            let control = next();
            let listener = next();
            let outgoing = std::mem::take(&mut self.outgoing);
            let outgoing: Vec<_> = outgoing.into_iter().map(|one| (next(), one)).collect();
            let incoming = std::mem::take(&mut self.incoming);
            let incoming: Vec<_> = incoming.into_iter().map(|one| (next(), one)).collect();
            let watched = std::mem::take(&mut self.watched);
            let watched: Vec<_> = watched.into_iter().map(|one| (next(), one)).collect();

            outgoing.into_iter().for_each(|(flags, one)| self.go_on_connecting(flags, one));
            incoming.into_iter().for_each(|(flags, one)| self.go_on_accepting(flags, one));
            watched.into_iter().for_each(|(flags, one)| self.look_at(flags, one));
            if self.accept_again_at.is_some_and(|at| at <= Instant::now()) {
                self.accept_again_at = None;
            }
            if !listener.is_empty() {
                self.accept();
            }
            if !control.is_empty() {
                drain(&*self.control);
            }
            if !self.obey() {
                return;
            }
        }
    }

    /// Sleeps until an event or a deadline. Returns the poll flags of each descriptor, in the order
    /// of `run`.
    fn wait(&self) -> Vec<PollFlags> {
        let open = PollFlags::IN;
        let silent = PollFlags::empty();
        let accepting = self.accept_again_at.is_none();
        let mut fds = vec![
            PollFd::new(&*self.control, open),
            PollFd::new(&self.listener.socket, if accepting { open } else { silent }),
        ];
        for one in &self.outgoing {
            // An unconnected socket would report POLLHUP continually.
            fds.push(match one.offered {
                Some(_) => PollFd::new(&one.socket, open),
                None => PollFd::new(&*self.control, silent),
            });
        }
        fds.extend(self.incoming.iter().map(|one| PollFd::new(&one.socket, open)));
        for one in &self.watched {
            let flags = if one.broken { silent } else { open };
            fds.push(PollFd::from_borrowed_fd(one.socket.as_fd(), flags));
        }
        let timeout = self.next_deadline().map(|at| {
            // Rounded up, so that the deadline has passed after the wait.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => fds.iter().map(PollFd::revents).collect(),
            // Interrupted or out of memory: report no events, so that the caller polls again.
            Err(_) => vec![PollFlags::empty(); fds.len()],
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let retry = self.outgoing.iter().any(|one| one.offered.is_none());
        let outgoing = self.outgoing.iter().map(|one| one.give_up_at);
        let incoming = self.incoming.iter().map(|one| one.give_up_at);
        outgoing
            .chain(incoming)
            .chain(retry.then(|| Instant::now() + RETRY_AFTER))
            .chain(self.accept_again_at)
            .min()
    }

    /// Executes queued commands. Returns false at `Stop`.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Connect { endpoint, path }) => match socket::new_socket() {
                    Ok(socket) => {
                        let give_up_at = Instant::now() + HANDSHAKE_TIMEOUT;
                        let one = Outgoing { endpoint, path, socket, offered: None, give_up_at };
                        self.go_on_connecting(PollFlags::empty(), one);
                    }
                    Err(errno) => {
                        let error = FabricError::local("create a socket", errno);
                        self.report(Outcome::Failed { endpoint, error });
                    }
                },
                Ok(Command::Abandon { endpoint }) => {
                    self.outgoing.retain(|one| one.endpoint != endpoint);
                }
                Ok(Command::Forget { watch }) => self.watched.retain(|one| one.watch != watch),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn report(&self, outcome: Outcome) {
        // The channel is closed only while the fabric is being dropped; `Stop` follows.
        let _ = self.outcomes.send(outcome);
        signal(&*self.local.wake);
    }

    fn ready(&mut self, endpoint: Option<EndpointId>, established: Established) {
        let watch = self.next_watch;
        self.next_watch += 1;
        let socket = Arc::clone(&established.socket);
        self.watched.push(Watched { watch, socket, broken: false });
        self.report(Outcome::Ready { endpoint, watch, established: Box::new(established) });
    }

    fn look_at(&mut self, flags: PollFlags, mut one: Watched) {
        if flags.intersects(PollFlags::HUP) {
            self.report(Outcome::Gone { watch: one.watch });
            return;
        }
        if !flags.is_empty() && !one.broken {
            one.broken = true;
            self.report(Outcome::Broken { watch: one.watch });
        }
        self.watched.push(one);
    }
}
