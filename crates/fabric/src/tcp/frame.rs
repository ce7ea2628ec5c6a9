//! The frames of a channel, as drawn in docs/design/tcp.md.

use crate::{FabricError, MAX_MESSAGE};

/// Size of a request's header, in bytes.
pub(super) const REQUEST_BYTES: usize = 16;
/// Size of a response's header, in bytes.
pub(super) const RESPONSE_BYTES: usize = 8;

const READ: u8 = 1;
const WRITE: u8 = 2;
const MESSAGE: u8 = 3;
const ROOM: u8 = 4;
const BYE: u8 = 5;

const DATA: u8 = 1;
const DONE: u8 = 2;
const BYE_TOO: u8 = 3;

/// The remote bytes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) region: u16,
    pub(super) offset: u64,
    /// At least 1.
    pub(super) len: u32,
}

/// A request of the poster to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read(Place),
    /// The bytes to write follow.
    Write(Place),
    /// The bytes of the message follow: 1 to [`MAX_MESSAGE`].
    Message {
        len: u32,
    },
    /// Total room of the messages that the poster's owner has taken so far, in bytes.
    Room {
        taken: u64,
    },
    Bye,
}

/// An answer of the server. Answers follow the order of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// The bytes of a read follow.
    Data {
        len: u32,
    },
    /// The next `count` unanswered requests, all writes, are done; at least 1.
    Done {
        count: u32,
    },
    Bye,
}

impl Request {
    pub(super) fn encode(self) -> [u8; REQUEST_BYTES] {
        let (kind, region, len, last) = match self {
            Self::Read(place) => (READ, place.region, place.len, place.offset),
            Self::Write(place) => (WRITE, place.region, place.len, place.offset),
            Self::Message { len } => (MESSAGE, 0, len, 0),
            Self::Room { taken } => (ROOM, 0, 0, taken),
            Self::Bye => (BYE, 0, 0, 0),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = kind;
        bytes[2..4].copy_from_slice(&region.to_le_bytes());
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        bytes[8..].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    /// Decodes a request of a peer. The caller must check that the place lies in a region.
    pub(super) fn decode(bytes: [u8; REQUEST_BYTES]) -> Result<Self, FabricError> {
        let [kind, _, r0, r1, l0, l1, l2, l3, last @ ..] = bytes;
        let region = u16::from_le_bytes([r0, r1]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let last = u64::from_le_bytes(last);
        let place = Place { region, offset: last, len };
        let request = match kind {
            READ if len > 0 => Self::Read(place),
            WRITE if len > 0 => Self::Write(place),
            MESSAGE if len > 0 && len as usize <= MAX_MESSAGE => Self::Message { len },
            ROOM => Self::Room { taken: last },
            BYE => Self::Bye,
            READ | WRITE | MESSAGE => {
                return Err(FabricError::misbehaved(format!(
                    "a request of kind {kind} for {len} B"
                )));
            }
            _ => return Err(FabricError::misbehaved(format!("a request of unknown kind {kind}"))),
        };
        // Unused bytes are zero, so this check also detects a stream that has lost frame alignment.
        if request.encode() != bytes {
            return Err(FabricError::misbehaved("a request with unknown flags"));
        }
        Ok(request)
    }
}

impl Response {
    pub(super) fn encode(self) -> [u8; RESPONSE_BYTES] {
        let (kind, number) = match self {
            Self::Data { len } => (DATA, len),
            Self::Done { count } => (DONE, count),
            Self::Bye => (BYE_TOO, 0),
        };
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[0] = kind;
        bytes[4..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Decodes a response of a peer. The caller must check that it answers an open request.
    pub(super) fn decode(bytes: [u8; RESPONSE_BYTES]) -> Result<Self, FabricError> {
        let [kind, _, _, _, number @ ..] = bytes;
        let number = u32::from_le_bytes(number);
        let response = match kind {
            DATA if number > 0 => Self::Data { len: number },
            DONE if number > 0 => Self::Done { count: number },
            BYE_TOO => Self::Bye,
            _ => {
                return Err(FabricError::misbehaved(format!(
                    "a response of kind {kind} with number {number}"
                )));
            }
        };
        if response.encode() != bytes {
            return Err(FabricError::misbehaved("a response with unknown flags"));
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let place = Place { region: 3, offset: u64::MAX, len: u32::MAX };
        for request in [
            Request::Read(place),
            Request::Write(Place { len: 1, ..place }),
            Request::Message { len: 65_536 },
            Request::Room { taken: 1 << 40 },
            Request::Bye,
        ] {
            assert_eq!(Request::decode(request.encode()), Ok(request));
        }
        for response in
            [Response::Data { len: u32::MAX }, Response::Done { count: 1 }, Response::Bye]
        {
            assert_eq!(Response::decode(response.encode()), Ok(response));
        }
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let message = Request::Message { len: 7 }.encode();
        for (at, value) in [(0, 0), (0, 6), (1, 1), (2, 1), (3, 1), (4, 0), (6, 1), (7, 1), (8, 1)]
        {
            let mut bytes = message;
            bytes[at] = value;
            assert!(Request::decode(bytes).is_err(), "{value} at {at}");
        }
        let done = Response::Done { count: 7 }.encode();
        for (at, value) in [(0, 0), (0, 4), (1, 1), (2, 1), (3, 1), (4, 0)] {
            let mut bytes = done;
            bytes[at] = value;
            assert!(Response::decode(bytes).is_err(), "{value} at {at}");
        }
    }
}
