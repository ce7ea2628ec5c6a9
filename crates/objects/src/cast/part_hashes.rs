use crate::checksum::Checksum;

/// The checksum of an object whose blocks come in any order. Bytes are hashed when they come, in
/// parts of the length of which the checksum is made; parts that came otherwise, at the end.
#[derive(Debug)]
pub(super) struct BlockHashes {
    bytes: usize,
    parts: Vec<Option<u64>>,
}

impl BlockHashes {
    /// For an object of `bytes` bytes, none of which has come.
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, parts: vec![None; bytes.div_ceil(Checksum::BLOCK)] }
    }

    /// Hashes the bytes at `at`, if they are one whole part.
    pub(super) fn add(&mut self, at: usize, bytes: &[u8]) {
        let whole = Checksum::BLOCK.min(self.bytes.saturating_sub(at));
        if at.is_multiple_of(Checksum::BLOCK)
            && bytes.len() == whole
            && let Some(part) = self.parts.get_mut(at / Checksum::BLOCK)
        {
            *part = Some(Checksum::of_block(bytes));
        }
    }

    /// The checksum of the object, which has these bytes.
    pub(super) fn finish(&self, bytes: &[u8]) -> u64 {
        let parts = self.parts.iter().zip(bytes.chunks(Checksum::BLOCK));
        Checksum::of_blocks(
            parts.map(|(hash, part)| hash.unwrap_or_else(|| Checksum::of_block(part))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_the_parts_does_not_matter() {
        const BLOCK: usize = Checksum::BLOCK;
        let bytes: Vec<u8> = (0..3 * BLOCK + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut hashes = BlockHashes::new(bytes.len());
        for part in [3, 0, 2] {
            let at = part * BLOCK;
            hashes.add(at, &bytes[at..bytes.len().min(at + BLOCK)]);
        }
        // Not whole parts: they are hashed at the end.
        hashes.add(BLOCK, &bytes[BLOCK..BLOCK + 10]);
        hashes.add(BLOCK + 10, &bytes[BLOCK + 10..2 * BLOCK]);
        assert_eq!(hashes.finish(&bytes), Checksum::of(&bytes));
        assert_eq!(BlockHashes::new(0).finish(&[]), Checksum::of(&[]));
    }
}
