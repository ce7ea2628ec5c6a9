mod pending;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, FabricError, Refusals, give_way};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::{local, misbehaved};
use crate::link::{Shared, VerbsLink};
use crate::packet::Packet;
use crate::socket::{self, Received};
use pending::{PendingHandshake, Step};
use rackpool_sync::eventfd::{drain, signal};

/// Delay before accepting again after the process ran out of descriptors.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Interval at which probes are polled.
const PROBE_EVERY: Duration = Duration::from_millis(1);
/// Limit of unauthenticated peers in a handshake. A further peer replaces another.
const MAX_UNAUTHENTICATED: usize = 64;

/// The number of connections accepted at a time. It is below the limit of unauthenticated peers, so
/// that peers that answer are served before others replace them.
const BATCH: usize = 16;

/// A command of the fabric to its connector.
pub(crate) enum Command {
    /// Connect to the fabric at an address.
    Connect { endpoint: EndpointId, address: SocketAddr },
    /// The owner has given up the endpoint: stop connecting.
    Abandon { endpoint: EndpointId },
    /// The endpoint has ended: destroy its link and stop watching its socket.
    Bury { endpoint: EndpointId, watch: u64, link: Box<VerbsLink> },
    /// Terminate the thread.
    Stop,
}

/// A report of the connector to its fabric.
pub(crate) enum Outcome {
    /// A link is established; `endpoint` is `None` if the peer connected.
    Ready { endpoint: Option<EndpointId>, watch: u64, link: Box<VerbsLink> },
    /// The connection to a peer failed.
    Failed { endpoint: EndpointId, error: FabricError },
    /// A connection that the owner gave up is closed.
    Abandoned { endpoint: EndpointId },
    /// The peer has sent a goodbye, or its socket has ended without one.
    Gone { watch: u64, said_goodbye: bool },
    /// The peer sent something else on the socket of a link, which is a protocol violation.
    Broken { watch: u64 },
    /// The link is destroyed.
    Buried { endpoint: EndpointId, said_goodbye: bool },
}

/// The thread that makes connections, detects their end and destroys them, so that the thread that
/// polls the fabric never waits for the network or the device.
pub(crate) struct Connector {
    shared: Arc<Shared>,
    listener: OwnedFd,
    control: Arc<OwnedFd>,
    commands: Receiver<Command>,
    outcomes: Sender<Outcome>,
    /// Those with unauthenticated peers are sorted by age, the oldest first.
    handshakes: Vec<PendingHandshake>,
    refusals: Refusals,
    watched: Vec<Watched>,
    next_watch: u64,
    /// Set when the process ran out of descriptors: accept no connection before this time.
    accept_again_at: Option<Instant>,
}

/// The socket of a link, watched for a goodbye or the end of the peer.
struct Watched {
    watch: u64,
    socket: Arc<OwnedFd>,
    received: Vec<u8>,
    /// True once the end of the socket, or a violation, was reported.
    reported: bool,
    said_goodbye: bool,
}

impl Connector {
    pub(crate) fn new(
        shared: Arc<Shared>,
        listener: OwnedFd,
        control: Arc<OwnedFd>,
        commands: Receiver<Command>,
        outcomes: Sender<Outcome>,
    ) -> Self {
        Self {
            shared,
            listener,
            control,
            commands,
            outcomes,
            handshakes: Vec::new(),
            refusals: Refusals::default(),
            watched: Vec::new(),
            next_watch: 0,
            accept_again_at: None,
        }
    }

    /// Runs until `Stop`.
    pub(crate) fn run(mut self) {
        loop {
            let ready = self.wait();
            let mut ready = ready.into_iter();
            let mut next = || ready.next().unwrap_or(PollFlags::empty());
            let control = next();
            let listener = next();
            let handshakes = std::mem::take(&mut self.handshakes);
            let handshakes: Vec<_> = handshakes.into_iter().map(|one| (next(), one)).collect();
            let watched = std::mem::take(&mut self.watched);
            let watched: Vec<_> = watched.into_iter().map(|one| (next(), one)).collect();

            handshakes.into_iter().for_each(|(flags, one)| self.go_on(flags, one));
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
        let accepting =
            if self.accept_again_at.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![
            PollFd::new(&*self.control, PollFlags::IN),
            PollFd::new(&self.listener, accepting),
        ];
        fds.extend(self.handshakes.iter().map(|one| PollFd::new(one.socket(), one.waits_for())));
        for one in &self.watched {
            // poll would report the end of the socket continually, so another descriptor takes its
            // place.
            fds.push(if one.reported {
                PollFd::new(&*self.control, PollFlags::empty())
            } else {
                PollFd::from_borrowed_fd(one.socket.as_fd(), PollFlags::IN)
            });
        }
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
        let probing = self.handshakes.iter().any(PendingHandshake::is_probing);
        let probe = probing.then(|| Instant::now() + PROBE_EVERY);
        let ends = self.handshakes.iter().map(PendingHandshake::give_up_at);
        ends.chain(self.accept_again_at).chain(probe).min()
    }

    /// Executes queued commands. Returns false at `Stop`.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Connect { endpoint, address }) => {
                    match PendingHandshake::connect(&self.shared, endpoint, address) {
                        Ok(handshake) => self.handshakes.push(handshake),
                        Err(error) => self.report(Outcome::Failed { endpoint, error }),
                    }
                }
                Ok(Command::Abandon { endpoint }) => {
                    let before = self.handshakes.len();
                    self.handshakes.retain(|one| one.endpoint() != Some(endpoint));
                    if self.handshakes.len() < before {
                        self.report(Outcome::Abandoned { endpoint });
                    }
                }
                Ok(Command::Bury { endpoint, watch, link }) => self.bury(endpoint, watch, link),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn bury(&mut self, endpoint: EndpointId, watch: u64, link: Box<VerbsLink>) {
        drop(link);
        let at = self.watched.iter().position(|one| one.watch == watch);
        let said_goodbye = at.is_some_and(|at| {
            let mut one = self.watched.swap_remove(at);
            // A goodbye may have arrived that was not read yet.
            one.said_goodbye || matches!(one.hear(), Ok(Some(true)))
        });
        self.report(Outcome::Buried { endpoint, said_goodbye });
    }

    fn report(&self, outcome: Outcome) {
        // The channel is closed only while the fabric is being dropped; `Stop` follows.
        let _ = self.outcomes.send(outcome);
        signal(&self.shared.wake);
    }

    fn accept(&mut self) {
        for _ in 0..BATCH {
            match socket::accept(&self.listener) {
                Ok((socket, from)) => self.meet(socket, from),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    // Most likely out of descriptors: an unauthenticated peer has to give one up.
                    let error = local("accept a connection", errno);
                    self.refusals.note(None::<SocketAddr>, &error, Instant::now());
                    self.make_room();
                    self.accept_again_at = Some(Instant::now() + RETRY_AFTER);
                    return;
                }
            }
        }
    }

    fn meet(&mut self, socket: OwnedFd, from: Option<SocketAddr>) {
        let unauthenticated_peers = self.handshakes.iter().filter(|one| one.endpoint().is_none());
        if unauthenticated_peers.count() >= MAX_UNAUTHENTICATED {
            self.make_room();
        }
        match PendingHandshake::accept(&self.shared, socket, from) {
            Ok(handshake) => self.handshakes.push(handshake),
            Err(error) => self.refusals.note(from, &error, Instant::now()),
        }
    }

    /// Drops an unauthenticated peer to make room for another one.
    fn make_room(&mut self) {
        let unauthenticated_peers =
            self.handshakes.iter().enumerate().filter(|(_, one)| one.endpoint().is_none());
        let (places, from): (Vec<_>, Vec<_>) =
            unauthenticated_peers.map(|(at, one)| (at, one.from())).unzip();
        if let Some(at) = give_way(from.into_iter()).and_then(|at| places.get(at)) {
            let one = self.handshakes.remove(*at);
            let error = misbehaved("it did not finish its handshake while many others connected");
            self.refusals.note(one.from(), &error, Instant::now());
        }
    }

    fn go_on(&mut self, flags: PollFlags, handshake: PendingHandshake) {
        let (endpoint, from) = (handshake.endpoint(), handshake.from());
        match handshake.step(&self.shared, flags) {
            Ok(Step::Waiting(handshake)) => self.handshakes.push(handshake),
            Ok(Step::Done { link, socket, received }) => {
                let watch = self.next_watch;
                self.next_watch += 1;
                let (reported, said_goodbye) = (false, false);
                self.watched.push(Watched { watch, socket, received, reported, said_goodbye });
                self.report(Outcome::Ready { endpoint, watch, link });
            }
            Err(error) => match endpoint {
                Some(endpoint) => self.report(Outcome::Failed { endpoint, error }),
                // A fault of an unauthenticated peer ends its own connection only.
                None => self.refusals.note(from, &error, Instant::now()),
            },
        }
    }

    fn look_at(&mut self, flags: PollFlags, mut one: Watched) {
        if !flags.is_empty() && !one.reported {
            let watch = one.watch;
            match one.hear() {
                Ok(None) => {}
                Ok(Some(said_goodbye)) => {
                    (one.reported, one.said_goodbye) = (true, said_goodbye);
                    self.report(Outcome::Gone { watch, said_goodbye });
                }
                Err(_) => {
                    one.reported = true;
                    self.report(Outcome::Broken { watch });
                }
            }
        }
        self.watched.push(one);
    }
}

impl Watched {
    /// Checks the socket of a link. Returns `None` while the connection lasts; otherwise, whether
    /// the peer sent a goodbye.
    fn hear(&mut self) -> Result<Option<bool>, FabricError> {
        let received = socket::receive(&self.socket, &mut self.received);
        match (Packet::take(&mut self.received)?, received) {
            (Some(Packet::Goodbye), _) => Ok(Some(true)),
            (Some(_), _) => Err(local("understand the peer", "a packet out of turn")),
            (None, Received::End) => Ok(Some(false)),
            (None, Received::Bytes | Received::Nothing) => Ok(None),
        }
    }
}
