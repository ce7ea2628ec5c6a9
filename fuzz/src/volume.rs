//! Records of a file system, as mounts read them that others wrote.

use xxhash_rust::xxh3::xxh3_64;

/// Where a superblock has its checksum, behind the byte that says which record this is.
const SUM: std::ops::Range<usize> = 33..41;

/// Bytes are refused, or say a record that is written back as it was read.
pub fn volume(bytes: &[u8]) {
    rackpool_fs::fuzzing::record(bytes);
    // With the right checksum, past which mutations would never get.
    let mut bytes = bytes.to_vec();
    if let Some(start) = bytes.get(1..SUM.start) {
        let sum = xxh3_64(start).to_le_bytes();
        if let Some(place) = bytes.get_mut(SUM) {
            place.copy_from_slice(&sum);
            rackpool_fs::fuzzing::record(&bytes);
        }
    }
}
