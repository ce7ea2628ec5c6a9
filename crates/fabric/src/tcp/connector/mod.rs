mod accepting;
mod connecting;
mod greeting;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::accepting::{HalfOpenEndpoint, UnauthenticatedPeer};
use self::connecting::Outgoing;
use super::handshake::Identity;
use super::inbox::{Inbox, InboxEvent};
use super::server::{self, ServerHandle};
use crate::{EndpointId, FabricError, Refusals};
use rackpool_sync::eventfd::drain;

/// Time that a peer has for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(HANDSHAKE_MS);
const HANDSHAKE_MS: u64 = 5000;
/// Delay before accepting again after the process ran out of descriptors.
const RETRY_AFTER: Duration = Duration::from_millis(10);
/// Limit of unauthenticated peers in a handshake.
const MAX_UNAUTHENTICATED: usize = 256;
/// Id of the first endpoint that a peer connects. Peers' endpoints have odd ids, the owner's even
/// ones.
pub(super) const FIRST_ACCEPTED: u64 = 1;

/// A command of the fabric to its connector.
pub(super) enum Command {
    /// Connect to a peer.
    Connect { endpoint: EndpointId, address: SocketAddr },
    /// The owner has given up the endpoint: stop connecting.
    Abandon { endpoint: EndpointId },
    /// Terminate the thread.
    Stop,
}

/// The thread that listens and connects, so that neither the owner nor the server waits for
/// unauthenticated peers.
pub(super) struct Connector {
    identity: Identity,
    dead_after: Duration,
    listener: TcpListener,
    control: Arc<OwnedFd>,
    commands: Receiver<Command>,
    inbox: Arc<Inbox>,
    server: ServerHandle,
    outgoing: Vec<Outgoing>,
    /// Sorted by age, the oldest first.
    unauthenticated_peers: Vec<UnauthenticatedPeer>,
    /// Sorted by age, the oldest first.
    halves: Vec<HalfOpenEndpoint>,
    refusals: Refusals,
    next_accepted: u64,
    /// Set when the process ran out of descriptors: accept no connection before this time.
    accept_again_at: Option<Instant>,
}

/// The arguments of [`Connector::new`].
pub(super) struct Parts {
    pub(super) identity: Identity,
    pub(super) dead_after: Duration,
    pub(super) listener: TcpListener,
    pub(super) control: Arc<OwnedFd>,
    pub(super) commands: Receiver<Command>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) server: ServerHandle,
}

impl Connector {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { identity, dead_after, listener, control, commands, inbox, server } = parts;
        Self {
            identity,
            dead_after,
            listener,
            control,
            commands,
            inbox,
            server,
            outgoing: Vec::new(),
            unauthenticated_peers: Vec::new(),
            halves: Vec::new(),
            refusals: Refusals::default(),
            next_accepted: FIRST_ACCEPTED,
            accept_again_at: None,
        }
    }

    /// Runs until `Stop`.
    pub(super) fn run(mut self) {
        loop {
            let mut ready = self.wait().into_iter();
            let mut next = || ready.next().unwrap_or(PollFlags::empty());
            let (control, listener) = (next(), next());
            let outgoing = std::mem::take(&mut self.outgoing);
            let outgoing: Vec<_> = outgoing
                .into_iter()
                .map(|one| (one.channels.iter().map(|_| next()).collect::<Vec<_>>(), one))
                .collect();
            let unauthenticated_peers = std::mem::take(&mut self.unauthenticated_peers);
            let unauthenticated_peers: Vec<_> =
                unauthenticated_peers.into_iter().map(|one| (next(), one)).collect();

            outgoing.into_iter().for_each(|(flags, one)| self.go_on_connecting(&flags, one));
            unauthenticated_peers
                .into_iter()
                .for_each(|(flags, one)| self.go_on_accepting(flags, one));
            self.give_up_halves();
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
        let accepting = self.accept_again_at.is_none();
        let mut fds = vec![
            watch(self.control.as_fd(), PollFlags::IN),
            // Even without flags, poll would report errors of the listener.
            match accepting {
                true => watch(self.listener.as_fd(), PollFlags::IN),
                false => watch(self.control.as_fd(), PollFlags::empty()),
            },
        ];
        for channel in self.outgoing.iter().flat_map(|one| &one.channels) {
            let interest = channel.interest();
            // A channel that waits for the other one would report POLLHUP continually.
            let fd = if interest.is_empty() {
                self.control.as_fd()
            } else {
                channel.greeting.socket.as_fd()
            };
            fds.push(watch(fd, interest));
        }
        let unauthenticated_peers = self.unauthenticated_peers.iter();
        fds.extend(
            unauthenticated_peers.map(|one| watch(one.greeting.socket.as_fd(), PollFlags::IN)),
        );
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
        let outgoing = self.outgoing.iter().map(Outgoing::deadline);
        let unauthenticated_peers = self.unauthenticated_peers.iter().map(|one| one.give_up_at);
        let halves = self.halves.iter().map(|half| half.give_up_at);
        outgoing.chain(unauthenticated_peers).chain(halves).chain(self.accept_again_at).min()
    }

    fn give_up_halves(&mut self) {
        let now = Instant::now();
        let Self { halves, refusals, .. } = self;
        halves.retain(|half| {
            let waits = now < half.give_up_at;
            if !waits {
                let error = FabricError::misbehaved("it opened one channel of two");
                refusals.note(half.from(), &error, now);
            }
            waits
        });
    }

    /// Executes queued commands. Returns false at `Stop`.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Connect { endpoint, address }) => self.connect(endpoint, address),
                Ok(Command::Abandon { endpoint }) => {
                    let before = self.outgoing.len();
                    self.outgoing.retain(|one| one.endpoint != endpoint);
                    if self.outgoing.len() < before {
                        self.inbox.tell(InboxEvent::Abandoned { endpoint });
                    }
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Hands a connected peer to the server, which informs the owner.
    fn ready(&self, command: server::Command) {
        // Fails only if the server has ended because the fabric is being dropped; `Stop` follows.
        let _ = self.server.tell(command);
    }
}

fn watch(fd: BorrowedFd<'_>, flags: PollFlags) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, flags)
}
