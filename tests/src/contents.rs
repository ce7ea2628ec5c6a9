//! Byte patterns that identify the object to which they belong.

use rackpool_client::{GlobalAddr, Pool};
use rackpool_sync::SplitMix64;

/// Fills `into` with the bytes of `tag`. The bytes of two tags differ in every aligned word, so a
/// mixture is recognized.
pub fn fill(tag: u64, into: &mut [u8]) {
    for (index, chunk) in (0_u64..).zip(into.chunks_mut(8)) {
        let word = word(tag, index).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// The first `len` bytes of the pattern of `tag`.
#[must_use]
pub fn of(tag: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(tag, &mut bytes);
    bytes
}

/// The first offset at which `found` differs from the pattern of `tag`.
#[must_use]
pub fn difference(tag: u64, found: &[u8]) -> Option<usize> {
    of(tag, found.len()).iter().zip(found).position(|(wanted, found)| wanted != found)
}

/// The first offset of an aligned word in `found` that matches none of the tags. An interrupted
/// write may leave a mixture of words of two tags.
#[must_use]
pub fn difference_from_all(tags: &[u64], found: &[u8]) -> Option<usize> {
    let all: Vec<Vec<u8>> = tags.iter().map(|tag| of(*tag, found.len())).collect();
    (0..found.len())
        .step_by(8)
        .find(|at| !all.iter().any(|of| of[*at..].iter().take(8).eq(found[*at..].iter().take(8))))
}

/// Fills the object at `addr` with the pattern of its address.
///
/// # Panics
/// When the pool refuses the write.
pub fn write(pool: &Pool, addr: GlobalAddr, len: u64) {
    let len = usize::try_from(len).expect("what fits into memory");
    pool.write(addr, &of(addr.raw(), len)).expect("an object to write");
}

/// Checks that the object at `addr` holds what [`write()`] put there.
///
/// # Panics
/// When it does not.
pub fn check(pool: &Pool, addr: GlobalAddr, len: u64) {
    assert_eq!(difference(addr.raw(), &read(pool, addr, len)), None, "{len} B at {addr}");
}

/// Returns true if the object at `addr` holds what [`write()`] put there.
///
/// # Panics
/// When the object can't be read.
#[must_use]
pub fn is_there(pool: &Pool, addr: GlobalAddr, len: u64) -> bool {
    difference(addr.raw(), &read(pool, addr, len)).is_none()
}

/// Returns true if the object at `addr` holds words of both tags, and false if it holds the pattern
/// of one of them: a write of one pattern over the other has begun and has not ended.
///
/// # Panics
/// When the object can't be read, or holds anything else.
#[must_use]
pub fn is_torn(pool: &Pool, addr: GlobalAddr, len: u64, tags: [u64; 2]) -> bool {
    let found = read(pool, addr, len);
    assert_eq!(difference_from_all(&tags, &found), None, "{len} B at {addr}");
    tags.iter().all(|tag| difference(*tag, &found).is_some())
}

fn read(pool: &Pool, addr: GlobalAddr, len: u64) -> Vec<u8> {
    let mut found = vec![0; usize::try_from(len).expect("what fits into memory")];
    pool.read(addr, &mut found).expect("an object to read");
    found
}

/// Mixes both numbers into one.
const fn word(tag: u64, index: u64) -> u64 {
    SplitMix64::mix(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index.wrapping_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_tags_and_mixtures_are_found() {
        let mut bytes = of(7, 100);
        assert_eq!(difference(7, &bytes), None);
        assert_eq!(difference(8, &bytes), Some(0));
        bytes[99] ^= 1;
        assert_eq!(difference(7, &bytes), Some(99));
        let mixed = [&of(7, 100)[..48], &of(8, 100)[48..]].concat();
        assert_eq!(difference_from_all(&[8, 7], &mixed), None);
        assert_eq!(difference_from_all(&[8, 9], &mixed), Some(0));
    }
}
