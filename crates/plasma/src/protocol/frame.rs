//! Frames: version, type and length, 8 bytes each, then a flatbuffer.

use super::{Malformed, MessageKind};

/// Bytes before the flatbuffer.
pub const HEADER_BYTES: usize = 24;
/// The only version of the protocol.
const VERSION: i64 = 0;
/// Above this, memory that holds no bytes any more is given back.
const KEPT_BYTES: usize = 1 << 20;

/// A whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its type.
    pub kind: MessageKind,
    /// Its flatbuffer.
    pub body: &'a [u8],
}

/// The longest flatbuffers that are accepted.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// Of messages that hold no bytes of objects.
    pub bytes: u64,
    /// Of those that do.
    pub data_bytes: u64,
}

impl FrameLimits {
    /// The limits of a store with this capacity.
    #[must_use]
    pub const fn of_capacity(capacity: u64) -> Self {
        const LEAST: u64 = 64 << 20;
        const OVERHEAD: u64 = 1 << 20;

        let data = capacity.saturating_add(OVERHEAD);
        Self { bytes: LEAST, data_bytes: if data > LEAST { data } else { LEAST } }
    }

    const fn of(&self, kind: MessageKind) -> u64 {
        if kind.carries_data() { self.data_bytes } else { self.bytes }
    }
}

/// A frame with this type and flatbuffer.
#[must_use]
pub fn encode(kind: i64, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + body.len());
    for word in [VERSION, kind, i64::try_from(body.len()).unwrap_or(i64::MAX)] {
        frame.extend_from_slice(&word.to_le_bytes());
    }
    frame.extend_from_slice(body);
    frame
}

/// The bytes that have arrived and were not consumed. It never allocates for bytes that are only
/// announced.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// Adds bytes that have arrived.
    pub fn push(&mut self, arrived: &[u8]) {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(arrived);
    }

    /// The bytes that were not consumed.
    #[must_use]
    pub fn unconsumed(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The first whole frame; `None` if more bytes have to arrive.
    ///
    /// # Errors
    /// If no client of this protocol sends such a frame.
    pub fn first(&self, limits: &FrameLimits) -> Result<Option<Frame<'_>>, Malformed> {
        let bytes = self.unconsumed();
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let mut words = header.chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            i64::from_le_bytes(bytes)
        });
        let mut word = || words.next().unwrap_or_default();
        let (version, kind, length) = (word(), word(), word());
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let kind = MessageKind::of(kind).ok_or(Malformed::Kind(kind))?;
        let length = u64::try_from(length).map_err(|_| Malformed::FrameLength)?;
        if length > limits.of(kind) {
            return Err(Malformed::FrameLength);
        }
        let length = usize::try_from(length).map_err(|_| Malformed::FrameLength)?;
        Ok(rest.get(..length).map(|body| Frame { kind, body }))
    }

    /// Consumes the frame that [`Self::first`] has returned, whose flatbuffer has this length.
    pub fn consume_frame(&mut self, body_bytes: usize) {
        self.consume(HEADER_BYTES.saturating_add(body_bytes));
    }

    /// Consumes a number of bytes.
    pub fn consume(&mut self, bytes: usize) {
        self.start = self.start.saturating_add(bytes).min(self.bytes.len());
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > KEPT_BYTES {
                self.bytes = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FrameLimits = FrameLimits { bytes: 100, data_bytes: 1000 };

    fn announced(words: [i64; 3]) -> FrameBuffer {
        let mut buffer = FrameBuffer::default();
        words.iter().for_each(|word| buffer.push(&word.to_le_bytes()));
        buffer
    }

    #[test]
    fn frames_come_whole_whatever_the_pieces() {
        let mut sent = encode(MessageKind::ListRequest.code(), b"abc");
        sent.extend(encode(MessageKind::Disconnect.code(), b""));
        let mut buffer = FrameBuffer::default();
        let mut kinds = Vec::new();
        for byte in sent {
            buffer.push(&[byte]);
            while let Some(frame) = buffer.first(&LIMITS).unwrap() {
                kinds.push((frame.kind, frame.body.to_vec()));
                let length = frame.body.len();
                buffer.consume_frame(length);
            }
        }
        let wanted =
            [(MessageKind::ListRequest, b"abc".to_vec()), (MessageKind::Disconnect, vec![])];
        assert_eq!(kinds, wanted);
        assert!(buffer.unconsumed().is_empty());
    }

    #[test]
    fn what_is_no_frame_is_refused_from_its_header() {
        assert_eq!(announced([1, 0, 0]).first(&LIMITS), Err(Malformed::Version(1)));
        assert_eq!(announced([0, 36, 0]).first(&LIMITS), Err(Malformed::Kind(36)));
        for length in [-1, 101, i64::MAX, i64::MIN] {
            assert_eq!(announced([0, 17, length]).first(&LIMITS), Err(Malformed::FrameLength));
        }
        assert_eq!(announced([0, 3, 1000]).first(&LIMITS), Ok(None));
        assert_eq!(announced([0, 3, 1001]).first(&LIMITS), Err(Malformed::FrameLength));
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let limits = FrameLimits::of_capacity(1 << 40);
        let buffer = announced([0, 3, 1 << 39]);
        assert_eq!(buffer.first(&limits), Ok(None));
        assert!(buffer.bytes.capacity() < 1000);
    }
}
