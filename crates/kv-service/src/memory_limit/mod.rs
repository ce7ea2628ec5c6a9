//! The limit of the memory that the tables' entries take in the pool.

mod counter;
mod evictor;
mod policy;

use std::sync::Arc;

use rackpool_kv::RecentUse;
use rackpool_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

pub use counter::{count, watch_memory};
pub use evictor::{Evicted, Evictor, Room};
pub use policy::EvictionPolicy;

/// The limit, what happens above it, and the estimate that is compared with it.
/// `docs/design/kv-service.md` says what is counted.
#[derive(Debug)]
pub struct MemoryLimit {
    /// In bytes; 0: none.
    limit: AtomicU64,
    /// The index of the policy in [`EvictionPolicy::ALL`].
    policy: AtomicU8,
    /// Set once the entries were counted. The limit holds from then on.
    is_counted: AtomicBool,
    /// The bytes of all entries at the last count, less `growth` at that time. It wraps around.
    base: AtomicU64,
    /// By how many bytes this instance has made the entries grow since its start. It wraps around.
    growth: AtomicU64,
    /// The memory of large strings that arrive and are in no table yet, in bytes.
    pub arriving: Arc<AtomicU64>,
    /// The mean size of an entry at the last count, in bytes.
    mean_bytes: AtomicU64,
    /// When keys were last used through this instance.
    pub uses: Arc<RecentUse>,
}

/// The growth that a thread keeps to itself, in bytes, so that threads seldom write the same word.
const UNSETTLED: u64 = 16 << 10;

impl MemoryLimit {
    /// A limit of `limit` bytes, or none if that is 0.
    #[must_use]
    pub fn new(limit: u64, policy: EvictionPolicy) -> Self {
        let new = Self {
            limit: AtomicU64::new(0),
            policy: AtomicU8::new(0),
            is_counted: AtomicBool::new(false),
            base: AtomicU64::new(0),
            growth: AtomicU64::new(0),
            arriving: Arc::default(),
            mean_bytes: AtomicU64::new(0),
            uses: Arc::new(RecentUse::new(buckets(limit))),
        };
        new.set(limit, policy);
        new
    }

    /// Changes the limit and the policy.
    pub fn set(&self, limit: u64, policy: EvictionPolicy) {
        self.policy.store(policy.index(), Relaxed);
        self.limit.store(limit, Relaxed);
    }

    /// The limit in bytes; 0: none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// What happens above the limit.
    #[must_use]
    pub fn policy(&self) -> EvictionPolicy {
        EvictionPolicy::at(self.policy.load(Relaxed))
    }

    /// The estimated bytes of all entries and of what arrives; `None` before the first count.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        self.is_counted.load(Relaxed).then(|| {
            let used = self.base.load(Relaxed).wrapping_add(self.growth.load(Relaxed));
            // Changes by other instances may make the estimate negative.
            let used = if used.cast_signed() < 0 { 0 } else { used };
            used.saturating_add(self.arriving.load(Relaxed))
        })
    }

    /// Whether the entries take more than the limit.
    #[inline]
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        let limit = self.limit();
        limit != 0 && self.used().is_some_and(|used| used > limit)
    }

    /// Adds a thread's growth if it is large enough, or if `all` is set; returns what is left.
    pub(crate) fn settle(&self, growth: i64, all: bool) -> i64 {
        if growth == 0 || (!all && growth.unsigned_abs() < UNSETTLED) {
            return growth;
        }
        self.growth.fetch_add(growth.cast_unsigned(), Relaxed);
        0
    }

    /// Notes a count: `bytes` of `entries` entries. `growth` is that of this instance in the middle
    /// of the count.
    fn note_count(&self, bytes: u64, entries: u64, growth: u64) {
        self.base.store(bytes.wrapping_sub(growth), Relaxed);
        self.mean_bytes.store(bytes.checked_div(entries).unwrap_or(0), Relaxed);
        self.is_counted.store(true, Relaxed);
    }

    /// The growth of this instance; it wraps around.
    fn growth(&self) -> u64 {
        self.growth.load(Relaxed)
    }
}

/// The number of buckets of [`RecentUse`], 4 B each, for a limit in bytes.
fn buckets(limit: u64) -> usize {
    const DEFAULT: u64 = 1 << 20;
    const LEAST: u64 = 1 << 16;
    const MOST: u64 = 1 << 24;
    let wanted = if limit == 0 { DEFAULT } else { (limit >> 10).clamp(LEAST, MOST) };
    usize::try_from(wanted).unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_never_exceeded_and_none_before_the_first_count() {
        let memory = MemoryLimit::new(0, EvictionPolicy::NoEviction);
        memory.note_count(u64::MAX / 4, 1, 0);
        assert!(!memory.is_exceeded());
        let memory = MemoryLimit::new(100, EvictionPolicy::NoEviction);
        assert_eq!(memory.settle(1_000_000, false), 0);
        assert!(!memory.is_exceeded() && memory.used().is_none());
        memory.note_count(100, 1, memory.growth());
        assert!(!memory.is_exceeded(), "the limit itself may be used");
        memory.settle(1, true);
        assert!(memory.is_exceeded());
    }

    #[test]
    fn the_estimate_is_the_count_and_the_growth_since_its_middle() {
        let memory = MemoryLimit::new(1 << 20, EvictionPolicy::AllkeysLru);
        memory.settle(500, true);
        memory.note_count(10_000, 10, 400);
        assert_eq!(memory.used(), Some(10_100));
        memory.settle(-100_000, true);
        assert_eq!(memory.used(), Some(0), "others have stored what was deleted here");
        memory.settle(95_000, false);
        assert_eq!(memory.used(), Some(5_100));
        // Below the threshold a thread keeps its growth.
        assert_eq!((memory.settle(16_000, false), memory.used()), (16_000, Some(5_100)));
        assert_eq!((memory.settle(-16_000, true), memory.used()), (0, Some(0)));
    }

    #[test]
    fn the_record_of_uses_fits_the_limit() {
        assert_eq!([0, 1, 1 << 30, 1 << 40].map(buckets), [1 << 20, 1 << 16, 1 << 20, 1 << 24]);
    }
}
