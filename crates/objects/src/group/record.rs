//! The bytes of a message in a ring.

use rackpool_proto::group::ALIGN;
use twox_hash::XxHash3_64;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message.
    Bytes,
    /// A message that is an object of the group's store; its number is the id.
    Object,
    /// Bytes up to the end of the ring, which mean nothing: a record does not wrap.
    Gap,
    /// The stream ends.
    End,
}

/// The start of a record. The bytes of the message follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The length of what follows, in bytes.
    pub(super) len: u32,
    /// The number of the message: how many were sent before.
    pub(super) message: u64,
}

impl Record {
    /// The bytes before those of the message: length u32, kind u32, message u64, position u64,
    /// checksum u64.
    pub(super) const HEADER: usize = 32;

    /// Writes a record to the start of `into`, which begins at this position of the stream of the
    /// group with this number. `bytes` are those of the message, none for a gap.
    pub(super) fn write(self, into: &mut [u8], group: u64, position: u64, bytes: &[u8]) {
        let header = self.header(position);
        let checksum = checksum(group, &header, bytes).to_le_bytes();
        let end = Self::HEADER + bytes.len();
        if let Some(into) = into.get_mut(..end) {
            let (at, after) = into.split_at_mut(Self::HEADER);
            at[..24].copy_from_slice(&header);
            at[24..].copy_from_slice(&checksum);
            after.copy_from_slice(bytes);
        }
    }

    /// Reads the record at the start of `bytes`, which begin at this position. `None` if there is
    /// none, or if its checksum is wrong.
    pub(super) fn read(bytes: &[u8], group: u64, position: u64) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<24>()?;
        let (checksum_found, rest) = rest.split_first_chunk()?;
        let word = |at: usize| header[at..].first_chunk().copied().map(u32::from_le_bytes);
        let kind = match word(4)? {
            0 => Kind::Bytes,
            1 => Kind::Object,
            2 => Kind::Gap,
            3 => Kind::End,
            _ => return None,
        };
        let message = header[8..].first_chunk().copied().map(u64::from_le_bytes)?;
        let record = Self { kind, len: word(0)?, message };
        let body = rest.get(..usize::try_from(record.len).ok()?)?;
        let hashed = if kind == Kind::Gap { &[][..] } else { body };
        let is_whole = checksum(group, header, hashed) == u64::from_le_bytes(*checksum_found);
        (is_whole && *header == record.header(position)).then_some(record)
    }

    /// The length of the record in the stream.
    pub(super) fn bytes(self) -> u64 {
        (Self::HEADER as u64 + u64::from(self.len)).next_multiple_of(ALIGN)
    }

    fn header(self, position: u64) -> [u8; 24] {
        let mut header = [0; 24];
        let kind: u32 = match self.kind {
            Kind::Bytes => 0,
            Kind::Object => 1,
            Kind::Gap => 2,
            Kind::End => 3,
        };
        header[..4].copy_from_slice(&self.len.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&self.message.to_le_bytes());
        header[16..].copy_from_slice(&position.to_le_bytes());
        header
    }
}

/// Over the group's number, the header and the bytes: the records of another group, or of another
/// position, are none of this one.
fn checksum(group: u64, header: &[u8; 24], bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(group, header), bytes)
}

/// Whether the stream from `begin` up to `end` is in this ring, record by record.
pub(super) fn is_whole(ring: &[u8], group: u64, begin: u64, end: u64) -> bool {
    let mut position = begin;
    while position < end {
        let at = usize::try_from(position % ring.len().max(1) as u64).unwrap_or(usize::MAX);
        let record = ring.get(at..).and_then(|bytes| Record::read(bytes, group, position));
        let Some(record) = record else { return false };
        position += record.bytes();
    }
    position == end
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u64 = 0x1234_5678_9abc_def0;

    fn written(record: Record, position: u64, bytes: &[u8]) -> Vec<u8> {
        let mut into = vec![0xee; usize::try_from(record.bytes()).unwrap()];
        record.write(&mut into, GROUP, position, bytes);
        into
    }

    #[test]
    fn a_record_is_one_of_its_group_and_position_and_bytes() {
        let message = b"a message of some bytes, which is longer than a header";
        let len = u32::try_from(message.len()).unwrap();
        for kind in [Kind::Bytes, Kind::Object, Kind::End] {
            let record = Record { kind, len, message: 9 };
            let bytes = written(record, 96, message);
            assert_eq!(Record::read(&bytes, GROUP, 96), Some(record));
            assert_eq!(Record::read(&bytes, GROUP + 1, 96), None);
            assert_eq!(Record::read(&bytes, GROUP, 128), None);
            for at in 0..Record::HEADER + message.len() {
                let mut other = bytes.clone();
                other[at] ^= 1;
                assert_eq!(Record::read(&other, GROUP, 96), None, "byte {at}");
                assert_eq!(Record::read(&bytes[..at], GROUP, 96), None, "{at} B");
            }
        }
    }

    #[test]
    fn a_stream_is_whole_up_to_the_end_of_its_last_record() {
        // A ring of 256 B: messages of 64 and 96 B, a gap, and a message at the start again.
        let mut ring = vec![0; 256];
        let parts = [(Kind::Bytes, 32, 0), (Kind::Bytes, 64, 64), (Kind::Gap, 64, 160)];
        for (kind, len, position) in parts {
            let record = Record { kind, len, message: 3 };
            let at = usize::try_from(position).unwrap();
            let bytes = vec![5; usize::try_from(len).unwrap()];
            let bytes = if kind == Kind::Gap { &[][..] } else { &bytes };
            record.write(&mut ring[at..], GROUP, position, bytes);
        }
        assert!(is_whole(&ring, GROUP, 0, 256));
        assert!(is_whole(&ring, GROUP, 64, 160));
        assert!(!is_whole(&ring, GROUP, 0, 128), "it ends within a record");
        assert!(!is_whole(&ring, GROUP, 32, 256), "it begins within a record");
        Record { kind: Kind::Bytes, len: 0, message: 4 }.write(&mut ring, GROUP, 256, &[]);
        assert!(is_whole(&ring, GROUP, 160, 288));
        assert!(!is_whole(&ring, GROUP, 0, 256), "the first message is overwritten");
        assert!(!is_whole(&[], GROUP, 0, 32));
    }
}
