use crate::checksum::Checksum;

/// The hashes of the parts of a block, of which the object's checksum is made. Bytes are hashed
/// when they come, while they are in the processor's cache; parts that come in pieces, at the end.
#[derive(Debug)]
pub(super) struct PartHashes {
    bytes: usize,
    parts: Vec<Option<u64>>,
}

impl PartHashes {
    /// For a block of `bytes` bytes, none of which has come.
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

    /// The hashes of all parts of the block, which has these bytes.
    pub(super) fn finish(&self, bytes: &[u8]) -> Vec<u64> {
        let parts = self.parts.iter().zip(bytes.chunks(Checksum::BLOCK));
        parts.map(|(hash, part)| hash.unwrap_or_else(|| Checksum::of_block(part))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_count_whether_they_come_whole_or_not() {
        const BLOCK: usize = Checksum::BLOCK;
        let bytes: Vec<u8> = (0..3 * BLOCK + 5).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut hashes = PartHashes::new(bytes.len());
        for part in [3, 0, 2] {
            let at = part * BLOCK;
            hashes.add(at, &bytes[at..bytes.len().min(at + BLOCK)]);
        }
        // Not whole parts: they are hashed at the end.
        hashes.add(BLOCK, &bytes[BLOCK..BLOCK + 10]);
        hashes.add(BLOCK + 10, &bytes[BLOCK + 10..2 * BLOCK]);
        let all = hashes.finish(&bytes).into_iter();
        assert_eq!(Checksum::of_blocks(all), Checksum::of(&bytes));
        assert_eq!(PartHashes::new(0).finish(&[]), []);
    }
}
