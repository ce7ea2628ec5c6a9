//! Messages, and the frames that carry them.

use std::fmt::Debug;

use bincode::{Decode, Encode};
use rackpool_wire::control::{ControlReply, ControlRequest};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Tagged};
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::swap::{Between, FromServer, ToServer};
use rackpool_wire::{CodecError, FRAME_HEADER_BYTES, FrameReader, MAX_FRAME_BYTES, decode, encode};

use crate::Input;

/// The version in the header of every frame.
const VERSION: u8 = 1;

/// The first byte selects the receiver, and whether the rest is a body to be framed or a whole
/// frame. An accepted message is encoded again to the very same bytes: no two frames have the same
/// meaning, and no information is lost.
pub fn messages(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let frame = if kind & 0x80 == 0 { framed(input.rest()) } else { input.rest().to_vec() };
    match kind & 0x7f {
        0 => comes_back::<Tagged<ControlRequest>>(&frame),
        1 => comes_back::<Tagged<ControlReply>>(&frame),
        2 => comes_back::<Tagged<MetadataRequest>>(&frame),
        3 => comes_back::<Tagged<MetadataReply>>(&frame),
        4 => comes_back::<PeerRequest>(&frame),
        5 => comes_back::<PeerReply>(&frame),
        6 => comes_back::<ToServer>(&frame),
        7 => comes_back::<FromServer>(&frame),
        _ => comes_back::<Between>(&frame),
    }
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &[VERSION], body].concat()
}

fn comes_back<M: Encode + Decode<()> + Debug + PartialEq>(frame: &[u8]) {
    let Ok(message) = decode::<M>(frame) else { return };
    let again = encode(&message).unwrap_or_default();
    assert_eq!(again, frame, "{message:?} is written in another way than it was read");
}

/// A stream of messages in pieces. The decoded messages do not depend on the length of the pieces;
/// everything before the first fault is decoded; and the reader buffers no more than a frame can
/// use.
pub fn frames(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let cut = usize::from(input.byte()).max(1);
    let stream = input.rest();
    let whole = read(stream, stream.len().max(1));
    assert_eq!(whole, read(stream, cut), "cut after {cut} B");
    // The same without a reader, frame by frame.
    let mut rest = stream;
    for message in &whole.0 {
        let frame = encode(message).unwrap_or_default();
        assert!(rest.starts_with(&frame), "{message:?} was not sent");
        rest = &rest[frame.len()..];
    }
    let fault = match rest.split_first_chunk::<FRAME_HEADER_BYTES>() {
        None => None,
        Some(([_, _, _, _, version], _)) if *version != VERSION => {
            Some(CodecError::Version { found: *version })
        }
        Some(([a, b, c, d, _], body)) => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            if length > MAX_FRAME_BYTES {
                Some(CodecError::TooLong { bytes: length, limit: MAX_FRAME_BYTES })
            } else {
                body.get(..length).and_then(|body| decode::<Told>(&framed(body)).err())
            }
        }
    };
    assert_eq!(whole.1, fault, "what is wrong with the rest");
}

type Told = Tagged<MetadataRequest>;

/// All messages of a stream that arrives in pieces, and the fault that ends it.
fn read(stream: &[u8], cut: usize) -> (Vec<Told>, Option<CodecError>) {
    let mut reader = FrameReader::new();
    let mut seen = Vec::new();
    for piece in stream.chunks(cut) {
        reader.extend(piece);
        loop {
            match reader.next() {
                Ok(Some(message)) => seen.push(message),
                Ok(None) => break,
                Err(error) => return (seen, Some(error)),
            }
        }
    }
    (seen, None)
}
