mod channel;
mod ending;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use self::channel::Turn;
use self::ending::{Asked, Draining};
use super::buffer::Buffer;
use rackpool_sync::eventfd::{drain, signal};

use super::inbox::{Ending, Inbox, InboxEvent, Ready};
use super::receive_spin::ReceiveSpin;
use crate::{EndpointId, FabricError, ReceiveRoom};

pub(super) use self::channel::{Exports, PeerIncarnation, ServedChannel};

/// Tag of the eventfd that wakes the server; other tags are endpoint ids.
const CONTROL: u64 = u64::MAX;
/// While it spins, the server checks only the last active channel, and all of them at every 8th
/// look.
const ALL_EVERY: u32 = 8;

/// A command to the server.
pub(super) enum Command {
    /// Serve a peer, and inform the owner that it is ready.
    Serve { socket: TcpStream, ready: Box<Ready> },
    /// Stop serving the endpoint. If `posting` is given, watch it until the peer has closed it.
    End { endpoint: EndpointId, bye: bool, posting: Option<TcpStream> },
    /// The posting channel has ended: report soon how the serving channel ends.
    Ask { endpoint: EndpointId },
    /// Terminate the thread.
    Stop,
}

/// Sends commands to the server.
#[derive(Clone)]
pub(super) struct ServerHandle {
    commands: Sender<Command>,
    control: Arc<OwnedFd>,
}

impl ServerHandle {
    pub(super) const fn new(commands: Sender<Command>, control: Arc<OwnedFd>) -> Self {
        Self { commands, control }
    }

    pub(super) fn tell(&self, command: Command) -> Result<(), FabricError> {
        let sent = self.commands.send(command);
        signal(&*self.control);
        sent.map_err(|_| {
            FabricError::local("reach the server of the fabric", "its thread has ended")
        })
    }
}

/// The thread that executes the requests of peers on this side's memory, independently of its
/// owner.
pub(super) struct Server {
    exports: Exports,
    inbox: Arc<Inbox>,
    commands: Receiver<Command>,
    control: Arc<OwnedFd>,
    epoll: OwnedFd,
    dead_after: Duration,
    /// Room for the input buffers of the channels.
    receive_room: ReceiveRoom,
    channels: BTreeMap<EndpointId, ServedChannel>,
    /// Channels that have work left after their turn.
    unfinished: Vec<EndpointId>,
    /// The channel that last had work.
    last: Option<EndpointId>,
    asked: Vec<Asked>,
    draining: Vec<Draining>,
}

impl Server {
    pub(super) fn new(
        exports: Exports,
        inbox: Arc<Inbox>,
        commands: Receiver<Command>,
        control: Arc<OwnedFd>,
        dead_after: Duration,
        receive_room: ReceiveRoom,
    ) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(CONTROL);
        epoll::add(&epoll, &*control, data, epoll::EventFlags::IN)?;
        Ok(Self {
            exports,
            inbox,
            commands,
            control,
            epoll,
            dead_after,
            receive_room,
            channels: BTreeMap::new(),
            unfinished: Vec::new(),
            last: None,
            asked: Vec::new(),
            draining: Vec::new(),
        })
    }

    /// Runs until `Stop`.
    pub(super) fn run(mut self) {
        let mut spin = ReceiveSpin::new();
        let mut round = 0_u32;
        let mut now = Instant::now();
        loop {
            let before = now;
            let mut ready = std::mem::take(&mut self.unfinished);
            let sleeps = ready.is_empty() && !spin.looks_again(now);
            match self.last {
                Some(last) if ready.is_empty() && !sleeps && !round.is_multiple_of(ALL_EVERY) => {
                    ready.push(last);
                }
                _ => ready.extend(self.wait(sleeps)),
            }
            round = round.wrapping_add(1);
            now = Instant::now();
            if now.saturating_duration_since(before) > self.dead_after / 2 {
                self.was_stopped();
            }
            let mut busy = false;
            for endpoint in ready {
                busy |= self.serve(endpoint);
            }
            match self.obey() {
                None => return,
                Some(any) => busy |= any,
            }
            self.finish_endings();
            if busy {
                spin.came(now);
            } else if !sleeps {
                // The owner may share this core and has not seen the earlier work yet.
                std::thread::yield_now();
            }
        }
    }

    /// Drops all channels after this thread did not run for long. Peers may have given this side up
    /// meanwhile and written elsewhere what they wrote here, so the bytes that wait in the channels
    /// must not land.
    fn was_stopped(&mut self) {
        if !self.channels.is_empty() {
            tracing::warn!(
                "the fabric's server did not run for more than {:?}: it hangs up on all peers",
                self.dead_after / 2
            );
        }
        for (endpoint, _) in std::mem::take(&mut self.channels) {
            self.inbox.tell(InboxEvent::ChannelEnded { endpoint, ending: Ending::Gone });
        }
    }

    /// Polls, or sleeps until an event if `sleeps` is set. Returns the channels with events.
    fn wait(&mut self, sleeps: bool) -> Vec<EndpointId> {
        let timeout = if sleeps { self.longest_sleep() } else { Some(Duration::ZERO) };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(64);
        // Interrupted or out of memory: no events are known, the caller polls again.
        let _ =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        let tags = events.iter().map(|event| event.data.u64());
        let ready = tags.filter(|tag| *tag != CONTROL).map(EndpointId).collect();
        if events.iter().any(|event| event.data.u64() == CONTROL) {
            drain(&*self.control);
        }
        ready
    }

    fn longest_sleep(&self) -> Option<Duration> {
        let regular = (!self.channels.is_empty()).then_some(self.dead_after / 4);
        self.next_ending().into_iter().chain(regular).min()
    }

    /// Gives a channel its turn. Returns true if it had work.
    fn serve(&mut self, endpoint: EndpointId) -> bool {
        let Some(channel) = self.channels.get_mut(&endpoint) else { return false };
        match channel.turn() {
            Ok(Turn::Idle) => return false,
            Ok(Turn::Served) => self.last = Some(endpoint),
            Ok(Turn::Unfinished) => {
                self.last = Some(endpoint);
                self.unfinished.push(endpoint);
            }
            Err(ending) => {
                self.channels.remove(&endpoint);
                self.inbox.tell(InboxEvent::ChannelEnded { endpoint, ending });
            }
        }
        true
    }

    /// Executes queued commands. Returns whether there were any, or `None` at `Stop`.
    fn obey(&mut self) -> Option<bool> {
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Serve { socket, ready }) => self.begin(socket, ready),
                Ok(Command::End { endpoint, bye, posting }) => self.end(endpoint, bye, posting),
                Ok(Command::Ask { endpoint }) => self.ask(endpoint),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => return Some(any),
            }
            any = true;
        }
    }

    fn begin(&mut self, socket: TcpStream, ready: Box<Ready>) {
        let endpoint = ready.endpoint;
        let peer = PeerIncarnation { rack: ready.peer, incarnation: ready.incarnation };
        self.end_other_lives(peer);
        self.inbox.tell(InboxEvent::Ready(ready));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(endpoint.0);
        match epoll::add(&self.epoll, socket.as_fd(), data, flags) {
            Ok(()) => {
                let (exports, inbox) = (Arc::clone(&self.exports), Arc::clone(&self.inbox));
                let input = Buffer::within(&self.receive_room);
                let channel = ServedChannel::new(endpoint, peer, socket, exports, inbox, input);
                self.channels.insert(endpoint, channel);
                // Bytes may have arrived before the socket was watched.
                self.unfinished.push(endpoint);
            }
            Err(errno) => {
                let ending = Ending::Failed(FabricError::local("watch a socket", errno));
                self.inbox.tell(InboxEvent::ChannelEnded { endpoint, ending });
            }
        }
    }

    /// Drops the channels of the rack's other incarnations. The kernel of the rack's host may still
    /// retransmit bytes that an earlier incarnation wrote; they would land after those that this
    /// incarnation writes to the same place.
    fn end_other_lives(&mut self, living: PeerIncarnation) {
        let inbox = &self.inbox;
        self.channels.retain(|endpoint, channel| {
            let peer = channel.peer();
            let stays = peer.rack != living.rack || peer == living;
            if !stays {
                inbox.tell(InboxEvent::ChannelEnded { endpoint: *endpoint, ending: Ending::Gone });
            }
            stays
        });
    }
}
