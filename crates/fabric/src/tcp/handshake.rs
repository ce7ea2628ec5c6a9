//! The two sides of a handshake as state machines without sockets: packets in, packets out.

use rackpool_model::{Incarnation, RackId};

use super::hello::{ChannelNumber, Hello, Packet};
use crate::{FabricError, Keyring, Role, Transcript};

/// Protocol name in the proofs.
const PROTOCOL: &str = "rackpool tcp";

/// What a rack announces about itself in every handshake.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) rack: RackId,
    pub(super) incarnation: Incarnation,
    /// Length of each exported region, in bytes.
    pub(super) regions: Vec<u64>,
    pub(super) key: Keyring,
}

/// The result of a packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send these bytes to the peer, which has to answer.
    Answer(Vec<u8>),
    /// The peer has proved that it has the key: the handshake of this side is complete.
    Proven(Hello),
}

/// The side that connects.
#[derive(Debug)]
pub(super) struct Initiator {
    own: Hello,
    own_bytes: Vec<u8>,
    theirs: Option<(Hello, Vec<u8>)>,
    proven: bool,
}

/// The side that listens.
#[derive(Debug)]
pub(super) struct Acceptor {
    own_nonce: [u8; 32],
    met: Option<Met>,
}

/// The hellos of an acceptor's handshake, once it has sent its own.
#[derive(Debug)]
struct Met {
    theirs: Hello,
    their_bytes: Vec<u8>,
    own_bytes: Vec<u8>,
}

/// Cryptographically secure random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], FabricError> {
    rackpool_sync::random_bytes().map_err(|error| FabricError::local("get random bytes", error))
}

impl Identity {
    fn hello(&self, channel: ChannelNumber, session: [u8; 16], nonce: [u8; 32]) -> Hello {
        Hello {
            rack: self.rack,
            incarnation: self.incarnation,
            channel,
            has_key: self.key.is_used(),
            session,
            nonce,
            regions: self.regions.clone(),
        }
    }

    fn require_same_key_use(&self, theirs: &Hello) -> Result<(), FabricError> {
        if theirs.has_key == self.key.is_used() {
            return Ok(());
        }
        Err(FabricError::WrongKey { lacks: if theirs.has_key { "this rack" } else { "the peer" } })
    }
}

impl Initiator {
    pub(super) fn new(
        identity: &Identity,
        channel: ChannelNumber,
        session: [u8; 16],
        nonce: [u8; 32],
    ) -> Self {
        let own = identity.hello(channel, session, nonce);
        let own_bytes = Packet::Hello(own.clone()).encode();
        Self { own, own_bytes, theirs: None, proven: false }
    }

    /// The first packet to send.
    pub(super) fn greeting(&self) -> &[u8] {
        &self.own_bytes
    }

    /// Processes the next packet. Returns `None` if this side needs another packet before it can
    /// answer.
    pub(super) fn receive(
        &mut self,
        identity: &Identity,
        packet: &[u8],
    ) -> Result<Option<Step>, FabricError> {
        match (Packet::decode(packet)?, &self.theirs, self.proven) {
            (Packet::Refusal(reason), ..) => Err(FabricError::Refused { reason }),
            (Packet::Hello(theirs), None, _) => {
                if (theirs.channel, theirs.session) != (self.own.channel, self.own.session) {
                    return Err(FabricError::misbehaved("it answered another hello"));
                }
                identity.require_same_key_use(&theirs)?;
                self.theirs = Some((theirs, packet.to_vec()));
                Ok(None)
            }
            (Packet::Proof(proof), Some((_, their_bytes)), false) => {
                let told = Transcript {
                    protocol: PROTOCOL,
                    initiator: &self.own_bytes,
                    acceptor: their_bytes,
                };
                let key = identity.key.key()?;
                if !told.accepts(key.as_ref(), Role::Acceptor, &proof) {
                    return Err(FabricError::WrongKey { lacks: "the peer" });
                }
                self.proven = true;
                let own = told.proof(key.as_ref(), Role::Initiator);
                Ok(Some(Step::Answer(Packet::Proof(own).encode())))
            }
            (Packet::Welcome, Some((theirs, _)), true) => Ok(Some(Step::Proven(theirs.clone()))),
            _ => Err(FabricError::misbehaved("its handshake is out of order")),
        }
    }
}

impl Acceptor {
    pub(super) const fn new(nonce: [u8; 32]) -> Self {
        Self { own_nonce: nonce, met: None }
    }

    /// Processes the next packet.
    pub(super) fn receive(
        &mut self,
        identity: &Identity,
        packet: &[u8],
    ) -> Result<Step, FabricError> {
        match (Packet::decode(packet)?, &self.met) {
            (Packet::Hello(theirs), None) => {
                identity.require_same_key_use(&theirs)?;
                let own = identity.hello(theirs.channel, theirs.session, self.own_nonce);
                let own_bytes = Packet::Hello(own).encode();
                let told =
                    Transcript { protocol: PROTOCOL, initiator: packet, acceptor: &own_bytes };
                let proof = told.proof(identity.key.key()?.as_ref(), Role::Acceptor);
                let answer = [&own_bytes[..], &Packet::Proof(proof).encode()].concat();
                self.met = Some(Met { theirs, their_bytes: packet.to_vec(), own_bytes });
                Ok(Step::Answer(answer))
            }
            (Packet::Proof(proof), Some(met)) => {
                let told = Transcript {
                    protocol: PROTOCOL,
                    initiator: &met.their_bytes,
                    acceptor: &met.own_bytes,
                };
                if told.accepts(identity.key.key()?.as_ref(), Role::Initiator, &proof) {
                    Ok(Step::Proven(met.theirs.clone()))
                } else {
                    Err(FabricError::WrongKey { lacks: "the peer" })
                }
            }
            _ => Err(FabricError::misbehaved("its handshake is out of order")),
        }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_model::FabricKey;

    use super::*;

    fn identity(rack: u16, key: Option<u8>) -> Identity {
        let key = key.map(|byte| FabricKey::new([byte; 32])).into();
        Identity { rack: RackId(rack), incarnation: Incarnation(1), regions: vec![4096], key }
    }

    fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut packets = Vec::new();
        while !bytes.is_empty() {
            let mut len = 0;
            while Packet::len(&bytes[..len]).unwrap() > len {
                len = Packet::len(&bytes[..len]).unwrap();
            }
            packets.push(&bytes[..len]);
            bytes = &bytes[len..];
        }
        packets
    }

    /// Runs a whole handshake of rack 1 with rack 2; returns the hello of the peer that each side
    /// proved.
    fn meet(one: &Identity, two: &Identity) -> Result<(Hello, Hello), FabricError> {
        let mut initiator = Initiator::new(one, ChannelNumber::First, [1; 16], [2; 32]);
        let mut acceptor = Acceptor::new([3; 32]);
        let Step::Answer(answer) = acceptor.receive(two, initiator.greeting())? else { panic!() };
        let mut proof = None;
        for packet in packets(&answer) {
            assert_eq!(proof, None);
            proof = initiator.receive(one, packet)?;
        }
        let Some(Step::Answer(proof)) = proof else { panic!() };
        let Step::Proven(first) = acceptor.receive(two, &proof)? else { panic!() };
        let welcome = initiator.receive(one, &Packet::Welcome.encode())?;
        let Some(Step::Proven(second)) = welcome else { panic!() };
        Ok((first, second))
    }

    #[test]
    fn both_learn_who_the_other_is() {
        for key in [None, Some(7)] {
            let (first, second) = meet(&identity(1, key), &identity(2, key)).unwrap();
            assert_eq!((first.rack, second.rack), (RackId(1), RackId(2)));
            assert_eq!(first.session, second.session);
        }
    }

    #[test]
    fn without_the_same_key_they_do_not_meet() {
        for (one, two) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
            let error = meet(&identity(1, one), &identity(2, two)).unwrap_err();
            assert!(matches!(error, FabricError::WrongKey { .. }), "{error}");
        }
    }

    #[test]
    fn nobody_is_met_before_the_key_is_known_and_everybody_after_it_is_replaced() {
        let [one, two] =
            [1, 2].map(|rack| Identity { key: Keyring::awaited(), ..identity(rack, None) });
        assert_eq!(meet(&one, &two).unwrap_err(), FabricError::KeyAwaited);
        assert!(one.key.replace(FabricKey::new([7; 32])));
        assert_eq!(meet(&one, &two).unwrap_err(), FabricError::KeyAwaited);
        // A clone, as the control plane has one.
        assert!(two.key.clone().replace(FabricKey::new([7; 32])));
        assert!(!two.key.replace(FabricKey::new([7; 32])), "the same again");
        meet(&one, &two).unwrap();
        assert!(one.key.replace(FabricKey::new([8; 32])));
        assert!(matches!(meet(&one, &two).unwrap_err(), FabricError::WrongKey { .. }));
        two.key.replace(FabricKey::new([8; 32]));
        meet(&one, &two).unwrap();
        assert_eq!(format!("{:?}", one.key), "Keyring(secret)");
    }

    #[test]
    fn an_unauthenticated_peer_that_reflects_or_invents_a_proof_is_not_let_in() {
        let keyed = identity(2, Some(7));
        let unauthenticated_peer = identity(1, Some(8));
        let initiator =
            Initiator::new(&unauthenticated_peer, ChannelNumber::First, [1; 16], [2; 32]);
        let mut acceptor = Acceptor::new([3; 32]);
        let Step::Answer(answer) = acceptor.receive(&keyed, initiator.greeting()).unwrap() else {
            panic!()
        };
        let reflected = packets(&answer)[1].to_vec();
        for proof in [reflected, Packet::Proof([0; 32]).encode()] {
            let error = acceptor.receive(&keyed, &proof).unwrap_err();
            assert!(matches!(error, FabricError::WrongKey { .. }), "{error}");
        }
    }

    #[test]
    fn packets_out_of_order_are_errors() {
        let own = identity(1, None);
        let mut initiator = Initiator::new(&own, ChannelNumber::First, [1; 16], [2; 32]);
        let proof = Packet::Proof([0; 32]).encode();
        assert!(initiator.receive(&own, &proof).is_err());
        assert!(initiator.receive(&own, &Packet::Welcome.encode()).is_err());
        let other = Initiator::new(&own, ChannelNumber::Second, [1; 16], [2; 32]);
        assert!(initiator.receive(&own, other.greeting()).is_err());
        let mut acceptor = Acceptor::new([3; 32]);
        assert!(acceptor.receive(&own, &proof).is_err());
        assert!(acceptor.receive(&own, initiator.greeting()).is_ok());
        assert!(acceptor.receive(&own, initiator.greeting()).is_err());
        let refusal = Packet::Refusal("full".into()).encode();
        let refused = initiator.receive(&own, &refusal);
        assert_eq!(refused, Err(FabricError::Refused { reason: "full".into() }));
    }
}
