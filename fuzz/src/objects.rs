//! Records of object stores, of casts and of groups, as programs read those that others wrote.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What selects a ring, the number of its group, and its first record up to the checksum.
const SELECTS_RING: u8 = 5;
const NUMBER: std::ops::Range<usize> = 1..9;
const HEADER: std::ops::Range<usize> = 9..33;
const SUM: std::ops::Range<usize> = 33..41;

/// Bytes are refused, or decode to a record that is encoded again to the same bytes.
pub fn objects(bytes: &[u8]) {
    rackpool_objects::fuzzing::record(bytes);
    // A ring whose record has a valid checksum; without it no mutation would be accepted.
    let mut bytes = bytes.to_vec();
    let (Some(number), Some(header)) = (bytes.get(NUMBER), bytes.get(HEADER)) else { return };
    let number = u64::from_le_bytes(number.try_into().unwrap());
    let len = u32::from_le_bytes(header[..4].try_into().unwrap());
    let Some(body) = bytes.get(SUM.end..).and_then(|rest| rest.get(..len as usize)) else { return };
    let sum = xxh3_64_with_seed(body, xxh3_64_with_seed(header, number)).to_le_bytes();
    bytes[0] = SELECTS_RING;
    bytes[SUM].copy_from_slice(&sum);
    rackpool_objects::fuzzing::record(&bytes);
}
