//! The messages between two racks, as specified in `docs/design/rrpc.md`. Everything decoded here
//! comes from a peer and is checked.

use std::ops::Range;

use rackpool_fabric::{MAX_MESSAGE, RemoteRegion};

use crate::RemotePlace;

const VERSION: u8 = 2;
const HEADER: usize = 16;
const PLACE: usize = 16;

/// The maximum length of a request's body, in bytes.
pub const MAX_BODY: usize = MAX_MESSAGE - HEADER - PLACE;
/// The maximum length of head and data of an answer together in one message, in bytes.
pub const MAX_INLINE: usize = MAX_MESSAGE - HEADER;

/// Reason of a refusal: the answer is larger than the caller's place or a message.
pub const DOES_NOT_FIT: u32 = 1;
/// Reason of a refusal: the server has no buffer for the data.
pub const NO_ROOM: u32 = 2;
/// Reason of a refusal: the server has no answer to this request.
pub const NO_ANSWER: u32 = 3;

/// A decoded message. Its variable parts are ranges of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A request.
    Request {
        /// The caller's number of the request.
        number: u64,
        /// Inline limit: the most data that may travel in the answer's message, in bytes.
        inline: u32,
        /// The caller's place for data above the inline limit.
        place: Option<RemotePlace>,
        /// The body of the request.
        body: Range<usize>,
    },
    /// A request for `len` arbitrary bytes, which the server answers without its owner.
    Probe {
        /// The caller's number of the request.
        number: u64,
        /// As in `Request`.
        inline: u32,
        /// As in `Request`.
        place: Option<RemotePlace>,
        /// Length of the requested data, in bytes.
        len: u32,
    },
    /// A complete answer, with its data in the message.
    Answer {
        /// The caller's number of the request.
        number: u64,
        /// The head of the answer.
        head: Range<usize>,
        /// The data.
        data: Range<usize>,
    },
    /// An answer whose data the caller must read.
    DataReady {
        /// The caller's number of the request.
        number: u64,
        /// The place of the data; never empty.
        place: RemotePlace,
        /// The head of the answer.
        head: Range<usize>,
    },
    /// An answer whose data has been written to the caller's place.
    DataWritten {
        /// The caller's number of the request.
        number: u64,
        /// Length of the data, in bytes.
        len: u32,
        /// The head of the answer.
        head: Range<usize>,
    },
    /// The caller has read the data of a `DataReady`.
    Release {
        /// The caller's number of the request.
        number: u64,
    },
    /// The caller no longer waits for the answer.
    Cancel {
        /// The caller's number of the request.
        number: u64,
    },
    /// The server has dropped a cancelled request and will not write to its place.
    Withdrawn {
        /// The caller's number of the request.
        number: u64,
    },
    /// The server does not answer the request.
    Refused {
        /// The caller's number of the request.
        number: u64,
        /// The reason: [`DOES_NOT_FIT`] and others.
        why: u32,
    },
    /// The sender lets the receiver have this many bytes of one-sided writes in flight.
    Window {
        /// The bytes.
        bytes: u32,
    },
    /// The sender has no more bytes of one-sided writes in flight than its last window.
    WindowTaken {
        /// The bytes of that window.
        bytes: u32,
    },
}

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message ends before it is complete.
    #[error("a message of {len} B, shorter than its kind needs")]
    Short {
        /// Its length.
        len: usize,
    },
    /// The sender speaks another version, that is, it runs another release.
    #[error(
        "version {found} of the requests between racks, this rack speaks {VERSION}: run the same release of rackpool on both"
    )]
    Version {
        /// The sender's version.
        found: u8,
    },
    /// The kind of message does not exist.
    #[error("a message of kind {kind}, which does not exist")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// A length or a reserved field has an invalid value.
    #[error("a message of kind {kind} with a wrong {field}")]
    Field {
        /// The kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
}

const REQUEST: u8 = 1;
const ASK_PLACE: u8 = 2;
const PROBE: u8 = 3;
const PROBE_PLACE: u8 = 4;
const ANSWER: u8 = 5;
const DATA_READY: u8 = 6;
const DATA_WRITTEN: u8 = 7;
const RELEASE: u8 = 8;
const CANCEL: u8 = 9;
const WITHDRAWN: u8 = 10;
const REFUSED: u8 = 11;
const WINDOW: u8 = 12;
const WINDOW_TAKEN: u8 = 13;

fn start(kind: u8, word: u32, number: u64, more: usize) -> Vec<u8> {
    let mut header = [0; HEADER];
    header[..2].copy_from_slice(&[kind, VERSION]);
    header[4..8].copy_from_slice(&word.to_le_bytes());
    header[8..].copy_from_slice(&number.to_le_bytes());
    let mut bytes = Vec::with_capacity(HEADER + more);
    bytes.extend_from_slice(&header);
    bytes
}

fn put_place(bytes: &mut Vec<u8>, place: &RemotePlace) {
    let mut place_bytes = [0; PLACE];
    place_bytes[..8].copy_from_slice(&place.offset.to_le_bytes());
    place_bytes[8..12].copy_from_slice(&place.len.to_le_bytes());
    place_bytes[12..14].copy_from_slice(&place.region.0.to_le_bytes());
    bytes.extend_from_slice(&place_bytes);
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Encodes a request.
#[must_use]
pub fn ask(number: u64, inline: u32, place: Option<&RemotePlace>, body: &[u8]) -> Vec<u8> {
    let kind = if place.is_some() { ASK_PLACE } else { REQUEST };
    let mut bytes = start(kind, inline, number, PLACE + body.len());
    if let Some(place) = place {
        put_place(&mut bytes, place);
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes a probe for as many bytes as `place` has, or for `len` bytes without a place.
#[must_use]
pub fn probe(number: u64, inline: u32, place: Option<&RemotePlace>, len: u32) -> Vec<u8> {
    let kind = if place.is_some() { PROBE_PLACE } else { PROBE };
    let mut bytes = start(kind, inline, number, PLACE);
    match place {
        Some(place) => put_place(&mut bytes, place),
        None => {
            bytes.extend(len.to_le_bytes());
            bytes.extend([0; 4]);
        }
    }
    bytes
}

/// Encodes an answer with this head; its last `data` bytes are zero, for the caller to fill in.
#[must_use]
pub fn answer(number: u64, head: &[u8], data: usize) -> Vec<u8> {
    let mut bytes = start(ANSWER, length(head.len()), number, head.len() + data);
    bytes.extend(head);
    bytes.resize(HEADER + head.len() + data, 0);
    bytes
}

/// Encodes a `DataReady`: the data is at `place`.
#[must_use]
pub fn lies(number: u64, place: &RemotePlace, head: &[u8]) -> Vec<u8> {
    let mut bytes = start(DATA_READY, length(head.len()), number, PLACE + head.len());
    put_place(&mut bytes, place);
    bytes.extend(head);
    bytes
}

/// Encodes a `DataWritten`. It must be sent after the write of the data is posted.
#[must_use]
pub fn landed(number: u64, len: u32, head: &[u8]) -> Vec<u8> {
    let mut bytes = start(DATA_WRITTEN, len, number, head.len());
    bytes.extend(head);
    bytes
}

/// Encodes a `Release`: the data has been read.
#[must_use]
pub fn release(number: u64) -> Vec<u8> {
    start(RELEASE, 0, number, 0)
}

/// Encodes a `Cancel`: the caller no longer waits.
#[must_use]
pub fn cancel(number: u64) -> Vec<u8> {
    start(CANCEL, 0, number, 0)
}

/// Encodes a `Withdrawn`: nothing will be written for the request.
#[must_use]
pub fn withdrawn(number: u64) -> Vec<u8> {
    start(WITHDRAWN, 0, number, 0)
}

/// Encodes a `Refused` with the reason `why`.
#[must_use]
pub fn refused(number: u64, why: u32) -> Vec<u8> {
    start(REFUSED, why, number, 0)
}

/// Encodes a `Window` of this many bytes.
#[must_use]
pub fn window(bytes: u32) -> Vec<u8> {
    start(WINDOW, bytes, 0, 0)
}

/// Encodes a `WindowTaken` for a window of this many bytes.
#[must_use]
pub fn window_taken(bytes: u32) -> Vec<u8> {
    start(WINDOW_TAKEN, bytes, 0, 0)
}

struct Header {
    kind: u8,
    word: u32,
    number: u64,
}

impl Header {
    const fn wrong(&self, field: &'static str) -> MessageError {
        MessageError::Field { kind: self.kind, field }
    }

    /// The place in the message; it must not be empty.
    fn place(&self, bytes: &[u8]) -> Result<RemotePlace, MessageError> {
        let Some([a, b, c, d, e, f, g, h, i, j, k, l, m, n, 0, 0]) =
            bytes.get(HEADER..).and_then(|rest| rest.first_chunk::<PLACE>())
        else {
            return Err(self.wrong("place"));
        };
        let place = RemotePlace {
            offset: u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
            len: u32::from_le_bytes([*i, *j, *k, *l]),
            region: RemoteRegion(u16::from_le_bytes([*m, *n])),
        };
        if place.len == 0 || place.offset.checked_add(place.len.into()).is_none() {
            return Err(self.wrong("place"));
        }
        Ok(place)
    }

    /// The head, which must begin at `start` and fill the rest of the message.
    fn rest_is_head(&self, bytes: &[u8], start: usize) -> Result<Range<usize>, MessageError> {
        match bytes.len().checked_sub(start) {
            Some(len) if len == self.word as usize => Ok(start..bytes.len()),
            _ => Err(self.wrong("head length")),
        }
    }

    /// Checks that the message is only a header and its word is zero. Returns the number.
    const fn is_all(&self, bytes: &[u8]) -> Result<u64, MessageError> {
        if self.word != 0 {
            return Err(self.wrong("word"));
        }
        self.ends(bytes)
    }

    /// Checks that the message is only a header without a number. Returns its word.
    fn is_word(&self, bytes: &[u8]) -> Result<u32, MessageError> {
        match self.ends(bytes)? {
            0 => Ok(self.word),
            _ => Err(self.wrong("number")),
        }
    }

    const fn ends(&self, bytes: &[u8]) -> Result<u64, MessageError> {
        if bytes.len() == HEADER { Ok(self.number) } else { Err(self.wrong("length")) }
    }

    fn probe_len(&self, bytes: &[u8]) -> Result<u32, MessageError> {
        match bytes.get(HEADER..) {
            Some([a, b, c, d, 0, 0, 0, 0]) => Ok(u32::from_le_bytes([*a, *b, *c, *d])),
            _ => Err(self.wrong("length")),
        }
    }
}

/// Decodes a message of a peer.
pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
    let Some([kind, version, zero, zeroes, a, b, c, d, number @ ..]) =
        bytes.first_chunk::<HEADER>()
    else {
        return Err(MessageError::Short { len: bytes.len() });
    };
    if *version != VERSION {
        return Err(MessageError::Version { found: *version });
    }
    let (kind, word) = (*kind, u32::from_le_bytes([*a, *b, *c, *d]));
    let header = Header { kind, word, number: u64::from_le_bytes(*number) };
    if (*zero, *zeroes) != (0, 0) {
        return Err(header.wrong("reserved field"));
    }
    let number = header.number;
    Ok(match kind {
        REQUEST => {
            Message::Request { number, inline: word, place: None, body: HEADER..bytes.len() }
        }
        ASK_PLACE => {
            let place = Some(header.place(bytes)?);
            Message::Request { number, inline: word, place, body: HEADER + PLACE..bytes.len() }
        }
        PROBE => {
            let len = header.probe_len(bytes)?;
            Message::Probe { number, inline: word, place: None, len }
        }
        PROBE_PLACE => {
            let place = header.place(bytes)?;
            if bytes.len() != HEADER + PLACE {
                return Err(header.wrong("length"));
            }
            Message::Probe { number, inline: word, place: Some(place), len: place.len }
        }
        ANSWER => {
            let data = HEADER.saturating_add(word as usize);
            if data > bytes.len() {
                return Err(header.wrong("head length"));
            }
            Message::Answer { number, head: HEADER..data, data: data..bytes.len() }
        }
        DATA_READY => {
            let place = header.place(bytes)?;
            Message::DataReady { number, place, head: header.rest_is_head(bytes, HEADER + PLACE)? }
        }
        DATA_WRITTEN if word == 0 => return Err(header.wrong("data length")),
        DATA_WRITTEN => Message::DataWritten { number, len: word, head: HEADER..bytes.len() },
        RELEASE => Message::Release { number: header.is_all(bytes)? },
        CANCEL => Message::Cancel { number: header.is_all(bytes)? },
        WITHDRAWN => Message::Withdrawn { number: header.is_all(bytes)? },
        REFUSED => Message::Refused { number: header.ends(bytes)?, why: word },
        WINDOW => Message::Window { bytes: header.is_word(bytes)? },
        WINDOW_TAKEN => Message::WindowTaken { bytes: header.is_word(bytes)? },
        kind => return Err(MessageError::Kind { kind }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: RemotePlace = RemotePlace { region: RemoteRegion(3), offset: 0x1234, len: 77 };

    #[test]
    fn what_is_written_is_read() {
        let number = 7 << 32 | 5;
        assert_eq!(
            decode(&ask(number, 512, None, b"body")),
            Ok(Message::Request { number, inline: 512, place: None, body: 16..20 })
        );
        assert_eq!(
            decode(&ask(number, 0, Some(&AT), b"body")),
            Ok(Message::Request { number, inline: 0, place: Some(AT), body: 32..36 })
        );
        assert_eq!(
            decode(&probe(number, 9, None, 4096)),
            Ok(Message::Probe { number, inline: 9, place: None, len: 4096 })
        );
        assert_eq!(
            decode(&probe(number, 9, Some(&AT), 4096)),
            Ok(Message::Probe { number, inline: 9, place: Some(AT), len: 77 })
        );
        assert_eq!(
            decode(&answer(number, b"head", 100)),
            Ok(Message::Answer { number, head: 16..20, data: 20..120 })
        );
        assert_eq!(
            decode(&lies(number, &AT, b"head")),
            Ok(Message::DataReady { number, place: AT, head: 32..36 })
        );
        assert_eq!(
            decode(&landed(number, 77, b"")),
            Ok(Message::DataWritten { number, len: 77, head: 16..16 })
        );
        assert_eq!(decode(&release(number)), Ok(Message::Release { number }));
        assert_eq!(decode(&cancel(number)), Ok(Message::Cancel { number }));
        assert_eq!(decode(&withdrawn(number)), Ok(Message::Withdrawn { number }));
        let why = NO_ROOM;
        assert_eq!(decode(&refused(number, why)), Ok(Message::Refused { number, why }));
        let bytes = 0x0102_0304;
        assert_eq!(decode(&window(bytes)), Ok(Message::Window { bytes }));
        assert_eq!(decode(&window_taken(bytes)), Ok(Message::WindowTaken { bytes }));
    }

    #[test]
    fn the_bytes_are_those_of_the_design() {
        let bytes = ask(0x0102_0304_0506_0708, 0x200, Some(&AT), b"!");
        assert_eq!(bytes[..8], [2, 2, 0, 0, 0, 2, 0, 0]);
        assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[16..], [0x34, 0x12, 0, 0, 0, 0, 0, 0, 77, 0, 0, 0, 3, 0, 0, 0, b'!']);
    }

    #[test]
    fn what_can_not_be_is_named() {
        assert_eq!(decode(&[1; 15]), Err(MessageError::Short { len: 15 }));
        let mut other = release(1);
        other[1] = 9;
        assert_eq!(decode(&other), Err(MessageError::Version { found: 9 }));
        let mut unknown = release(1);
        unknown[0] = 14;
        assert_eq!(decode(&unknown), Err(MessageError::Kind { kind: 14 }));
        let field = |bytes: &[u8]| match decode(bytes) {
            Err(MessageError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        let mut head = answer(1, b"", 4);
        head[4] = 5;
        assert_eq!(field(&head), "head length");
        head[4..8].fill(0xff);
        assert_eq!(field(&head), "head length");
        assert_eq!(field(&lies(1, &RemotePlace { len: 0, ..AT }, b"")), "place");
        assert_eq!(field(&lies(1, &RemotePlace { offset: u64::MAX, ..AT }, b"")), "place");
        assert_eq!(field(&ask(1, 0, Some(&AT), b"")[..31]), "place");
        assert_eq!(field(&landed(1, 0, b"")), "data length");
        assert_eq!(field(&[&cancel(1)[..], b"x"].concat()), "length");
        let mut numbered = window(1);
        numbered[8] = 1;
        assert_eq!(field(&numbered), "number");
        let mut reserved = cancel(1);
        reserved[3] = 1;
        assert_eq!(field(&reserved), "reserved field");
    }

    #[test]
    fn the_longest_parts_make_the_longest_message() {
        assert_eq!(ask(1, 0, Some(&AT), &vec![0; MAX_BODY]).len(), MAX_MESSAGE);
        assert_eq!(answer(1, b"head", MAX_INLINE - 4).len(), MAX_MESSAGE);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_stays_within_its_bytes(
            kind in 0_u8..13, bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let bytes = [&[kind, VERSION, 0, 0][..], &bytes].concat();
            let parts = match decode(&bytes) {
                Ok(Message::Answer { head, data, .. }) => vec![head, data],
                Ok(Message::Request { body: part, .. } | Message::DataReady { head: part, .. }
                    | Message::DataWritten { head: part, .. }) => vec![part],
                _ => Vec::new(),
            };
            for part in parts {
                prop_assert!(part.start <= part.end && part.end <= bytes.len());
            }
        }
    }
}
