use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::{EndpointId, FabricError, PROOF_BYTES, Role, Transcript};
use rustix::event::PollFlags;

use crate::error::{local, misbehaved};
use crate::link::{LocalEnd, Shared, VerbsLink};
use crate::packet::{Greeting, Packet, Pair};
use crate::socket::{self, Received};
use rackpool_sync::random_bytes;

/// Time that a peer has for each step of a handshake.
const TIMEOUT: Duration = Duration::from_millis(TIMEOUT_MS);
const TIMEOUT_MS: u64 = 5000;
const PROTOCOL: &str = "rackpool verbs";

/// A connection whose handshake is not complete.
pub(super) struct PendingHandshake {
    role: Role,
    /// The endpoint that the initiator is connecting; `None` at the acceptor.
    endpoint: Option<EndpointId>,
    /// Address of the peer, if known.
    address: Option<SocketAddr>,
    socket: Arc<OwnedFd>,
    /// Bytes of the peer that are not processed yet.
    received: Vec<u8>,
    own: Greeting,
    stage: Stage,
    give_up_at: Instant,
}

/// The event for which the handshake waits.
enum Stage {
    /// The TCP connection of the initiator is established.
    Connection,
    /// The peer's greeting.
    Greeting,
    /// The peer's proof that it has the key.
    Proof { theirs: Greeting },
    /// The peer's queue pair. The initiator has made its own end, the acceptor not yet.
    Pair { theirs: Greeting, half: Option<Box<LocalEnd>> },
    /// Completion of the initiator's own probe.
    Probe(Box<VerbsLink>),
    /// The ready packet: the initiator's probe has completed.
    Ready(Box<VerbsLink>),
}

/// The result of a step.
pub(super) enum Step {
    Waiting(PendingHandshake),
    Done { link: Box<VerbsLink>, socket: Arc<OwnedFd>, received: Vec<u8> },
}

impl PendingHandshake {
    /// Initiator: begins to connect to a fabric.
    pub(super) fn connect(
        shared: &Shared,
        endpoint: EndpointId,
        address: SocketAddr,
    ) -> Result<Self, FabricError> {
        let socket = socket::connect(&address).map_err(|errno| FabricError::Unreachable {
            address: address.to_string(),
            cause: errno.to_string(),
        })?;
        let handshake = Self::new(shared, Role::Initiator, socket, Stage::Connection)?;
        Ok(Self { endpoint: Some(endpoint), address: Some(address), ..handshake })
    }

    /// Acceptor: begins the handshake on an accepted connection.
    pub(super) fn accept(
        shared: &Shared,
        socket: OwnedFd,
        from: Option<SocketAddr>,
    ) -> Result<Self, FabricError> {
        socket::prepare(&socket).map_err(|errno| local("set up a socket", errno))?;
        let handshake = Self::new(shared, Role::Acceptor, socket, Stage::Greeting)?;
        Ok(Self { address: from, ..handshake })
    }

    fn new(
        shared: &Shared,
        role: Role,
        socket: OwnedFd,
        stage: Stage,
    ) -> Result<Self, FabricError> {
        let nonce = random_bytes().map_err(|error| local("get random numbers", error))?;
        let (rack, incarnation) = (shared.rack, shared.incarnation);
        let own = Greeting { rack, incarnation, has_key: shared.key.is_used(), nonce };
        let give_up_at = Instant::now() + TIMEOUT;
        let (socket, received) = (Arc::new(socket), Vec::new());
        let (endpoint, address) = (None, None);
        Ok(Self { role, endpoint, address, socket, received, own, stage, give_up_at })
    }

    /// Initiator: the endpoint that is being connected.
    pub(super) const fn endpoint(&self) -> Option<EndpointId> {
        self.endpoint
    }

    /// Acceptor: the address of the peer, for the log.
    pub(super) const fn from(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub(super) fn waits_for(&self) -> PollFlags {
        match self.stage {
            Stage::Connection => PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    pub(super) fn is_probing(&self) -> bool {
        matches!(self.stage, Stage::Probe(_))
    }

    pub(super) fn give_up_at(&self) -> Instant {
        self.give_up_at
    }

    /// Continues the handshake after an event on the socket or a timeout.
    pub(super) fn step(mut self, shared: &Shared, flags: PollFlags) -> Result<Step, FabricError> {
        if !flags.is_empty() {
            if let Stage::Connection = self.stage {
                let connected = socket::connected(&self.socket);
                connected.map_err(|errno| self.unreachable(errno))?;
                self.say(&Packet::Greeting(self.own))?;
                self.stage = Stage::Greeting;
            }
            let end = matches!(socket::receive(&self.socket, &mut self.received), Received::End);
            while let Some(packet) =
                Packet::take(&mut self.received).inspect_err(|error| self.refuse(error))?
            {
                if let (Stage::Ready(_), Packet::Ready) = (&self.stage, &packet) {
                    return Ok(self.done());
                }
                self = self.hear(shared, packet)?;
            }
            if end {
                return Err(self.ended());
            }
        }
        if let Stage::Probe(link) = &self.stage {
            match link.is_probed() {
                Ok(false) => {}
                Ok(true) => {
                    self.say(&Packet::Ready)?;
                    return Ok(self.done());
                }
                Err(cause) => {
                    let address = self.address();
                    return Err(FabricError::NoPath { address, cause });
                }
            }
        }
        if self.give_up_at <= Instant::now() {
            return Err(self.too_late());
        }
        Ok(Step::Waiting(self))
    }

    /// Processes a packet of the peer.
    fn hear(mut self, shared: &Shared, packet: Packet) -> Result<Self, FabricError> {
        let name = packet.name();
        let stage = std::mem::replace(&mut self.stage, Stage::Connection);
        let next = match (stage, packet) {
            (_, Packet::Refusal(reason)) => Err(FabricError::Refused { reason }),
            (Stage::Greeting, Packet::Greeting(theirs)) => {
                greeted(shared, self.role, &self.own, theirs, &self.socket)
            }
            (Stage::Proof { theirs }, Packet::Proof(proof)) => {
                proved(shared, self.role, &self.own, theirs, &proof, &self.socket)
            }
            (Stage::Pair { theirs, half }, Packet::Pair(pair)) => {
                paired(shared, self.role, theirs, half, pair, &self.socket)
            }
            _ => Err(misbehaved(format!("its {name} came out of turn"))),
        };
        match next {
            Ok(stage) => Ok(self.at(stage)),
            Err(error) => {
                refuse(self.role, &self.socket, &error);
                Err(error)
            }
        }
    }

    /// Enters a stage and sets its deadline. An acceptor that waits for the ready packet gets twice
    /// the time: it began earlier than the initiator, which can report that the device found no
    /// path.
    fn at(self, stage: Stage) -> Self {
        let steps = if matches!(stage, Stage::Ready(_)) { 2 } else { 1 };
        Self { stage, give_up_at: Instant::now() + steps * TIMEOUT, ..self }
    }

    /// The error for a connection that the peer has closed. Both sides have the same time for each
    /// step, so if the time is over here, the peer closed the connection for that reason.
    fn ended(&self) -> FabricError {
        if self.give_up_at <= Instant::now() {
            return self.too_late();
        }
        match self.role {
            Role::Initiator => self.unreachable("it closed the connection without an answer"),
            Role::Acceptor => misbehaved("it hung up"),
        }
    }

    /// The error for a handshake step that timed out. The device may retry for longer than that.
    fn too_late(&self) -> FabricError {
        let address = self.address();
        match (self.role, &self.stage) {
            (_, Stage::Probe(link)) => FabricError::NoPath { address, cause: link.no_answer() },
            (Role::Initiator, _) => FabricError::Silent { address, timeout_ms: TIMEOUT_MS },
            (Role::Acceptor, _) => {
                misbehaved(format!("it did not go on with its handshake within {TIMEOUT_MS} ms"))
            }
        }
    }

    fn done(self) -> Step {
        let Self { socket, received, stage, .. } = self;
        match stage {
            Stage::Probe(link) | Stage::Ready(link) => Step::Done { link, socket, received },
            stage => Step::Waiting(Self { socket, received, stage, ..self }),
        }
    }

    fn say(&self, packet: &Packet) -> Result<(), FabricError> {
        socket::send(&self.socket, packet)
            .map_err(|_| self.unreachable("it closed the connection without an answer"))
    }

    fn refuse(&self, error: &FabricError) {
        refuse(self.role, &self.socket, error);
    }

    fn address(&self) -> String {
        self.address.map_or_else(String::new, |address| address.to_string())
    }

    fn unreachable(&self, cause: impl ToString) -> FabricError {
        FabricError::Unreachable { address: self.address(), cause: cause.to_string() }
    }
}

/// Acceptor: sends the initiator the reason for which it is not served.
fn refuse(role: Role, socket: &OwnedFd, error: &FabricError) {
    if role == Role::Acceptor {
        // An unauthenticated peer that does not read the refusal needs none.
        let _ = socket::send(socket, &Packet::Refusal(error.to_string()));
    }
}

/// The proof that this side has the key.
fn own_proof(
    shared: &Shared,
    role: Role,
    own: &Greeting,
    theirs: &Greeting,
) -> Result<[u8; PROOF_BYTES], FabricError> {
    let key = shared.key.key()?;
    Ok(with_transcript(role, own, theirs, |told| told.proof(key.as_ref(), role)))
}

/// Calls `then` with the transcript of both greetings, which is equal on both sides.
fn with_transcript<T>(
    role: Role,
    own: &Greeting,
    theirs: &Greeting,
    then: impl FnOnce(Transcript<'_>) -> T,
) -> T {
    let (own, theirs) = (Packet::Greeting(*own).encode(), Packet::Greeting(*theirs).encode());
    let (initiator, acceptor) = match role {
        Role::Initiator => (own, theirs),
        Role::Acceptor => (theirs, own),
    };
    then(Transcript { protocol: PROTOCOL, initiator: &initiator, acceptor: &acceptor })
}

/// Processes the peer's greeting.
fn greeted(
    shared: &Shared,
    role: Role,
    own: &Greeting,
    theirs: Greeting,
    socket: &OwnedFd,
) -> Result<Stage, FabricError> {
    if role == Role::Acceptor {
        socket::send(socket, &Packet::Greeting(*own))?;
    }
    match (shared.key.is_used(), theirs.has_key) {
        (true, false) => Err(FabricError::WrongKey { lacks: "the peer" }),
        (false, true) => Err(FabricError::WrongKey { lacks: "this rack" }),
        _ => {
            if role == Role::Acceptor {
                let proof = own_proof(shared, role, own, &theirs)?;
                socket::send(socket, &Packet::Proof(proof))?;
            }
            Ok(Stage::Proof { theirs })
        }
    }
}

/// Verifies the peer's proof.
fn proved(
    shared: &Shared,
    role: Role,
    own: &Greeting,
    theirs: Greeting,
    proof: &[u8; PROOF_BYTES],
    socket: &OwnedFd,
) -> Result<Stage, FabricError> {
    let other = match role {
        Role::Initiator => Role::Acceptor,
        Role::Acceptor => Role::Initiator,
    };
    let key = shared.key.key()?;
    if !with_transcript(role, own, &theirs, |told| told.accepts(key.as_ref(), other, proof)) {
        return Err(FabricError::WrongKey { lacks: "the peer" });
    }
    if role == Role::Acceptor {
        return Ok(Stage::Pair { theirs, half: None });
    }
    socket::send(socket, &Packet::Proof(own_proof(shared, role, own, &theirs)?))?;
    let half = LocalEnd::new(shared)?;
    socket::send(socket, &Packet::Pair(half.describe(shared)))?;
    Ok(Stage::Pair { theirs, half: Some(Box::new(half)) })
}

/// Processes the peer's queue pair.
fn paired(
    shared: &Shared,
    role: Role,
    theirs: Greeting,
    half: Option<Box<LocalEnd>>,
    pair: Pair,
    socket: &Arc<OwnedFd>,
) -> Result<Stage, FabricError> {
    let half = match half {
        Some(half) => *half,
        None => LocalEnd::new(shared)?,
    };
    let own = half.describe(shared);
    let who = (theirs.rack, theirs.incarnation);
    let mut link = Box::new(half.join(shared, who, pair, Arc::clone(socket))?);
    if role == Role::Acceptor {
        socket::send(socket, &Packet::Pair(own))?;
        return Ok(Stage::Ready(link));
    }
    link.probe()?;
    Ok(Stage::Probe(link))
}

#[cfg(test)]
mod tests {
    use rackpool_model::{Incarnation, RackId};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// A handshake that has begun, and the peer's socket.
    fn handshake() -> (PendingHandshake, OwnedFd) {
        let family = AddressFamily::UNIX;
        let (socket, peer) =
            socketpair(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (rack, incarnation) = (RackId(1), Incarnation(1));
        let handshake = PendingHandshake {
            role: Role::Initiator,
            endpoint: Some(EndpointId(1)),
            address: Some("192.0.2.1:7500".parse().unwrap()),
            socket: Arc::new(socket),
            received: Vec::new(),
            own: Greeting { rack, incarnation, has_key: true, nonce: [7; 32] },
            stage: Stage::Greeting,
            give_up_at: Instant::now() + TIMEOUT,
        };
        (handshake, peer)
    }

    /// Observed in the lab on a busy host: a handshake whose steps took longer in total than one
    /// step may take failed repeatedly.
    #[test]
    fn each_step_has_its_own_time() {
        let (mut handshake, _peer) = handshake();
        handshake.give_up_at = Instant::now();
        assert!(matches!(handshake.ended(), FabricError::Silent { .. }));
        let theirs = handshake.own;
        let handshake = handshake.at(Stage::Proof { theirs });
        assert!(matches!(handshake.ended(), FabricError::Unreachable { .. }), "its time has come");
    }

    #[test]
    fn what_an_unauthenticated_peer_did_wrong_is_said_without_an_address_of_its_own() {
        let (handshake, _peer) = handshake();
        let mut handshake = PendingHandshake { role: Role::Acceptor, endpoint: None, ..handshake };
        assert_eq!(handshake.from(), Some("192.0.2.1:7500".parse().unwrap()));
        assert!(handshake.ended().to_string().contains("it hung up"), "{}", handshake.ended());
        handshake.give_up_at = Instant::now();
        let text = handshake.ended().to_string();
        assert!(text.contains("did not go on with its handshake within 5000 ms"), "{text}");
    }

    /// Observed in the lab on a busy host: the acceptor timed out before the initiator had checked
    /// its own deadline, and the error did not mention the path that did not work.
    #[test]
    fn a_peer_that_gave_up_when_the_time_was_over_is_not_one_that_refused() {
        let (mut handshake, _peer) = handshake();
        assert!(matches!(handshake.ended(), FabricError::Unreachable { .. }));
        handshake.give_up_at = Instant::now();
        assert!(matches!(handshake.ended(), FabricError::Silent { timeout_ms: 5000, .. }));
    }
}
