use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::greeting::{Greeting, Received};
use super::{Connector, HANDSHAKE_MS, HANDSHAKE_TIMEOUT, MAX_UNAUTHENTICATED, RETRY_AFTER};
use crate::tcp::handshake::{Acceptor, Step, random};
use crate::tcp::hello::{ChannelNumber, Hello, Packet};
use crate::tcp::inbox::Ready;
use crate::tcp::server::Command;
use crate::tcp::socket;
use crate::{EndpointId, FabricError, give_way};

/// The number of connections accepted at a time.
const BATCH: usize = 64;

/// A connection whose peer has proved nothing yet.
pub(super) struct UnauthenticatedPeer {
    pub(super) greeting: Greeting,
    from: Option<SocketAddr>,
    acceptor: Acceptor,
    pub(super) give_up_at: Instant,
}

/// One proven channel of an endpoint whose other channel has not arrived.
pub(super) struct HalfOpenEndpoint {
    hello: Hello,
    greeting: Greeting,
    from: Option<SocketAddr>,
    pub(super) give_up_at: Instant,
}

/// Connections that peers make.
impl Connector {
    pub(super) fn accept(&mut self) {
        for _ in 0..BATCH {
            match socket::accept(&self.listener) {
                Ok((socket, from)) => self.meet(socket, from),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    // Most likely out of descriptors: an unauthenticated peer has to give one up.
                    let error = FabricError::local("accept a connection", errno);
                    self.refusals.note(None::<SocketAddr>, &error, Instant::now());
                    self.make_room();
                    self.accept_again_at = Some(Instant::now() + RETRY_AFTER);
                    return;
                }
            }
        }
    }

    fn meet(&mut self, socket: TcpStream, from: Option<SocketAddr>) {
        let prepared = socket::prepare(&socket, self.dead_after)
            .map_err(|errno| FabricError::local("set up a socket", errno))
            .and_then(|()| random());
        let now = Instant::now();
        match prepared {
            Ok(nonce) => {
                if self.unauthenticated_peers.len() + self.halves.len() >= MAX_UNAUTHENTICATED {
                    self.make_room();
                }
                self.unauthenticated_peers.push(UnauthenticatedPeer {
                    greeting: Greeting::new(socket),
                    from,
                    acceptor: Acceptor::new(nonce),
                    give_up_at: now + HANDSHAKE_TIMEOUT,
                });
            }
            Err(error) => self.refusals.note(from, &error, now),
        }
    }

    /// Drops an unauthenticated peer, or else half an endpoint, to make room for another
    /// connection.
    fn make_room(&mut self) {
        let error = FabricError::misbehaved("it said nothing while many others connected");
        if let Some(at) = give_way(self.unauthenticated_peers.iter().map(|one| one.from)) {
            let one = self.unauthenticated_peers.remove(at);
            self.refusals.note(one.from, &error, Instant::now());
        } else if let Some(at) = give_way(self.halves.iter().map(|one| one.from)) {
            let one = self.halves.remove(at);
            self.refusals.note(one.from, &error, Instant::now());
        }
    }

    /// Continues the handshake of an unauthenticated peer that has sent something or has timed out.
    /// A fault of the peer ends its own connection only.
    pub(super) fn go_on_accepting(&mut self, flags: PollFlags, mut one: UnauthenticatedPeer) {
        let now = Instant::now();
        let result = if flags.is_empty() { Ok(None) } else { self.listen_to(&mut one) };
        match result {
            Ok(Some(hello)) => self.channel_proven(hello, one),
            Ok(None) if now < one.give_up_at => self.unauthenticated_peers.push(one),
            Ok(None) => {
                let silent = format!("it did not finish its handshake within {HANDSHAKE_MS} ms");
                self.refusals.note(one.from, &FabricError::misbehaved(silent), now);
            }
            Err(error) => {
                self.refusals.note(one.from, &error, now);
                // The send fails if the peer has gone.
                let _ = one.greeting.send(&Packet::Refusal(error.to_string()).encode());
            }
        }
    }

    fn listen_to(&mut self, one: &mut UnauthenticatedPeer) -> Result<Option<Hello>, FabricError> {
        loop {
            let packet = match one.greeting.receive()? {
                Received::Packet(packet) => packet,
                Received::Nothing => return Ok(None),
                Received::End => return Err(FabricError::misbehaved("it hung up")),
            };
            match one.acceptor.receive(&self.identity, &packet)? {
                Step::Answer(answer) => {
                    one.greeting
                        .send(&answer)
                        .map_err(|error| FabricError::local("greet the peer", error))?;
                }
                Step::Proven(hello) => return Ok(Some(hello)),
            }
        }
    }

    /// Joins the two channels of an endpoint.
    fn channel_proven(&mut self, hello: Hello, one: UnauthenticatedPeer) {
        let UnauthenticatedPeer { greeting, from, give_up_at, .. } = one;
        let new = HalfOpenEndpoint { hello, greeting, from, give_up_at };
        let Some(at) = self.halves.iter().position(|half| half.fits(&new)) else {
            self.halves.push(new);
            return;
        };
        let other = self.halves.remove(at);
        let (mut first, mut second) = match new.hello.channel {
            ChannelNumber::First => (new, other),
            ChannelNumber::Second => (other, new),
        };
        let welcome = Packet::Welcome.encode();
        if first.greeting.send(&welcome).is_err() || second.greeting.send(&welcome).is_err() {
            // The peer has gone; no local caller waits for the endpoint.
            return;
        }
        let endpoint = EndpointId(self.next_accepted);
        self.next_accepted += 2;
        let Hello { rack, incarnation, regions, .. } = first.hello;
        let posting = second.greeting.socket;
        let ready = Ready { endpoint, accepted: true, peer: rack, incarnation, regions, posting };
        self.ready(Command::Serve { socket: first.greeting.socket, ready: Box::new(ready) });
    }
}

impl HalfOpenEndpoint {
    /// Returns true if the two are the channels of one endpoint.
    fn fits(&self, other: &Self) -> bool {
        let alike =
            |hello: &Hello| (hello.session, hello.rack, hello.incarnation, hello.regions.clone());
        self.hello.channel != other.hello.channel && alike(&self.hello) == alike(&other.hello)
    }

    /// The peer's address, for the log.
    pub(super) const fn from(&self) -> Option<SocketAddr> {
        self.from
    }
}
