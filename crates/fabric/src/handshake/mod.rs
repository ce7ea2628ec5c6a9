//! The handshake of all fabrics, as a state machine without sockets: packets in, packets out.
//! `docs/design/fabric.md` has the packets and the table of the states.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod packet;
mod reader;

use rackpool_model::{FabricKey, Incarnation, RackId};
use rackpool_sync::random_bytes;

pub use packet::{Hello, Packet, Protocol, START_BYTES, VERSION};
pub use reader::{MAX_EXPORTS, Reader, encode_regions};

use crate::{FabricError, Keyring, Role, Transcript};

/// What a rack says about itself in every handshake.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The rack.
    pub rack: RackId,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
    /// The pool's key, if the fabric uses one.
    pub key: Keyring,
}

/// The result of a packet.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next packet of the peer is needed.
    Wait,
    /// The peer has proved that it has the key. The initiator makes its offer now.
    Proven,
    /// The peer's offer. The acceptor makes its own when it has accepted this one.
    Offer(Vec<u8>),
    /// The initiator has reached the acceptor's memory.
    Ready,
}

/// One side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    protocol: &'static Protocol,
    role: Role,
    own: Vec<u8>,
    /// The peer's hello, decoded and as it came.
    theirs: Option<(Hello, Vec<u8>)>,
    waits_for: Stage,
}

/// The packet for which a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Hello,
    Proof,
    Offer,
    /// Only an acceptor gets one.
    Ready,
}

impl Handshake {
    /// Begins a handshake.
    pub fn new(
        protocol: &'static Protocol,
        identity: &Identity,
        role: Role,
    ) -> Result<Self, FabricError> {
        let nonce =
            random_bytes().map_err(|error| FabricError::local("get random bytes", error))?;
        let Identity { rack, incarnation, key } = identity;
        let (rack, incarnation) = (*rack, *incarnation);
        let own = Packet::Hello(Hello { rack, incarnation, has_key: key.is_used(), nonce });
        let own = protocol.encode(&own);
        Ok(Self { protocol, role, own, theirs: None, waits_for: Stage::Hello })
    }

    /// This side's hello: the initiator's first packet.
    #[must_use]
    pub fn hello(&self) -> &[u8] {
        &self.own
    }

    /// The side that this is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The peer; known once its hello has come, and certain once it has proved itself.
    #[must_use]
    pub fn peer(&self) -> Option<(RackId, Incarnation)> {
        self.theirs.as_ref().map(|(hello, _)| (hello.rack, hello.incarnation))
    }

    /// Returns true if the peer has proved that it has the key.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        matches!(self.waits_for, Stage::Offer | Stage::Ready)
    }

    /// Processes the next packet. Appends the bytes to send to `answer`.
    pub fn receive(
        &mut self,
        key: &Keyring,
        packet: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<Step, FabricError> {
        match (self.protocol.decode(packet)?, self.waits_for) {
            (Packet::Refusal(reason), _) => Err(FabricError::Refused { reason }),
            (Packet::Hello(theirs), Stage::Hello) => {
                require_same_key_use(key.is_used(), theirs.has_key)?;
                self.theirs = Some((theirs, packet.to_vec()));
                if self.role == Role::Acceptor {
                    let proof = self.transcript(b"").proof(key.key()?.as_ref(), self.role);
                    answer.extend(&self.own);
                    answer.extend(self.protocol.encode(&Packet::Proof(proof)));
                }
                self.waits_for = Stage::Proof;
                Ok(Step::Wait)
            }
            (Packet::Proof(proof), Stage::Proof) => {
                let key = key.key()?;
                self.check(key.as_ref(), b"", &proof)?;
                if self.role == Role::Initiator {
                    let proof = self.transcript(b"").proof(key.as_ref(), self.role);
                    answer.extend(self.protocol.encode(&Packet::Proof(proof)));
                }
                self.waits_for = Stage::Offer;
                Ok(Step::Proven)
            }
            (Packet::Offer { proof, content }, Stage::Offer) => {
                self.check(key.key()?.as_ref(), &content, &proof)?;
                self.waits_for = Stage::Ready;
                Ok(Step::Offer(content))
            }
            (Packet::Ready, Stage::Ready) if self.role == Role::Acceptor => Ok(Step::Ready),
            _ => Err(FabricError::misbehaved("its handshake is out of order")),
        }
    }

    /// Encodes this side's offer.
    pub fn offer(&self, key: &Keyring, content: Vec<u8>) -> Result<Vec<u8>, FabricError> {
        let proof = self.transcript(&content).proof(key.key()?.as_ref(), self.role);
        Ok(self.protocol.encode(&Packet::Offer { proof, content }))
    }

    fn check(
        &self,
        key: Option<&FabricKey>,
        content: &[u8],
        proof: &[u8; crate::PROOF_BYTES],
    ) -> Result<(), FabricError> {
        if self.transcript(content).accepts(key, self.role.other(), proof) {
            return Ok(());
        }
        Err(FabricError::WrongKey { lacks: "the peer" })
    }

    /// What a proof covers. A proof has no content, and no offer is valid without content.
    fn transcript<'a>(&'a self, content: &'a [u8]) -> Transcript<'a> {
        let theirs = self.theirs.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let (initiator, acceptor) = match self.role {
            Role::Initiator => (&self.own[..], theirs),
            Role::Acceptor => (theirs, &self.own[..]),
        };
        Transcript { protocol: self.protocol.name, initiator, acceptor, content }
    }
}

fn require_same_key_use(ours: bool, theirs: bool) -> Result<(), FabricError> {
    match (ours, theirs) {
        (true, false) => Err(FabricError::WrongKey { lacks: "the peer" }),
        (false, true) => Err(FabricError::WrongKey { lacks: "this rack" }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
