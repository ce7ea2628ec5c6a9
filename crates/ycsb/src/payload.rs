//! Field contents that identify their key, which `--verify` checks.
//!
//! A field begins with its writer's nonce (8 bytes, little-endian). The rest is a pseudo-random
//! stream determined by key, field number and nonce, which a reader that knows the key recomputes.
//! Bytes of another key or field, or of two mixed writes, pass with a probability of 2^-64 for each
//! 8 bytes.

use rackpool_sync::SplitMix64;

/// Bytes of the nonce at the beginning of a field.
const NONCE_BYTES: usize = 8;

/// Smallest field, in bytes, that can be verified: a nonce and 8 bytes that depend on it.
pub(super) const MIN_VERIFIABLE_BYTES: usize = 2 * NONCE_BYTES;

/// Fills a field. A field shorter than the nonce gets the nonce's first bytes.
pub(super) fn fill(key: &[u8], field: usize, nonce: u64, bytes: &mut [u8]) {
    let mut stream = stream(key, field, nonce);
    let mut word = nonce;
    for chunk in bytes.chunks_mut(NONCE_BYTES) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        word = stream.draw();
    }
}

/// Returns whether these bytes are the result of a [`fill`] for this key and field.
pub(super) fn is_genuine(key: &[u8], field: usize, bytes: &[u8]) -> bool {
    let Some((nonce, rest)) = bytes.split_first_chunk() else { return false };
    let mut stream = stream(key, field, u64::from_le_bytes(*nonce));
    rest.chunks(NONCE_BYTES).all(|chunk| *chunk == stream.draw().to_le_bytes()[..chunk.len()])
}

/// The pseudo-random stream of a field.
fn stream(key: &[u8], field: usize, nonce: u64) -> SplitMix64 {
    let mut stream = SplitMix64::new(nonce ^ (field as u64).rotate_left(32));
    for chunk in key.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        stream = SplitMix64::new(stream.draw() ^ u64::from_le_bytes(word));
    }
    SplitMix64::new(stream.draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(key: &str, number: usize, nonce: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(key.as_bytes(), number, nonce, &mut bytes);
        bytes
    }

    #[test]
    fn what_was_filled_is_genuine() {
        for len in [16, 17, 63, 64, 100, 1000] {
            assert!(is_genuine(b"user1", 3, &field("user1", 3, 42, len)), "{len} bytes");
        }
    }

    #[test]
    fn anything_else_is_not() {
        let good = field("user1", 0, 42, 64);
        assert!(!is_genuine(b"user2", 0, &good));
        assert!(!is_genuine(b"user1", 1, &good));
        assert!(!is_genuine(b"user1", 0, &[0; 64]));
        assert!(!is_genuine(b"user1", 0, &[]));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_genuine(b"user1", 0, &bad), "bit {bit} flipped");
        }
        let other = field("user1", 0, 43, 64);
        for split in 1..63 {
            let torn = [&good[..split], &other[split..]].concat();
            // The nonces 42 and 43 differ in their first byte only, so every mixture is detected.
            assert!(!is_genuine(b"user1", 0, &torn), "torn at {split}");
        }
    }

    #[test]
    fn short_fields_are_filled_too() {
        assert_eq!(field("user1", 0, 0x0807_0605_0403_0201, 3), [1, 2, 3]);
    }
}
