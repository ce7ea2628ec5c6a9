use std::time::Duration;

use rackpool_sync::atomic::{AtomicU64, Ordering};

/// What this program has done with a store since it opened it: counters of all clones of a
/// [`Store`](crate::Store).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Gets that found the object in the own rack, where it was created.
    pub local_gets: u64,
    /// Gets of objects of other racks. Those without a transfer found a replica.
    pub far_gets: u64,
    /// Gets that found no object.
    pub absent_gets: u64,
    /// Objects that were brought from other racks, also those that were gone or had changed
    /// afterwards.
    pub transfers: u64,
    /// Their bytes, with metadata.
    pub transferred_bytes: u64,
    /// Those of them that came from replicas in other racks instead of the objects' own racks.
    pub chained_bytes: u64,
    /// Objects that were sealed.
    pub seals: u64,
    /// Their bytes, with metadata.
    pub sealed_bytes: u64,
    /// Objects that were deleted by [`delete`](crate::Store::delete).
    pub deletes: u64,
    /// Objects and replicas that were evicted, and objects that were deleted because they had
    /// expired.
    pub evictions: u64,
    /// Their memory in bytes.
    pub evicted_bytes: u64,
    /// Objects that made room and were moved to other racks.
    pub moves: u64,
    /// Their bytes, with metadata.
    pub moved_bytes: u64,
    /// Objects that were moved to files.
    pub spills: u64,
    /// Their bytes, with metadata.
    pub spilled_bytes: u64,
    /// Objects that were brought back from files.
    pub restores: u64,
    /// Their bytes, with metadata.
    pub restored_bytes: u64,
    /// Calls of [`wait`](crate::Store::wait).
    pub waits: u64,
    /// The time that they took.
    pub waited: Duration,
}

impl StoreStats {
    /// The counters by their names, the time in microseconds.
    ///
    /// ```
    /// # use rackpool_objects::StoreStats;
    /// let names = StoreStats::default().named().map(|(name, _)| name);
    /// assert_eq!((names[0], names[18]), ("local_gets", "waited_us"));
    /// ```
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 19] {
        let waited_us = u64::try_from(self.waited.as_micros()).unwrap_or(u64::MAX);
        [
            ("local_gets", self.local_gets),
            ("far_gets", self.far_gets),
            ("absent_gets", self.absent_gets),
            ("transfers", self.transfers),
            ("transferred_bytes", self.transferred_bytes),
            ("chained_bytes", self.chained_bytes),
            ("seals", self.seals),
            ("sealed_bytes", self.sealed_bytes),
            ("deletes", self.deletes),
            ("evictions", self.evictions),
            ("evicted_bytes", self.evicted_bytes),
            ("moves", self.moves),
            ("moved_bytes", self.moved_bytes),
            ("spills", self.spills),
            ("spilled_bytes", self.spilled_bytes),
            ("restores", self.restores),
            ("restored_bytes", self.restored_bytes),
            ("waits", self.waits),
            ("waited_us", waited_us),
        ]
    }
}

/// The counters themselves. They order nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) local_gets: Counter,
    pub(crate) far_gets: Counter,
    pub(crate) absent_gets: Counter,
    pub(crate) transfers: Counter,
    pub(crate) transferred_bytes: Counter,
    pub(crate) chained_bytes: Counter,
    pub(crate) seals: Counter,
    pub(crate) sealed_bytes: Counter,
    pub(crate) deletes: Counter,
    pub(crate) evictions: Counter,
    pub(crate) evicted_bytes: Counter,
    pub(crate) moves: Counter,
    pub(crate) moved_bytes: Counter,
    pub(crate) spills: Counter,
    pub(crate) spilled_bytes: Counter,
    pub(crate) restores: Counter,
    pub(crate) restored_bytes: Counter,
    pub(crate) waits: Counter,
    pub(crate) waited_us: Counter,
}

/// A number that all threads of the program add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn stats(&self) -> StoreStats {
        StoreStats {
            local_gets: self.local_gets.get(),
            far_gets: self.far_gets.get(),
            absent_gets: self.absent_gets.get(),
            transfers: self.transfers.get(),
            transferred_bytes: self.transferred_bytes.get(),
            chained_bytes: self.chained_bytes.get(),
            seals: self.seals.get(),
            sealed_bytes: self.sealed_bytes.get(),
            deletes: self.deletes.get(),
            evictions: self.evictions.get(),
            evicted_bytes: self.evicted_bytes.get(),
            moves: self.moves.get(),
            moved_bytes: self.moved_bytes.get(),
            spills: self.spills.get(),
            spilled_bytes: self.spilled_bytes.get(),
            restores: self.restores.get(),
            restored_bytes: self.restored_bytes.get(),
            waits: self.waits.get(),
            waited: Duration::from_micros(self.waited_us.get()),
        }
    }
}
