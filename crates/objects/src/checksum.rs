use std::hash::Hasher;

use twox_hash::XxHash3_64;

/// The checksum of an object: XXH3-64 over the XXH3-64 of each block, as little-endian words. Block
/// after block can be checked while it is still in the processor's cache.
#[derive(Clone)]
pub(crate) struct Checksum {
    blocks: XxHash3_64,
    /// The block that has begun, of which `begun_bytes` are known.
    begun: XxHash3_64,
    begun_bytes: usize,
}

impl Checksum {
    /// The length of a block in bytes. The last block may be shorter.
    pub(crate) const BLOCK: usize = 64 << 10;

    pub(crate) fn new() -> Self {
        Self { blocks: XxHash3_64::new(), begun: XxHash3_64::new(), begun_bytes: 0 }
    }

    /// Appends bytes. Whole blocks cost least.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(Self::BLOCK - self.begun_bytes));
            if now.len() == Self::BLOCK {
                self.add_block(Self::of_block(now));
            } else {
                self.begun.write(now);
                self.begun_bytes += now.len();
                if self.begun_bytes == Self::BLOCK {
                    self.end_block();
                }
            }
            bytes = rest;
        }
    }

    pub(crate) fn finish(mut self) -> u64 {
        if self.begun_bytes > 0 {
            self.end_block();
        }
        self.blocks.finish()
    }

    fn end_block(&mut self) {
        let begun = std::mem::replace(&mut self.begun, XxHash3_64::new());
        self.add_block(begun.finish());
        self.begun_bytes = 0;
    }

    fn add_block(&mut self, block: u64) {
        self.blocks.write(&block.to_le_bytes());
    }

    /// The checksum of these bytes.
    pub(crate) fn of(bytes: &[u8]) -> u64 {
        Self::of_blocks(bytes.chunks(Self::BLOCK).map(Self::of_block))
    }

    /// The hash of one block, of which the checksum is made.
    pub(crate) fn of_block(block: &[u8]) -> u64 {
        XxHash3_64::oneshot(block)
    }

    /// The checksum of bytes whose blocks have these hashes.
    pub(crate) fn of_blocks(hashes: impl Iterator<Item = u64>) -> u64 {
        let mut checksum = Self::new();
        hashes.for_each(|hash| checksum.add_block(hash));
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

    /// What programs of an earlier build have stored.
    #[test]
    fn its_value_is_fixed() {
        let bytes: Vec<u8> =
            (0..5 * Checksum::BLOCK / 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        assert_eq!(Checksum::of(&[]), 0x2d06_8005_38d3_94c2);
        assert_eq!(Checksum::of(&bytes[..1000]), 0x4d00_8c8e_78d6_acdc);
        assert_eq!(Checksum::of(&bytes), 0x6c49_f17b_d5f0_1c80);
    }

    #[test]
    fn both_implementations_of_the_hash_agree() {
        let bytes: Vec<u8> = (0..9000_u32).map(|at| ((at * at) >> 7).to_le_bytes()[0]).collect();
        for len in (0..2100).chain([4096, 8191, 9000]) {
            let expected = xxhash_rust::xxh3::xxh3_64(&bytes[..len]);
            assert_eq!(XxHash3_64::oneshot(&bytes[..len]), expected, "{len} B");
        }
    }

    #[test]
    fn it_does_not_depend_on_the_parts_in_which_bytes_come() {
        let bytes: Vec<u8> =
            (0..5 * Checksum::BLOCK / 2).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for part in [1000, Checksum::BLOCK - 1, Checksum::BLOCK, Checksum::BLOCK + 1, bytes.len()] {
            let mut checksum = Checksum::new();
            bytes.chunks(part).for_each(|part| checksum.update(part));
            assert_eq!(checksum.finish(), Checksum::of(&bytes), "parts of {part} B");
        }
    }
}
