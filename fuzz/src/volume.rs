//! Records of a file system, as mounts read the records that others wrote.

use xxhash_rust::xxh3::xxh3_64;

/// Range of a superblock's checksum, behind the byte that selects the kind of record.
const SUM: std::ops::Range<usize> = 33..41;

/// Bytes are refused, or decode to a record that is encoded again to the same bytes.
pub fn volume(bytes: &[u8]) {
    rackpool_fs::fuzzing::record(bytes);
    // With a valid checksum; without it no mutation would be accepted.
    let mut bytes = bytes.to_vec();
    if let Some(start) = bytes.get(1..SUM.start) {
        let sum = xxh3_64(start).to_le_bytes();
        if let Some(place) = bytes.get_mut(SUM) {
            place.copy_from_slice(&sum);
            rackpool_fs::fuzzing::record(&bytes);
        }
    }
}
