use hmac::{Hmac, Mac};
use rackpool_model::FabricKey;
use sha2::Sha256;

/// Length of a proof, in bytes.
pub const PROOF_BYTES: usize = 32;

type HmacSha256 = Hmac<Sha256>;

/// The side of a handshake that proves that it has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connects.
    Initiator,
    /// The side that accepts the connection.
    Acceptor,
}

impl Role {
    /// The role of the peer.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// The data that the proofs of one handshake authenticate.
#[derive(Clone, Copy, Debug)]
pub struct Transcript<'a> {
    /// Name of the protocol; a proof is valid for one protocol only.
    pub protocol: &'static str,
    /// The initiator's first packet, which contains a nonce.
    pub initiator: &'a [u8],
    /// The acceptor's first packet, which contains a nonce.
    pub acceptor: &'a [u8],
    /// What the sender offers; empty in a proof without an offer.
    pub content: &'a [u8],
}

impl Transcript<'_> {
    /// The proof that the side has the key: an HMAC over the transcript. Without a key, all zero.
    #[must_use]
    pub fn proof(&self, key: Option<&FabricKey>, role: Role) -> [u8; PROOF_BYTES] {
        key.map_or([0; PROOF_BYTES], |key| self.mac(key, role).finalize().into_bytes().into())
    }

    /// Returns true if the proof is valid. The comparison takes constant time.
    #[must_use]
    pub fn accepts(&self, key: Option<&FabricKey>, role: Role, proof: &[u8; PROOF_BYTES]) -> bool {
        match key {
            Some(key) => self.mac(key, role).verify_slice(proof).is_ok(),
            None => *proof == [0; PROOF_BYTES],
        }
    }

    fn mac(&self, key: &FabricKey, role: Role) -> HmacSha256 {
        let mut mac = <HmacSha256 as Mac>::new(&padded(key.bytes()).into());
        mac.update(self.protocol.as_bytes());
        mac.update(match role {
            Role::Initiator => b" initiator",
            Role::Acceptor => b" acceptor ",
        });
        for part in [self.initiator, self.acceptor, self.content] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// The key, padded with zeros to one block of the hash function, as HMAC itself does.
fn padded(key: &[u8]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..key.len()].copy_from_slice(key);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FabricKey = FabricKey::new([7; 32]);

    #[test]
    fn a_proof_is_good_for_one_key_role_protocol_and_pair_of_greetings() {
        let told =
            Transcript { protocol: "test", initiator: b"hello", acceptor: b"hallo", content: b"" };
        let proof = told.proof(Some(&KEY), Role::Initiator);
        assert!(told.accepts(Some(&KEY), Role::Initiator, &proof));
        assert!(!told.accepts(Some(&FabricKey::new([8; 32])), Role::Initiator, &proof));
        assert!(!told.accepts(Some(&KEY), Role::Acceptor, &proof));
        assert!(!told.accepts(None, Role::Initiator, &proof));
        let shifted = Transcript { initiator: b"helloh", acceptor: b"allo", ..told };
        let other = Transcript { protocol: "text", ..told };
        let more = Transcript { content: b"my memory", ..told };
        for not_told in [shifted, other, more] {
            assert!(!not_told.accepts(Some(&KEY), Role::Initiator, &proof));
        }
        assert!(!told.accepts(Some(&KEY), Role::Initiator, &[0; 32]));
        assert!(told.accepts(None, Role::Initiator, &told.proof(None, Role::Initiator)));
    }

    #[test]
    fn it_is_the_hmac_of_rfc_4231() {
        let mut mac = <HmacSha256 as Mac>::new(&padded(b"Jefe").into());
        mac.update(b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let got: String =
            mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, expected);
    }
}
