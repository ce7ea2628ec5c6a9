use crate::budget::{Budget, BytesInFlight};
use rackpool_fabric::{RegionId, RemoteRegion};

use crate::Place;

/// Alignment of blocks in bytes: a cache line, so that neighbouring blocks share none.
const GRANULE: u64 = 64;
const LEAST_BYTES: u64 = 256 << 10;
const MOST_BYTES: u64 = 64 << 20;
/// Size of the arena in bytes if the cache size is unknown.
const DEFAULT_BYTES: u64 = 1 << 20;

/// Answers may use the last of this number of equal parts of the arena; data to be read, any part.
const PARTS: u64 = 4;

/// Allocator of blocks in an exported region. It manages offsets only; the bytes are elsewhere.
///
/// The data of an answer stays in its block until the peer has read it, and the peer needs a block
/// to read into. To keep two racks that answer each other from waiting for each other's blocks,
/// answers may use only the last quarter: blocks in the rest are always freed eventually, so there
/// is room to read.
#[derive(Debug)]
pub struct Arena {
    region: RegionId,
    export: RemoteRegion,
    bytes: u64,
    /// Offset and length of each free part in bytes, sorted by offset; no two are adjacent. There
    /// is at most one more than blocks in use, and mostly just one.
    free: Vec<(u64, u64)>,
    /// The bytes of the blocks in use.
    used: Budget,
}

/// A block of an [`Arena`] in use. Dropping it does not free it, since a peer may still use it:
/// the owner must give it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stays in use until it is given back"]
pub struct Block {
    offset: u64,
    len: u32,
}

impl Block {
    /// Offset in the arena, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Requested length, in bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Always false: a block has at least one byte.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn taken(&self) -> u64 {
        u64::from(self.len).next_multiple_of(GRANULE)
    }
}

impl Arena {
    /// The size, in bytes, for which data in flight is still cached when it is used:
    /// `device_share`, the part of the last-level cache into which devices write, clamped to 256
    /// KiB to 64 MiB; 1 MiB if it is unknown (0). The size is larger if needed to answer with data
    /// of `longest` bytes.
    #[must_use]
    pub fn bytes_for(device_share: u64, longest: u64) -> u64 {
        let bytes = match device_share {
            0 => DEFAULT_BYTES,
            share => share.clamp(LEAST_BYTES, MOST_BYTES) & !(LEAST_BYTES - 1),
        };
        bytes.max(longest.next_multiple_of(GRANULE) * PARTS)
    }

    /// An arena in the first `bytes` bytes of a region, all free.
    #[must_use]
    pub fn new(region: RegionId, export: RemoteRegion, bytes: u64) -> Self {
        let bytes = bytes & !(GRANULE - 1);
        let free = if bytes == 0 { Vec::new() } else { vec![(0, bytes)] };
        Self { region, export, bytes, free, used: Budget::new(bytes) }
    }

    /// The region's id in this side's fabric.
    #[must_use]
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// Its size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Free space, in bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(_, room)| room).sum()
    }

    /// The bytes of its blocks.
    #[must_use]
    pub const fn in_flight(&self) -> BytesInFlight {
        self.used.bytes()
    }

    /// The longest data, in bytes, for which a block to read into becomes free eventually,
    /// whatever blocks answers use.
    #[must_use]
    pub const fn most_read(&self) -> u64 {
        (self.bytes - self.bytes / PARTS) & !(GRANULE - 1)
    }

    /// Takes a block of `len` bytes for data to be read, or to be written by the peer. Returns
    /// `None` if there is no room, or if `len` is 0.
    pub fn take(&mut self, len: u32) -> Option<Block> {
        let block = Block { offset: 0, len };
        let wanted = block.taken();
        let at = self.free.iter().position(|(_, room)| *room >= wanted)?;
        let (offset, _) = *self.free.get(at)?;
        self.cut_out(at, Block { offset, ..block })
    }

    /// Takes a block of `len` bytes for the data of an answer. Returns `None` if the part for
    /// answers has no room, or if `len` is 0.
    pub fn take_for_answer(&mut self, len: u32) -> Option<Block> {
        let block = Block { offset: 0, len };
        let (first, wanted) = (self.most_read(), block.taken());
        let fits = |(start, room): &(u64, u64)| first.max(*start) + wanted <= start + room;
        let at = self.free.iter().rposition(fits)?;
        let (start, room) = *self.free.get(at)?;
        self.cut_out(at, Block { offset: start + room - wanted, ..block })
    }

    /// Removes a block from the free part that contains it.
    fn cut_out(&mut self, at: usize, block: Block) -> Option<Block> {
        let (start, end) = (block.offset, block.offset + block.taken());
        let part = self.free.get_mut(at).filter(|_| start < end)?;
        let (before, room) = *part;
        let after = (end, before + room - end);
        match (before < start, after.1 > 0) {
            (true, is_split) => {
                part.1 = start - before;
                if is_split {
                    self.free.insert(at + 1, after);
                }
            }
            (false, true) => *part = after,
            (false, false) => drop(self.free.remove(at)),
        }
        self.used.take(block.taken());
        Some(block)
    }

    /// Frees a block. The caller must ensure that no party uses it any more.
    pub fn give_back(&mut self, block: Block) {
        let (start, len) = (block.offset, block.taken());
        self.used.give_back(len);
        let at = self.free.partition_point(|(offset, _)| *offset < start);
        let (before, after) = self.free.split_at_mut(at);
        let before = before.last_mut().filter(|(offset, room)| *offset + *room == start);
        let after = after.first_mut().filter(|(offset, _)| *offset == start + len);
        match (before, after) {
            (Some(before), Some(after)) => {
                before.1 += len + after.1;
                self.free.remove(at);
            }
            (Some(before), None) => before.1 += len,
            (None, Some(after)) => *after = (start, len + after.1),
            (None, None) => self.free.insert(at, (start, len)),
        }
    }

    /// The place of a block.
    #[must_use]
    pub const fn place(&self, block: &Block) -> Place {
        Place { region: self.region, export: self.export, offset: block.offset, len: block.len }
    }

    /// The first `len` bytes of the arena, regardless of the blocks in use.
    #[must_use]
    pub fn beginning(&self, len: u32) -> Place {
        let len = u32::try_from(self.bytes).unwrap_or(u32::MAX).min(len);
        Place { region: self.region, export: self.export, offset: 0, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arena(bytes: u64) -> Arena {
        Arena::new(RegionId(0), RemoteRegion(1), bytes)
    }

    #[test]
    fn the_size_follows_the_cache() {
        assert_eq!(Arena::bytes_for(0, 0), 1 << 20);
        assert_eq!(Arena::bytes_for(1, 0), 256 << 10);
        assert_eq!(Arena::bytes_for((4 << 20) + 4096, 1 << 20), 4 << 20);
        assert_eq!(Arena::bytes_for(u64::MAX, 0), 64 << 20);
    }

    #[test]
    fn the_longest_data_can_be_answered_and_read() {
        for longest in [1_000_000, 8 << 20] {
            let mut arena = arena(Arena::bytes_for(1, longest.into()));
            assert!(arena.take_for_answer(longest).is_some());
            assert!(arena.take(longest).is_some());
        }
    }

    #[test]
    fn a_block_has_its_bytes_and_an_empty_one_is_none() {
        let mut arena = arena(256);
        assert_eq!(arena.take(0), None);
        assert_eq!(arena.take(257), None);
        let all = arena.take(193).unwrap();
        assert_eq!((all.len(), all.is_empty(), arena.take(1)), (193, false, None));
        arena.give_back(all);
        assert_eq!(arena.free_bytes(), 256);
    }

    #[test]
    fn answers_leave_room_to_read_whatever_was_read_before() {
        let mut arena = arena(1024);
        assert_eq!(arena.most_read(), 768);
        assert_eq!((arena.take_for_answer(0), arena.take_for_answer(257)), (None, None));
        // Space in the part for answers that is in use for reading is not available to answers.
        let read: Vec<_> = [700, 128].map(|len| arena.take(len).unwrap()).into();
        let answers: Vec<_> = std::iter::from_fn(|| arena.take_for_answer(64)).collect();
        assert_eq!(answers.iter().map(Block::offset).collect::<Vec<_>>(), [960, 896, 832]);
        read.into_iter().for_each(|block| arena.give_back(block));
        let answers: Vec<_> = std::iter::from_fn(|| arena.take_for_answer(64)).collect();
        assert_eq!(answers.iter().map(Block::offset).collect::<Vec<_>>(), [768]);
        assert_eq!(arena.take(769), None);
        assert_eq!(arena.take(768).unwrap().offset(), 0);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_room_comes_back(
            steps in proptest::collection::vec((0_u32..500, any::<u8>()), 1..200),
        ) {
            let mut arena = arena(4096);
            let mut used: Vec<Block> = Vec::new();
            for (len, which) in steps {
                let is_answer = which >= 200;
                if which < 100 && !used.is_empty() {
                    let at = usize::from(which) % used.len();
                    arena.give_back(used.swap_remove(at));
                } else if let Some(block) =
                    if is_answer { arena.take_for_answer(len) } else { arena.take(len) }
                {
                    let end = block.offset + block.taken();
                    prop_assert!(!is_answer || block.offset >= 3072);
                    prop_assert!(end <= 4096 && block.offset % GRANULE == 0);
                    for other in &used {
                        let apart = end <= other.offset || other.offset + other.taken() <= block.offset;
                        prop_assert!(apart, "{block:?} and {other:?}");
                    }
                    used.push(block);
                }
                let taken: u64 = used.iter().map(Block::taken).sum();
                prop_assert_eq!(arena.free_bytes(), 4096 - taken);
            }
            used.into_iter().for_each(|block| arena.give_back(block));
            prop_assert_eq!(arena.free, vec![(0, 4096)]);
        }
    }
}
