//! Which objects can't be among some others, told without looking at those.

use std::cell::Cell;

/// Eight for each object at most: so one in eight or fewer is looked for in vain.
const BUCKETS: usize = 512;
const BITS: u32 = BUCKETS.ilog2();
/// 2^64 by the golden ratio: it spreads neighbours evenly (Knuth, The Art of Computer Programming
/// vol. 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A counting filter of at most 255 objects: how many of them are in each bucket.
#[derive(Debug)]
pub(super) struct Filter([Cell<u8>; BUCKETS]);

impl Filter {
    #[inline]
    const fn bucket(&self, object: u64) -> &Cell<u8> {
        &self.0[(object.wrapping_mul(SPREAD) >> (u64::BITS - BITS)) as usize]
    }

    /// Counts an object in.
    #[inline]
    pub(super) fn add(&self, object: u64) {
        let bucket = self.bucket(object);
        bucket.set(bucket.get().wrapping_add(1));
    }

    /// Counts an object out that was counted in.
    #[inline]
    pub(super) fn remove(&self, object: u64) {
        let bucket = self.bucket(object);
        bucket.set(bucket.get().wrapping_sub(1));
    }

    /// Whether the object may be among those counted; no is certain.
    #[inline]
    pub(super) fn may_have(&self, object: u64) -> bool {
        self.bucket(object).get() != 0
    }

    /// Counts all out.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|bucket| bucket.set(0));
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::new(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_found_and_little_else() {
        let filter = Filter::default();
        let objects = |from: u64| (from..from + 64).map(|number| number * 64 + (7 << 21));
        objects(0).for_each(|object| filter.add(object));
        assert!(objects(0).all(|object| filter.may_have(object)));
        let wrong = objects(64).chain(objects(5000)).filter(|object| filter.may_have(*object));
        assert!(wrong.count() < 32, "a quarter of them is looked for in vain");
        objects(0).take(63).for_each(|object| filter.remove(object));
        assert!(filter.may_have(63 * 64 + (7 << 21)), "the last one");
        filter.remove(63 * 64 + (7 << 21));
        assert!(!objects(0).any(|object| filter.may_have(object)));
    }
}
