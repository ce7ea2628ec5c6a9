//! A compute node's small cache of remote blocks.

use std::collections::{HashMap, VecDeque};

/// Blocks of one size, and which of them the node has written.
pub(super) struct BlockCache {
    most: usize,
    blocks: HashMap<u64, Block>,
    /// The order in which the blocks came; a block that was used since gets a
    /// second chance.
    order: VecDeque<u64>,
}

struct Block {
    bytes: Vec<u8>,
    is_dirty: bool,
    is_used: bool,
}

/// A block that was evicted, and has been written.
pub(super) struct Evicted {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

impl BlockCache {
    /// A cache of `bytes` bytes in blocks of `block`.
    pub(super) fn new(bytes: u64, block: usize) -> Self {
        let most = usize::try_from(bytes).unwrap_or(usize::MAX) / block;
        Self { most: most.max(1), blocks: HashMap::new(), order: VecDeque::new() }
    }

    /// The bytes of a block, if it is there.
    pub(super) fn get(&mut self, number: u64) -> Option<&[u8]> {
        let block = self.blocks.get_mut(&number)?;
        block.is_used = true;
        Some(&block.bytes)
    }

    /// The bytes of a block that is there, to be written.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut [u8]> {
        let block = self.blocks.get_mut(&number)?;
        (block.is_used, block.is_dirty) = (true, true);
        Some(&mut block.bytes)
    }

    /// Inserts a block that is not there. Returns the evicted one if it was written.
    pub(super) fn insert(&mut self, number: u64, bytes: Vec<u8>) -> Option<Evicted> {
        let evicted = if self.blocks.len() < self.most { None } else { self.evict() };
        self.blocks.insert(number, Block { bytes, is_dirty: false, is_used: false });
        self.order.push_back(number);
        evicted
    }

    fn evict(&mut self) -> Option<Evicted> {
        loop {
            let number = self.order.pop_front()?;
            match self.blocks.get_mut(&number) {
                Some(block) if block.is_used => {
                    block.is_used = false;
                    self.order.push_back(number);
                }
                Some(_) => {
                    let block = self.blocks.remove(&number)?;
                    return block.is_dirty.then_some(Evicted { number, bytes: block.bytes });
                }
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_makes_room_and_what_was_written_is_returned() {
        let mut cache = BlockCache::new(8, 4);
        assert!(cache.insert(1, vec![1; 4]).is_none());
        assert!(cache.insert(2, vec![2; 4]).is_none());
        cache.get_mut(1).unwrap()[0] = 9;
        assert!(cache.insert(3, vec![3; 4]).is_none(), "the second was not written");
        assert!(cache.get(2).is_none());
        assert_eq!(cache.get(3), Some(&[3; 4][..]));
        let evicted = cache.insert(4, vec![4; 4]).unwrap();
        assert_eq!((evicted.number, &evicted.bytes[..]), (1, &[9, 1, 1, 1][..]));
    }
}
