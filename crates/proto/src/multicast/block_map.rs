//! The set of blocks that a rack has.

use alloc::vec;
use alloc::vec::Vec;

use bincode::{Decode, Encode};

use super::Block;

/// Blocks of a word of the map.
pub const WORD_BLOCKS: u32 = 64;

/// The blocks of one object that a rack has. In memory it is an array of words, block 0 in the
/// lowest bit of the first. A rack sets a bit after the bytes of the block are in their place.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct BlockMap {
    blocks: u32,
    words: Vec<u64>,
}

impl BlockMap {
    /// A map without a block.
    #[must_use]
    pub fn empty(blocks: u32) -> Self {
        Self { blocks, words: vec![0; blocks.div_ceil(WORD_BLOCKS) as usize] }
    }

    /// A map with all blocks.
    #[must_use]
    pub fn full(blocks: u32) -> Self {
        let mut map = Self::empty(blocks);
        (0..).zip(&mut map.words).for_each(|(index, word)| *word = valid_bits(blocks, index));
        map
    }

    /// The map with these words. Bits beyond the last block are ignored, missing words are 0.
    #[must_use]
    pub fn from_words(blocks: u32, words: &[u64]) -> Self {
        let mut map = Self::empty(blocks);
        for (index, word) in (0..).zip(words) {
            map.add_word(index, *word);
        }
        map
    }

    /// The words, as they lie in memory.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The number of blocks of the object.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Index of the word that holds a block's bit.
    #[must_use]
    pub const fn word_of(block: Block) -> u32 {
        block.0 / WORD_BLOCKS
    }

    /// Returns true if the map has the block.
    #[must_use]
    pub fn has(&self, block: Block) -> bool {
        let word = self.words.get(Self::word_of(block) as usize);
        word.is_some_and(|word| (word >> (block.0 % WORD_BLOCKS)) & 1 == 1)
    }

    /// Adds a block. A block that the object does not have is ignored.
    pub fn add(&mut self, block: Block) {
        self.add_word(Self::word_of(block), 1 << (block.0 % WORD_BLOCKS));
    }

    /// Adds the blocks of a word. Bits beyond the last block are ignored.
    pub fn add_word(&mut self, index: u32, bits: u64) {
        let valid = valid_bits(self.blocks, index);
        if let Some(word) = self.words.get_mut(index as usize) {
            *word |= bits & valid;
        }
    }

    /// Adds the blocks of another map.
    pub fn add_all(&mut self, other: &Self) {
        (0..).zip(&other.words).for_each(|(index, word)| self.add_word(index, *word));
    }

    /// The number of blocks in the map.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns true if the map has all blocks.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count() == self.blocks
    }

    /// The blocks that the map lacks, in order.
    pub fn missing(&self) -> impl Iterator<Item = Block> {
        (0..self.blocks).map(Block).filter(|block| !self.has(*block))
    }
}

/// The bits of a word that stand for blocks of the object.
const fn valid_bits(blocks: u32, index: u32) -> u64 {
    let before = index.saturating_mul(WORD_BLOCKS);
    match blocks.saturating_sub(before) {
        left if left >= WORD_BLOCKS => u64::MAX,
        left => (1 << left) - 1,
    }
}
