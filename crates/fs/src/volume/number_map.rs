//! Maps keyed by numbers that every read and write looks up: hashing takes one multiplication.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A map keyed by the number of an inode, a cluster or a block.
pub(crate) type Numbered<K, V> = HashMap<K, V, NumberHash>;

/// Each map has a random key: programs choose where they write, and must not be able to choose
/// numbers that collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberHash(u64);

impl Default for NumberHash {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for NumberHash {
    type Hasher = NumberHasher;

    fn build_hasher(&self) -> NumberHasher {
        NumberHasher(self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberHasher(u64);

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let number = self.0 ^ number;
        // The low half of a product is poor in its low bits, the high half in its high ones.
        self.0 = number.wrapping_mul(GOLDEN) ^ number.carrying_mul(GOLDEN, 0).1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_in_a_row_and_multiples_are_spread() {
        let hash = NumberHash::default();
        for step in [1_u64, 16, 1 << 20, 1 << 40] {
            let places: HashSet<u64> = (0..4096).map(|n| hash.hash_one(n * step) % 4096).collect();
            assert!(places.len() > 1500, "{step}: {}", places.len());
        }
    }
}
