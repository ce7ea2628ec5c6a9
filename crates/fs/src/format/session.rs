//! The encoding of a mount's session.

use crate::error::FsError;
use crate::format::codec::Reader;

/// A mount. Tokens are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) seat: u16,
    pub(crate) token: u64,
}

impl Session {
    /// No mount.
    pub(crate) const NONE: Self = Self { seat: 0, token: 0 };

    pub(crate) fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.seat.to_le_bytes());
        into.extend_from_slice(&self.token.to_le_bytes());
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Self, FsError> {
        Ok(Self { seat: from.u16()?, token: from.u64()? })
    }

    /// Decodes a list of sessions.
    pub(crate) fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, FsError> {
        let mut from = Reader::new(bytes, "the list of mounts");
        let mut sessions = Vec::new();
        while !from.is_empty() {
            sessions.push(Self::decode(&mut from)?);
        }
        Ok(sessions)
    }
}
