use bincode::{Decode, Encode, config};

use crate::bounds::OutOfBounds;
use crate::metadata::Tagged;

/// The version of every message of this crate. A process refuses messages of another version. The
/// version stays 1 until the first release, even if messages change; after that it grows with every
/// change.
const VERSION: u8 = 1;

/// The largest body of a frame in bytes. The receiver closes a connection that announces a longer
/// one.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// The length of a frame's header in bytes: length of the body (4, little endian) and version (1).
pub const FRAME_HEADER_BYTES: usize = 5;

const CONFIG: config::Configuration<
    config::LittleEndian,
    config::Fixint,
    config::Limit<MAX_FRAME_BYTES>,
> = config::standard().with_fixed_int_encoding().with_limit::<MAX_FRAME_BYTES>();

/// Why bytes could not be decoded as a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The sender runs another version of rackpool.
    #[error(
        "message version {found}, this program speaks {VERSION}: run the same rackpool release everywhere"
    )]
    Version {
        /// The sender's version.
        found: u8,
    },
    /// The frame's body is longer than the limit.
    #[error(
        "a message of {bytes} B is over the limit of {limit} B: see that the other end is a rackpool process of the same release"
    )]
    TooLong {
        /// The length announced or encoded.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The bytes end before the message is complete.
    #[error(
        "the message is cut short: see that the other end is a rackpool process of the same release, and still runs"
    )]
    Truncated,
    /// The bytes do not encode a message of the expected type.
    #[error(
        "the message is malformed ({0}): see that the other end is a rackpool process of the same release"
    )]
    Malformed(String),
}

/// Encodes a message as a frame: length, version, body.
///
/// ```
/// use rackpool_wire::{FrameReader, encode};
/// let frame = encode(&42_u64)?;
/// let mut reader = FrameReader::new();
/// reader.extend(&frame);
/// assert_eq!(reader.next::<u64>()?, Some(42));
/// # Ok::<(), rackpool_wire::CodecError>(())
/// ```
pub fn encode<M: Encode>(message: &M) -> Result<Vec<u8>, CodecError> {
    let body = bincode::encode_to_vec(message, CONFIG)
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if body.len() > MAX_FRAME_BYTES {
        return Err(too_long(body.len()));
    }
    let length = u32::try_from(body.len()).map_err(|_| too_long(body.len()))?;
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.push(VERSION);
    frame.extend_from_slice(&body);
    Ok(frame)
}

const fn too_long(bytes: usize) -> CodecError {
    CodecError::TooLong { bytes, limit: MAX_FRAME_BYTES }
}

/// Decodes one whole frame, as a datagram transport delivers it.
pub fn decode<M: Decode<()>>(frame: &[u8]) -> Result<M, CodecError> {
    let length = body_length(frame, MAX_FRAME_BYTES)?.ok_or(CodecError::Truncated)?;
    let body = &frame[FRAME_HEADER_BYTES..];
    match body.len().cmp(&length) {
        std::cmp::Ordering::Less => Err(CodecError::Truncated),
        std::cmp::Ordering::Greater => Err(CodecError::Malformed("bytes after its end".into())),
        std::cmp::Ordering::Equal => decode_body(body),
    }
}

fn body_length(bytes: &[u8], limit: usize) -> Result<Option<usize>, CodecError> {
    let Some((header, _)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let [a, b, c, d, version] = *header;
    if version != VERSION {
        return Err(CodecError::Version { found: version });
    }
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > limit {
        return Err(CodecError::TooLong { bytes: length, limit });
    }
    Ok(Some(length))
}

fn decode_body<M: Decode<()>>(body: &[u8]) -> Result<M, CodecError> {
    let (message, used) = bincode::decode_from_slice(body, CONFIG)
        .map_err(|error| CodecError::Malformed(error.to_string()))?;
    if used != body.len() {
        return Err(CodecError::Malformed(format!("{} B too many", body.len() - used)));
    }
    Ok(message)
}

/// Splits a byte stream into messages. It buffers at most one incomplete frame beyond the bytes of
/// the last [`extend`](Self::extend), and refuses a frame over the limit as soon as its header is
/// complete.
#[derive(Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
    start: usize,
    limit: usize,
    /// Bytes still to come of a request over the limit; they are skipped.
    skipping: usize,
}

/// A request that can't be served. The stream stays usable after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The request's tag, for the refusal.
    pub tag: u64,
    /// Why it is refused.
    pub reason: OutOfBounds,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameReader {
    /// Makes a reader with the limit [`MAX_FRAME_BYTES`].
    #[must_use]
    pub const fn new() -> Self {
        Self::with_limit(MAX_FRAME_BYTES)
    }

    /// Makes a reader that refuses frames with bodies of more than `limit` bytes.
    #[must_use]
    pub const fn with_limit(limit: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, limit, skipping: 0 }
    }

    /// Appends the next bytes of the stream.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        let skipped = self.skipping.min(bytes.len());
        self.skipping -= skipped;
        self.bytes.extend_from_slice(&bytes[skipped..]);
    }

    /// Returns the next whole message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// After an error the stream can't be decoded any more; the caller must close it.
    #[expect(clippy::should_implement_trait, reason = "the message's type is chosen by the caller")]
    pub fn next<M: Decode<()>>(&mut self) -> Result<Option<M>, CodecError> {
        let rest = &self.bytes[self.start..];
        let Some(length) = body_length(rest, self.limit)? else { return Ok(None) };
        let Some(body) = rest.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length) else {
            return Ok(None);
        };
        let message = decode_body(body)?;
        self.start += FRAME_HEADER_BYTES + length;
        Ok(Some(message))
    }

    /// Returns the next request, or `None` if more bytes are needed. A request that exceeds the
    /// limit of this reader (but not [`MAX_FRAME_BYTES`]) or can't be decoded is skipped and
    /// returned as [`Unreadable`]; the caller refuses it and serves the requests after it.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn next_request<M: Decode<()>>(
        &mut self,
    ) -> Result<Option<Result<Tagged<M>, Unreadable>>, CodecError> {
        let rest = &self.bytes[self.start..];
        let Some(length) = body_length(rest, MAX_FRAME_BYTES)? else { return Ok(None) };
        let body = &rest[FRAME_HEADER_BYTES..];
        let whole = body.get(..length);
        // The tag is the first field of a request.
        let tag = body.first_chunk().map(|tag| u64::from_le_bytes(*tag));
        let (tag, reason) = match (whole, tag) {
            (Some(body), tag) if length <= self.limit => match (decode_body(body), tag) {
                (Ok(request), _) => {
                    self.start += FRAME_HEADER_BYTES + length;
                    return Ok(Some(Ok(request)));
                }
                (Err(CodecError::Malformed(why)), Some(tag)) if length >= size_of::<u64>() => {
                    (tag, OutOfBounds::Meaningless(why))
                }
                (Err(error), _) => return Err(error),
            },
            (_, Some(tag)) if length > self.limit => {
                let (bytes, most) = (length as u64, self.limit as u64);
                (tag, OutOfBounds::Request { bytes, most })
            }
            _ => return Ok(None),
        };
        let here = length.min(body.len());
        self.skipping = length - here;
        self.start += FRAME_HEADER_BYTES + here;
        Ok(Some(Err(Unreadable { tag, reason })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn another_version_is_named() {
        let mut frame = encode(&1_u8).unwrap();
        frame[4] = 9;
        assert_eq!(decode::<u8>(&frame), Err(CodecError::Version { found: 9 }));
    }

    #[test]
    fn every_error_says_what_to_do() {
        let said = |error: CodecError| {
            // No wildcard arm: a new error does not compile before its text is tested here.
            let text = match &error {
                CodecError::Version { .. } => {
                    "message version 9, this program speaks 1: run the same rackpool release everywhere"
                }
                CodecError::TooLong { .. } => {
                    "a message of 24 B is over the limit of 16 B: see that the other end is a \
                     rackpool process of the same release"
                }
                CodecError::Truncated => {
                    "the message is cut short: see that the other end is a rackpool process of the \
                     same release, and still runs"
                }
                CodecError::Malformed(_) => {
                    "the message is malformed (3 B too many): see that the other end is a rackpool \
                     process of the same release"
                }
            };
            assert_eq!(error.to_string(), text);
        };
        said(CodecError::Version { found: 9 });
        said(CodecError::TooLong { bytes: 24, limit: 16 });
        said(CodecError::Truncated);
        said(CodecError::Malformed("3 B too many".into()));
    }

    #[test]
    fn a_long_frame_is_refused_by_its_header() {
        let mut reader = FrameReader::new();
        reader.extend(&[0xff, 0xff, 0xff, 0x7f, VERSION]);
        assert_eq!(reader.next::<u8>(), Err(too_long(0x7fff_ffff)));
    }

    #[test]
    fn a_reader_may_take_less_than_the_largest_frame() {
        let mut reader = FrameReader::with_limit(16);
        reader.extend(&encode(&[1_u64; 2]).unwrap());
        assert_eq!(reader.next(), Ok(Some([1_u64; 2])));
        reader.extend(&encode(&[1_u64; 3]).unwrap()[..FRAME_HEADER_BYTES]);
        assert_eq!(reader.next::<[u64; 3]>(), Err(CodecError::TooLong { bytes: 24, limit: 16 }));
    }

    #[test]
    fn a_request_that_is_too_long_or_means_nothing_is_passed_over() {
        let ask = |tag, message: Vec<u8>| encode(&Tagged { tag, message }).unwrap();
        let nothing = encode(&(3_u64, u64::MAX)).unwrap();
        let stream = [ask(1, vec![1]), ask(2, vec![2; 5000]), nothing, ask(4, vec![4])].concat();
        for cut in [1, 7, 100, 5000, stream.len()] {
            let mut reader = FrameReader::with_limit(64);
            let mut read = Vec::new();
            for piece in stream.chunks(cut) {
                reader.extend(piece);
                assert!(reader.bytes.len() < FRAME_HEADER_BYTES + 64 + 2 * cut, "it is not kept");
                while let Some(request) = reader.next_request::<Vec<u8>>().unwrap() {
                    read.push(request);
                }
            }
            let [first, long, nothing, last] = &read[..] else { panic!("{read:?}") };
            assert_eq!(*first, Ok(Tagged { tag: 1, message: vec![1] }));
            let reason = OutOfBounds::Request { bytes: 5016, most: 64 };
            assert_eq!(*long, Err(Unreadable { tag: 2, reason }));
            assert!(matches!(
                nothing,
                Err(Unreadable { tag: 3, reason: OutOfBounds::Meaningless(_) })
            ));
            assert_eq!(*last, Ok(Tagged { tag: 4, message: vec![4] }));
        }
        // A body too short for a tag; a length over that of any frame.
        let mut reader = FrameReader::with_limit(64);
        reader.extend(&encode(&1_u32).unwrap());
        assert!(matches!(reader.next_request::<u64>(), Err(CodecError::Malformed(_))));
        let mut reader = FrameReader::with_limit(64);
        reader.extend(&[0xff, 0xff, 0xff, 0x7f, VERSION]);
        assert_eq!(reader.next_request::<u64>(), Err(too_long(0x7fff_ffff)));
    }

    #[test]
    fn a_length_inside_a_message_is_bounded() {
        // A vector that claims 2^60 elements must not be allocated.
        let mut frame = encode(&(1_u64 << 60)).unwrap();
        frame.truncate(FRAME_HEADER_BYTES + 8);
        assert!(matches!(decode::<Vec<u64>>(&frame), Err(CodecError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(values in proptest::collection::vec(any::<u64>(), 0..20), cut in 1_usize..9) {
            let stream: Vec<u8> = values.iter().flat_map(|v| encode(v).unwrap()).collect();
            let mut reader = FrameReader::new();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                reader.extend(piece);
                while let Some(value) = reader.next::<u64>().unwrap() {
                    seen.push(value);
                }
            }
            prop_assert_eq!(seen, values);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<crate::peer::PeerRequest>(&bytes);
            let _ = decode::<crate::peer::PeerReply>(&bytes);
            let _ = decode::<crate::control::ControlRequest>(&bytes);
            let _ = decode::<crate::metadata::MetadataRequest>(&bytes);
        }
    }
}
