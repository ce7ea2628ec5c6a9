use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::greeting::{Greeting, Received};
use super::{Connector, HANDSHAKE_MS, HANDSHAKE_TIMEOUT};
use crate::tcp::handshake::{Identity, Initiator, Step, random};
use crate::tcp::hello::{ChannelNumber, Hello};
use crate::tcp::inbox::{InboxEvent, Ready};
use crate::tcp::server::Command;
use crate::tcp::socket;
use crate::{EndpointId, FabricError};

/// An endpoint that this side is connecting.
pub(super) struct Outgoing {
    pub(super) endpoint: EndpointId,
    address: SocketAddr,
    /// Sorted by their numbers.
    pub(super) channels: Vec<Channel>,
    give_up_at: Instant,
    /// Deadline for both TCP connections to be established.
    connect_by: Instant,
}

impl Outgoing {
    /// The deadline of the current step.
    pub(super) fn deadline(&self) -> Instant {
        let are_there = self.channels.iter().all(|channel| channel.greeted);
        if are_there { self.give_up_at } else { self.connect_by }
    }
}

/// Time that the kernels have to connect. They retransmit a lost SYN after a second, so a new
/// attempt is quicker after a link failure.
const CONNECT_MS: u64 = 250;
const CONNECT_TIMEOUT: Duration = Duration::from_millis(CONNECT_MS);

/// One of the endpoint's connections.
pub(super) struct Channel {
    pub(super) greeting: Greeting,
    initiator: Initiator,
    /// True once the connection is established and the hello is sent.
    pub(super) greeted: bool,
    welcomed: Option<Hello>,
}

/// Connections that this side makes.
impl Connector {
    pub(super) fn connect(&mut self, endpoint: EndpointId, address: SocketAddr) {
        match self.begin(endpoint, address) {
            Ok(one) => self.outgoing.push(one),
            Err(error) => self.inbox.tell(InboxEvent::Failed { endpoint, error }),
        }
    }

    fn begin(&self, endpoint: EndpointId, address: SocketAddr) -> Result<Outgoing, FabricError> {
        let session = random()?;
        let mut channels = Vec::with_capacity(ChannelNumber::BOTH.len());
        for number in ChannelNumber::BOTH {
            let initiator = Initiator::new(&self.identity, number, session, random()?);
            let socket = socket::connect(&address).map_err(|errno| unreachable(address, errno))?;
            socket::prepare(&socket, self.dead_after)
                .map_err(|errno| FabricError::local("set up a socket", errno))?;
            let greeting = Greeting::new(socket);
            channels.push(Channel { greeting, initiator, greeted: false, welcomed: None });
        }
        let now = Instant::now();
        let (give_up_at, connect_by) = (now + HANDSHAKE_TIMEOUT, now + CONNECT_TIMEOUT);
        Ok(Outgoing { endpoint, address, channels, give_up_at, connect_by })
    }

    pub(super) fn go_on_connecting(&mut self, flags: &[PollFlags], mut one: Outgoing) {
        let endpoint = one.endpoint;
        for (channel, flags) in one.channels.iter_mut().zip(flags) {
            if flags.is_empty() {
                continue;
            }
            if let Err(error) = channel.go_on(&self.identity, one.address) {
                self.inbox.tell(InboxEvent::Failed { endpoint, error });
                return;
            }
        }
        if one.channels.iter().all(|channel| channel.welcomed.is_some()) {
            self.connected(one);
        } else if Instant::now() < one.deadline() {
            self.outgoing.push(one);
        } else {
            let address = one.address.to_string();
            let are_there = one.channels.iter().all(|channel| channel.greeted);
            let timeout_ms = if are_there { HANDSHAKE_MS } else { CONNECT_MS };
            let error = FabricError::Silent { address, timeout_ms };
            self.inbox.tell(InboxEvent::Failed { endpoint, error });
        }
    }

    fn connected(&mut self, one: Outgoing) {
        let endpoint = one.endpoint;
        let mut channels = one.channels.into_iter();
        let (Some(first), Some(second)) = (channels.next(), channels.next()) else { return };
        let (Some(hello), Some(same)) = (first.welcomed, second.welcomed) else { return };
        if (hello.rack, hello.incarnation, &hello.regions)
            != (same.rack, same.incarnation, &same.regions)
        {
            let error = FabricError::misbehaved("two racks answer at its address");
            self.inbox.tell(InboxEvent::Failed { endpoint, error });
            return;
        }
        let Hello { rack, incarnation, regions, .. } = hello;
        let posting = first.greeting.socket;
        let ready = Ready { endpoint, accepted: false, peer: rack, incarnation, regions, posting };
        self.ready(Command::Serve { socket: second.greeting.socket, ready: Box::new(ready) });
    }
}

impl Channel {
    fn go_on(&mut self, identity: &Identity, address: SocketAddr) -> Result<(), FabricError> {
        if !self.greeted {
            if let Ok(Some(error)) = self.greeting.socket.take_error() {
                return Err(unreachable(address, error));
            }
            self.greeting
                .send(self.initiator.greeting())
                .map_err(|error| unreachable(address, error))?;
            self.greeted = true;
            return Ok(());
        }
        while self.welcomed.is_none() {
            let packet = match self.greeting.receive()? {
                Received::Packet(packet) => packet,
                Received::Nothing => break,
                Received::End => {
                    return Err(unreachable(address, "it closed the connection without an answer"));
                }
            };
            match self.initiator.receive(identity, &packet)? {
                None => {}
                Some(Step::Answer(answer)) => {
                    self.greeting.send(&answer).map_err(|error| unreachable(address, error))?;
                }
                Some(Step::Proven(hello)) => self.welcomed = Some(hello),
            }
        }
        Ok(())
    }

    /// The poll events to wait for.
    pub(super) const fn interest(&self) -> PollFlags {
        match (self.greeted, &self.welcomed) {
            (false, _) => PollFlags::OUT,
            (true, None) => PollFlags::IN,
            (true, Some(_)) => PollFlags::empty(),
        }
    }
}

fn unreachable(address: SocketAddr, cause: impl ToString) -> FabricError {
    FabricError::Unreachable { address: address.to_string(), cause: cause.to_string() }
}
