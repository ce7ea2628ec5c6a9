//! The data ring: memory for the bytes of requests that leave the rack. A request entry refers to
//! one block here; blocks have any length.
//!
//! Only the client allocates. The allocator's state is in the client's own memory, so a faulty or
//! killed peer cannot damage it, and the bytes are freed with the client's file. Any thread takes
//! and returns blocks, in any order. Blocks are taken at the tail of the ring; the head moves over
//! returned blocks.
//!
//! ```text
//!            head                     tail
//!  +---------+------+--------+-------+----------+
//!  |  free   | used | given  | used  |  free    |   positions grow without end; a block never
//!  +---------+------+--------+-------+----------+   wraps: a rest too short for it is skipped
//! ```

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Alignment of blocks in bytes: one cache line, so that neighbouring blocks share none.
pub const GRANULE: u64 = 64;

/// The allocator of a data ring.
#[derive(Debug)]
pub struct DataRing {
    /// For each granule, the last returned block that started there.
    marks: Box<[AtomicU64]>,
    /// Position behind the last taken block. Positions count granules and never wrap around.
    tail: AtomicU64,
    /// Position before which all blocks have been returned.
    head: AtomicU64,
}

/// A block in use. Dropping it does not return it, because a daemon may still write there.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stays in use until it is given back"]
pub struct DataBlock {
    position: u64,
    granules: u64,
    offset: u64,
}

/// A returned block, stored at the granule where it started.
///
/// ```text
///  63      62        40 39         0
/// +-------+------------+------------+
/// | given | granules   | position   |
/// +-------+------------+------------+
/// ```
#[derive(Clone, Copy)]
struct ReturnedBlock(u64);

impl ReturnedBlock {
    const GIVEN_BACK: u64 = 1 << 63;
    const POSITION_BITS: u32 = 40;
    const POSITION: u64 = (1 << Self::POSITION_BITS) - 1;

    const fn given_back(position: u64, granules: u64) -> Self {
        Self(Self::GIVEN_BACK | granules << Self::POSITION_BITS | position & Self::POSITION)
    }

    const fn is_given_back(self, position: u64) -> bool {
        self.0 & Self::GIVEN_BACK != 0 && self.0 & Self::POSITION == position & Self::POSITION
    }

    const fn granules(self) -> u64 {
        (self.0 & !Self::GIVEN_BACK) >> Self::POSITION_BITS
    }
}

impl DataBlock {
    /// Offset of the block in the data ring, in bytes.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}

impl DataRing {
    /// A data ring of `bytes` bytes, at most 256 MiB, all free.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let granules = (bytes / GRANULE).min((1 << 22) - 1);
        let marks = (0..granules).map(|_| AtomicU64::new(0)).collect();
        Self { marks, tail: AtomicU64::new(0), head: AtomicU64::new(0) }
    }

    const fn granules(&self) -> u64 {
        self.marks.len() as u64
    }

    /// Length in bytes of the longest possible block.
    #[must_use]
    pub const fn longest(&self) -> u64 {
        self.granules() * GRANULE
    }

    fn mark(&self, position: u64) -> Option<&AtomicU64> {
        let index = position.checked_rem(self.granules())?;
        self.marks.get(usize::try_from(index).ok()?)
    }

    /// Takes a block of at least `bytes` bytes. Returns `None` if the ring has no room for it now.
    pub fn take(&self, bytes: u64) -> Option<DataBlock> {
        let granules = bytes.div_ceil(GRANULE).max(1);
        if granules > self.granules() {
            return None;
        }
        let mut position = self.tail.load(Ordering::Relaxed);
        loop {
            let left = self.granules() - position % self.granules();
            // The rest before the end of the ring is too short: it is skipped and counts as
            // returned.
            let is_skip = left < granules;
            let count = if is_skip { left } else { granules };
            let end = position + count;
            // SYNC: pairs with the step in `reclaim`: no thread uses the bytes before the head.
            if end.wrapping_sub(self.head.load(Ordering::Acquire)) > self.granules() {
                let now = self.tail.load(Ordering::Relaxed);
                if now == position && !self.reclaim() {
                    return None;
                }
                position = now;
                continue;
            }
            let took = self.tail.compare_exchange_weak(
                position,
                end,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match took {
                Ok(_) if is_skip => {
                    self.set_given_back(position, count);
                    position = end;
                }
                Ok(_) => {
                    let offset = position % self.granules() * GRANULE;
                    return Some(DataBlock { position, granules, offset });
                }
                Err(found) => position = found,
            }
        }
    }

    /// Returns a block. No party may read or write there any more.
    pub fn give_back(&self, block: DataBlock) {
        self.set_given_back(block.position, block.granules);
        self.reclaim();
    }

    fn set_given_back(&self, position: u64, granules: u64) {
        if let Some(mark) = self.mark(position) {
            // SYNC: pairs with the load in `reclaim`: the owner no longer uses the bytes.
            mark.store(ReturnedBlock::given_back(position, granules).0, Ordering::Release);
        }
    }

    /// Moves the head over returned blocks. Returns true if it moved.
    fn reclaim(&self) -> bool {
        let mut moved = false;
        loop {
            let head = self.head.load(Ordering::Relaxed);
            let Some(mark) = self.mark(head) else { return moved };
            // SYNC: pairs with the store in `set_given_back`.
            let mark = ReturnedBlock(mark.load(Ordering::Acquire));
            if !mark.is_given_back(head) {
                return moved;
            }
            // No thread changes this mark before the head has passed it, and the head never returns
            // to a position. A thread whose exchange succeeds has therefore read the right mark.
            let next = head + mark.granules();
            // SYNC: pairs with the load in `take`.
            moved |=
                self.head.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn overlap(a: &DataBlock, b: &DataBlock) -> bool {
        let end = |block: &DataBlock| block.offset + block.granules * GRANULE;
        a.offset < end(b) && b.offset < end(a)
    }

    #[test]
    fn a_block_never_wraps_and_the_ring_comes_round() {
        let ring = DataRing::new(8 * GRANULE);
        for _ in 0..100 {
            let first = ring.take(3 * GRANULE).unwrap();
            let second = ring.take(2 * GRANULE + 1).unwrap();
            assert!(!overlap(&first, &second));
            assert!(second.offset() + 3 * GRANULE <= ring.longest());
            // Returned out of order: the second block is free only once the first is.
            ring.give_back(second);
            ring.give_back(first);
        }
    }

    #[test]
    fn what_can_never_fit_and_what_does_not_fit_now_are_refused() {
        let ring = DataRing::new(4 * GRANULE);
        assert_eq!(ring.longest(), 4 * GRANULE);
        assert_eq!(ring.take(4 * GRANULE + 1), None);
        let all = ring.take(4 * GRANULE).unwrap();
        assert_eq!(ring.take(1), None);
        ring.give_back(all);
        assert!(ring.take(0).is_some());
        assert_eq!(DataRing::new(0).take(1), None);
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_ranges(steps in proptest::collection::vec((0_u64..1500, 0_usize..6), 1..400)) {
            let ring = DataRing::new(4096);
            let mut held: Vec<DataBlock> = Vec::new();
            for (bytes, back) in steps {
                if let Some(block) = ring.take(bytes) {
                    prop_assert!(block.offset % GRANULE == 0);
                    prop_assert!(block.offset + bytes <= 4096);
                    prop_assert!(held.iter().all(|other| !overlap(&block, other)));
                    held.push(block);
                } else {
                    prop_assert!(!held.is_empty(), "nothing is held and nothing is free");
                }
                if back < held.len() {
                    ring.give_back(held.swap_remove(back));
                }
            }
            held.drain(..).for_each(|block| ring.give_back(block));
            prop_assert!(ring.take(2048).is_some(), "everything came back");
        }
    }

    /// The model of the ring: an endless strip of granules, of which those from `head` to `tail`
    /// are in use. The model tracks each granule separately.
    struct Strip {
        all: u64,
        head: u64,
        /// For each granule from the head on: true if it was returned.
        given_back: VecDeque<bool>,
    }

    impl Strip {
        fn tail(&self) -> u64 {
            self.head + self.given_back.len() as u64
        }

        fn append(&mut self, granules: u64, is_given_back: bool) -> bool {
            let fits = self.given_back.len() as u64 + granules <= self.all;
            if fits {
                (0..granules).for_each(|_| self.given_back.push_back(is_given_back));
                self.pass();
            }
            fits
        }

        fn pass(&mut self) {
            while self.given_back.front() == Some(&true) {
                self.given_back.pop_front();
                self.head += 1;
            }
        }

        /// Returns the position of a block of `granules` granules. A rest that is skipped for it
        /// stays skipped even if there is no room for the block itself.
        fn take(&mut self, granules: u64) -> Option<u64> {
            let left = self.all - self.tail() % self.all;
            if granules > self.all || (left < granules && !self.append(left, true)) {
                return None;
            }
            let start = self.tail();
            self.append(granules, false).then_some(start)
        }

        fn give_back(&mut self, start: u64, granules: u64) {
            for at in start..start + granules {
                let index = usize::try_from(at - self.head).unwrap();
                self.given_back[index] = true;
            }
            self.pass();
        }
    }

    proptest! {
        /// The ring places and refuses blocks exactly like the strip of granules.
        #[test]
        fn behaves_like_a_strip_of_granules(
            all in 1_u64..40,
            steps in proptest::collection::vec((any::<bool>(), 0_u64..45 * GRANULE, any::<usize>()), 1..300),
        ) {
            let ring = DataRing::new(all * GRANULE);
            let mut strip = Strip { all, head: 0, given_back: VecDeque::new() };
            let mut held: Vec<(DataBlock, u64, u64)> = Vec::new();
            for (is_take, bytes, which) in steps {
                if is_take {
                    // Mostly a size that can fit.
                    let bytes = if which % 4 == 0 { bytes } else { bytes % (all * GRANULE / 2 + 1) };
                    let granules = bytes.div_ceil(GRANULE).max(1);
                    let (found, expected) = (ring.take(bytes), strip.take(granules));
                    let offset = expected.map(|start| start % all * GRANULE);
                    prop_assert_eq!(found.as_ref().map(DataBlock::offset), offset);
                    held.extend(found.zip(expected).map(|(b, start)| (b, start, granules)));
                } else if !held.is_empty() {
                    let (block, start, granules) = held.swap_remove(which % held.len());
                    ring.give_back(block);
                    strip.give_back(start, granules);
                }
            }
        }
    }

    #[test]
    fn threads_never_hold_the_same_bytes() {
        let ring = DataRing::new(64 * GRANULE);
        let owners: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for thread in 1..=4_u64 {
                let (ring, owners) = (&ring, &owners);
                scope.spawn(move || {
                    let mut done = 0;
                    while done < 20_000 {
                        let Some(block) = ring.take((done * thread % 9 + 1) * GRANULE) else {
                            std::thread::yield_now();
                            continue;
                        };
                        let first = usize::try_from(block.offset / GRANULE).unwrap();
                        let count = usize::try_from(block.granules).unwrap();
                        let cells = &owners[first..first + count];
                        assert!(cells.iter().all(|cell| cell.swap(thread, Ordering::Relaxed) == 0));
                        assert!(cells.iter().all(|cell| cell.swap(0, Ordering::Relaxed) == thread));
                        ring.give_back(block);
                        done += 1;
                    }
                });
            }
        });
    }
}
