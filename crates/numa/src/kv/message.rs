//! Messages of the key-value workload.

use super::{KEY_BYTES, Key};
use crate::StudyError;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Where is the value of the key?
    Get(Key),
    /// Store the value that lies at this offset of the client's memory.
    Set(Key, u64),
}

/// An answer of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The value lies at this offset of the server's memory.
    Found(u64),
    /// The value is stored.
    Stored,
    /// There is no such key.
    Missing,
}

const GET: u8 = 1;
const SET: u8 = 2;
const FOUND: u8 = 3;
const STORED: u8 = 4;
const MISSING: u8 = 5;

/// One layout for all: a kind, a key, an offset (little-endian).
const BYTES: usize = 1 + KEY_BYTES + 8;

fn encode(kind: u8, key: Key, offset: u64) -> Vec<u8> {
    let mut message = Vec::with_capacity(BYTES);
    message.push(kind);
    message.extend_from_slice(&key);
    message.extend_from_slice(&offset.to_le_bytes());
    message
}

fn decode(message: &[u8]) -> Option<(u8, Key, u64)> {
    let (kind, rest) = message.split_first()?;
    let (key, offset) = rest.split_first_chunk::<KEY_BYTES>()?;
    Some((*kind, *key, u64::from_le_bytes(offset.try_into().ok()?)))
}

impl Request {
    pub(super) fn encode(self) -> Vec<u8> {
        match self {
            Self::Get(key) => encode(GET, key, 0),
            Self::Set(key, offset) => encode(SET, key, offset),
        }
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, StudyError> {
        match decode(message) {
            Some((GET, key, _)) => Ok(Self::Get(key)),
            Some((SET, key, offset)) => Ok(Self::Set(key, offset)),
            _ => Err(StudyError::Protocol("a request")),
        }
    }
}

impl Reply {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, offset) = match self {
            Self::Found(offset) => (FOUND, offset),
            Self::Stored => (STORED, 0),
            Self::Missing => (MISSING, 0),
        };
        encode(kind, [0; KEY_BYTES], offset)
    }

    pub(super) fn decode(message: &[u8]) -> Result<Self, StudyError> {
        match decode(message) {
            Some((FOUND, _, offset)) => Ok(Self::Found(offset)),
            Some((STORED, ..)) => Ok(Self::Stored),
            Some((MISSING, ..)) => Ok(Self::Missing),
            _ => Err(StudyError::Protocol("a reply")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for request in [Request::Get(*b"abc"), Request::Set(*b"xyz", u64::MAX)] {
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
            assert!(Reply::decode(&request.encode()).is_err());
        }
        for reply in [Reply::Found(77), Reply::Stored, Reply::Missing] {
            assert_eq!(Reply::decode(&reply.encode()).unwrap(), reply);
            assert!(Request::decode(&reply.encode()).is_err());
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let message = Request::Get(*b"abc").encode();
        for wrong in [&[][..], &message[1..], &[message.as_slice(), &[0]].concat()] {
            assert!(Request::decode(wrong).is_err() && Reply::decode(wrong).is_err());
        }
    }
}
