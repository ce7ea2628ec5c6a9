use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rackpool_model::{Incarnation, RackId};
use rustix::event::PollFlags;
use rustix::net::sockopt;

use super::stream::{Received, Stream};
use super::{HANDSHAKE_MS, HANDSHAKE_TIMEOUT, Next, Source, Transport};
use crate::handshake::{Handshake, Packet, Step};
use crate::{EndpointId, FabricError, Role};

/// A connection in its handshake.
pub struct Connection<T: Transport> {
    /// What the transport keeps for it.
    pub half: T::Half,
    /// Its socket.
    pub stream: Stream,
    /// Initiator: the endpoint that is being connected, and where.
    target: Option<(EndpointId, T::Address)>,
    source: Source,
    handshake: Handshake,
    phase: Phase,
    give_up_at: Instant,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Room at the listener.
    Dialing,
    /// The kernel, which connects.
    Connecting,
    /// The peer.
    Talking,
    /// The end of the endpoints of the rack's other incarnations. The peer has proved itself.
    Succeeding,
    /// The other connections of its endpoint.
    Done,
}

impl<T: Transport> Connection<T> {
    /// Initiator: begins to connect.
    pub(super) fn connect(
        transport: &T,
        endpoint: EndpointId,
        address: T::Address,
        half: T::Half,
    ) -> Result<Self, FabricError> {
        let socket = transport
            .new_socket(&address)
            .map_err(|errno| FabricError::local("create a socket", errno))?;
        let handshake = Handshake::new(T::PROTOCOL, transport.identity(), Role::Initiator)?;
        let mut connection = Self {
            half,
            stream: Stream::new(socket),
            target: Some((endpoint, address)),
            source: Source::Unknown,
            handshake,
            phase: Phase::Dialing,
            give_up_at: Instant::now() + Duration::from_millis(T::CONNECT_MS),
        };
        connection.dial(transport)?;
        Ok(connection)
    }

    /// Acceptor: begins the handshake on an accepted connection.
    pub(super) fn accept(
        transport: &T,
        socket: OwnedFd,
        from: Option<SocketAddr>,
    ) -> Result<Self, (Source, FabricError)> {
        let source = T::source(&socket, from);
        let failed = |error| (source, error);
        let stream = Stream::new(socket);
        let prepared = transport.prepare(&stream.socket);
        prepared.inspect_err(|error| refuse::<T>(&stream, error)).map_err(failed)?;
        let handshake = Handshake::new(T::PROTOCOL, transport.identity(), Role::Acceptor);
        Ok(Self {
            half: T::Half::default(),
            stream,
            target: None,
            source,
            handshake: handshake.map_err(failed)?,
            phase: Phase::Talking,
            give_up_at: Instant::now() + HANDSHAKE_TIMEOUT,
        })
    }

    /// Initiator: the endpoint that is being connected; `None` at the acceptor.
    pub fn endpoint(&self) -> Option<EndpointId> {
        self.target.as_ref().map(|(endpoint, _)| *endpoint)
    }

    /// The side that this is.
    pub const fn role(&self) -> Role {
        self.handshake.role()
    }

    /// The peer, which has said hello.
    pub fn peer(&self) -> Result<(RackId, Incarnation), FabricError> {
        self.handshake.peer().ok_or_else(|| FabricError::misbehaved("it said no hello"))
    }

    pub(super) const fn source(&self) -> Source {
        self.source
    }

    pub(super) const fn is_proven(&self) -> bool {
        self.handshake.is_proven()
    }

    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(super) fn is_succeeding(&self) -> bool {
        self.phase == Phase::Succeeding
    }

    pub(super) fn is_dialing(&self) -> bool {
        self.phase == Phase::Dialing
    }

    pub(super) const fn give_up_at(&self) -> Instant {
        self.give_up_at
    }

    /// The socket events to wait for. In the other phases, poll would report the end of the socket
    /// continually.
    pub(super) fn waits_for(&self) -> Option<PollFlags> {
        match self.phase {
            Phase::Connecting => Some(PollFlags::OUT),
            Phase::Talking => Some(PollFlags::IN),
            Phase::Dialing | Phase::Succeeding | Phase::Done => None,
        }
    }

    /// Sends this side's offer.
    pub fn send_offer(
        &self,
        transport: &T,
        content: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FabricError> {
        let bytes = self.handshake.offer(&transport.identity().key, content)?;
        self.send(&bytes, fds)
    }

    /// Initiator: tells the acceptor that its memory is reached.
    pub fn send_ready(&self) -> Result<(), FabricError> {
        self.send(&T::PROTOCOL.encode(&Packet::Ready), &[])
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FabricError> {
        self.stream.send(bytes, fds).map_err(|error| match error {
            FabricError::PeerGone => self.ended(),
            error => error,
        })
    }

    #[cfg(test)]
    pub(super) fn time_is_over(&mut self) {
        self.give_up_at = Instant::now();
    }

    /// Continues the handshake after an event on the socket or a timeout.
    pub(super) fn step(&mut self, transport: &T, flags: PollFlags) -> Result<(), FabricError> {
        match self.phase {
            Phase::Dialing => self.dial(transport)?,
            Phase::Connecting if !flags.is_empty() => {
                let connected = sockopt::socket_error(&self.stream.socket).and_then(|it| it);
                connected.map_err(|errno| self.unreachable(errno))?;
                transport.prepare(&self.stream.socket)?;
                self.send(self.handshake.hello(), &[])?;
                self.enter(Phase::Talking, 1);
            }
            Phase::Talking if !flags.is_empty() => self.listen_or_refuse(transport)?,
            _ => {}
        }
        if T::is_probing(&self.half) && !self.is_done() {
            let next = transport.probe(self)?;
            self.go_on(next, 0);
        }
        if self.give_up_at <= Instant::now() { Err(self.too_late()) } else { Ok(()) }
    }

    /// Goes on with the peer, which has proved itself: nothing of other incarnations of its rack is
    /// left.
    pub(super) fn succeed(&mut self, transport: &T) -> Result<(), FabricError> {
        self.enter(Phase::Talking, 1);
        if self.role() == Role::Initiator {
            transport.offer(self)?;
            self.enter(Phase::Talking, 1);
        }
        self.listen_or_refuse(transport)
    }

    fn dial(&mut self, transport: &T) -> Result<(), FabricError> {
        let Some((_, address)) = &self.target else { return Ok(()) };
        let connected = transport.connect(&self.stream.socket, address);
        if connected.map_err(|errno| self.unreachable(errno))? {
            self.phase = Phase::Connecting;
        }
        Ok(())
    }

    fn listen_or_refuse(&mut self, transport: &T) -> Result<(), FabricError> {
        self.listen(transport).inspect_err(|error| {
            if self.role() == Role::Acceptor {
                refuse::<T>(&self.stream, error);
            }
        })
    }

    fn listen(&mut self, transport: &T) -> Result<(), FabricError> {
        while self.phase == Phase::Talking {
            let packet = match self.stream.receive(T::PROTOCOL)? {
                Received::Packet(packet) => packet,
                Received::Nothing => break,
                Received::End => return Err(self.ended()),
            };
            let mut answer = Vec::new();
            let step = self.handshake.receive(&transport.identity().key, &packet, &mut answer)?;
            if !answer.is_empty() {
                self.send(&answer, &[])?;
            }
            match step {
                Step::Wait => {}
                Step::Proven => self.enter(Phase::Succeeding, 1),
                Step::Offer(content) => {
                    let next = transport.offered(self, &content)?;
                    // An acceptor that waits for the ready packet gets twice the time: it began
                    // earlier than the initiator, which can report that the device found no path.
                    self.go_on(next, if self.role() == Role::Acceptor { 2 } else { 1 });
                }
                Step::Ready => self.go_on(Next::Done, 1),
            }
        }
        Ok(())
    }

    /// Enters the next phase. A connection that waits gets `steps` more times 5 s.
    fn go_on(&mut self, next: Next, steps: u32) {
        match next {
            Next::Done => self.enter(Phase::Done, 1),
            Next::Wait if steps > 0 => self.enter(Phase::Talking, steps),
            Next::Wait => {}
        }
    }

    fn enter(&mut self, phase: Phase, steps: u32) {
        self.phase = phase;
        self.give_up_at = Instant::now() + steps * HANDSHAKE_TIMEOUT;
    }

    /// The error for a connection that the peer has closed. Both sides have the same time for each
    /// step, so if the time is over here, the peer closed the connection for that reason.
    fn ended(&self) -> FabricError {
        if self.give_up_at <= Instant::now() {
            return self.too_late();
        }
        match self.role() {
            Role::Initiator => self.unreachable("it closed the connection without an answer"),
            Role::Acceptor => FabricError::misbehaved("it hung up"),
        }
    }

    /// The error for a step that took too long.
    fn too_late(&self) -> FabricError {
        let address = self.address();
        if let Some(error) = T::too_late(&self.half, &address) {
            return error;
        }
        match (self.role(), self.phase) {
            (_, Phase::Succeeding) => FabricError::local(
                "end the endpoints of the rack's earlier daemon",
                format!("one may still write after {HANDSHAKE_MS} ms"),
            ),
            (Role::Acceptor, Phase::Done) => {
                FabricError::misbehaved("it opened one channel of two")
            }
            (Role::Acceptor, _) => FabricError::misbehaved(format!(
                "it did not go on with its handshake within {HANDSHAKE_MS} ms"
            )),
            (Role::Initiator, Phase::Dialing | Phase::Connecting) => {
                FabricError::Silent { address, timeout_ms: T::CONNECT_MS }
            }
            (Role::Initiator, _) => FabricError::Silent { address, timeout_ms: HANDSHAKE_MS },
        }
    }

    /// Initiator: the address that it connects to.
    pub fn address(&self) -> String {
        self.target.as_ref().map_or_else(String::new, |(_, address)| address.to_string())
    }

    fn unreachable(&self, cause: impl ToString) -> FabricError {
        FabricError::Unreachable { address: self.address(), cause: cause.to_string() }
    }
}

/// Acceptor: sends the reason for which the initiator is not served.
fn refuse<T: Transport>(stream: &Stream, error: &FabricError) {
    // An unauthenticated peer that does not read the refusal needs none.
    let _ = stream.send(&T::PROTOCOL.encode(&Packet::Refusal(error.to_string())), &[]);
}
