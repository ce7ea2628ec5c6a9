use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The checksum of an object: XXH3-64 over the XXH3-64 of each block, as little-endian words. Block
/// after block can be checked while it is still in the processor's cache.
#[derive(Clone)]
pub(crate) struct Checksum(Xxh3);

impl Checksum {
    /// The length of a block in bytes. The last block may be shorter.
    pub(crate) const BLOCK: usize = 64 << 10;

    pub(crate) fn new() -> Self {
        Self(Xxh3::new())
    }

    /// Appends one block.
    pub(crate) fn add_block(&mut self, block: &[u8]) {
        self.0.update(&xxh3_64(block).to_le_bytes());
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.digest()
    }

    /// The checksum of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> u64 {
        let mut checksum = Self::new();
        bytes.chunks(Self::BLOCK).for_each(|block| checksum.add_block(block));
        checksum.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_and_the_order_of_blocks_count() {
        let bytes = [&[0, 1, 2, 3, 4, 5, 6][..]; Checksum::BLOCK / 2].concat();
        let checksum = Checksum::of(&bytes);
        for at in [0, Checksum::BLOCK - 1, Checksum::BLOCK, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(Checksum::of(&other), checksum, "byte {at}");
        }
        let mut swapped = bytes.clone();
        swapped[..2 * Checksum::BLOCK].rotate_left(Checksum::BLOCK);
        assert_ne!(Checksum::of(&swapped), checksum);
        assert_ne!(Checksum::of(&bytes[..bytes.len() - 1]), checksum);
        assert_eq!(Checksum::of(&[]), Checksum::new().finish());
    }
}
