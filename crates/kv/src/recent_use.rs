//! When keys were last used by the handles of a process.

use std::sync::OnceLock;

use rackpool_sync::atomic::{AtomicU32, Ordering};

use crate::layout::hash::KeyHash;

/// When operations of this process last looked for a key, by buckets of key hashes, in this
/// process's memory. Handles record into it once [`Handle::record_use`](crate::Handle::record_use)
/// was called. Keys in one bucket count as used together.
///
/// ```
/// use rackpool_kv::RecentUse;
///
/// let uses = RecentUse::new(1 << 16);
/// uses.set_time(1);
/// uses.set_time(8);
/// assert_eq!(uses.age(b"never used"), 8);
/// ```
#[derive(Debug)]
pub struct RecentUse {
    /// The current time; 0: nothing is recorded.
    now: AtomicU32,
    buckets: usize,
    /// The time of the last use in each bucket. Allocated when recording begins.
    marks: OnceLock<Box<[AtomicU32]>>,
}

impl RecentUse {
    /// A record with this number of buckets, 4 B each, or up to twice as many. It records nothing
    /// before [`set_time`](Self::set_time).
    #[must_use]
    pub const fn new(buckets: usize) -> Self {
        let buckets = buckets.next_power_of_two();
        Self { now: AtomicU32::new(0), buckets, marks: OnceLock::new() }
    }

    /// Sets the time, in any unit, and begins to record; 0 ends that.
    pub fn set_time(&self, now: u32) {
        if now != 0 {
            self.marks.get_or_init(|| (0..self.buckets).map(|_| AtomicU32::new(0)).collect());
        }
        self.now.store(now, Ordering::Relaxed);
    }

    /// The time since a key of the bucket of `key` was last used; since time 0 if none was.
    #[must_use]
    pub fn age(&self, key: &[u8]) -> u32 {
        let now = self.now.load(Ordering::Relaxed);
        let mark = self.mark(KeyHash::of(key)).map_or(0, |mark| mark.load(Ordering::Relaxed));
        now.saturating_sub(mark)
    }

    /// Records that a key with this hash is used now.
    #[inline]
    pub(crate) fn note(&self, hash: KeyHash) {
        let now = self.now.load(Ordering::Relaxed);
        if now == 0 {
            return;
        }
        // An unchanged mark stays in the caches of all processors.
        if let Some(mark) = self.mark(hash)
            && mark.load(Ordering::Relaxed) != now
        {
            mark.store(now, Ordering::Relaxed);
        }
    }

    #[inline]
    fn mark(&self, hash: KeyHash) -> Option<&AtomicU32> {
        let marks = self.marks.get()?;
        marks.get(hash.bucket_of(marks.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_as_old_as_the_time_since_it() {
        let uses = RecentUse::new(1 << 16);
        uses.note(KeyHash::of(b"before"));
        uses.set_time(5);
        assert_eq!((uses.age(b"before"), uses.age(b"used")), (5, 5), "nothing was recorded");
        uses.note(KeyHash::of(b"used"));
        uses.set_time(8);
        assert_eq!((uses.age(b"before"), uses.age(b"used")), (8, 3));
        uses.note(KeyHash::of(b"used"));
        assert_eq!(uses.age(b"used"), 0);
        uses.set_time(0);
        uses.note(KeyHash::of(b"before"));
        uses.set_time(9);
        assert_eq!((uses.age(b"before"), uses.age(b"used")), (9, 1));
    }

    #[test]
    fn keys_of_one_bucket_are_used_together_and_few_others_are() {
        let uses = RecentUse::new(1000);
        uses.set_time(1);
        (0..100_u32).for_each(|key| uses.note(KeyHash::of(&key.to_le_bytes())));
        let used = |key: &u32| uses.age(&key.to_le_bytes()) == 0;
        assert!((0..100).all(|key| used(&key)));
        let others = (100..10_100).filter(used).count();
        // 100 of 1024 buckets: about 930 of 10,000 keys.
        assert!((700..1200).contains(&others), "{others}");
        let one = RecentUse::new(1);
        one.set_time(7);
        one.note(KeyHash::of(b"a"));
        assert_eq!(one.age(b"b"), 0);
    }
}
