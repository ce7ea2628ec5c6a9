//! Calls for several objects: get, fetch and wait.

use std::time::{Duration, Instant};

use crate::error::StoreError;
use crate::store::Store;
use crate::view::View;

/// The first and the longest pause between two looks for objects.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// A pause is at least this many times as long as the look before it.
const REST: u32 = 9;
/// The same for looks that others wait for.
const BUSY_REST: u32 = 1;

/// The growing pauses between looks at memory that another program will change.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
    rest: u32,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: FIRST_PAUSE, rest: REST }
    }
}

impl Pauses {
    /// Pauses between looks that others wait for: they leave half of a core, not nine tenths.
    pub(crate) const fn busy() -> Self {
        Self { next: FIRST_PAUSE, rest: BUSY_REST }
    }

    /// The pause after a look that has taken this time.
    pub(crate) fn next(&mut self, look: Duration) -> Duration {
        let pause = self.next.max(self.rest * look);
        self.next = LONGEST_PAUSE.min(2 * self.next);
        pause
    }
}

impl Store {
    /// Gets several objects: for each id what [`get`](Self::get) returns.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_many(&self, ids: &[&[u8]]) -> Result<Vec<Option<View>>, StoreError> {
        ids.iter().map(|id| self.get(id)).collect()
    }

    /// Brings objects of other racks into this one, so that later gets find them here, and returns
    /// for each id whether there is such an object.
    ///
    /// # Errors
    /// As [`get`](Self::get). Objects before the one that failed were brought.
    pub fn fetch(&self, ids: &[&[u8]]) -> Result<Vec<bool>, StoreError> {
        ids.iter().map(|id| Ok(self.get(id)?.is_some())).collect()
    }

    /// Waits until there are sealed objects of at least `count` of the ids, or of all if there are
    /// fewer ids than that, or until `timeout` has passed. Returns for each id whether there was an
    /// object at some time during the call.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use rackpool_objects::{Store, StoreError};
    /// fn first_result(store: &Store) -> Result<Option<usize>, StoreError> {
    ///     let results: [&[u8]; 2] = [b"from-worker-0", b"from-worker-1"];
    ///     let found = store.wait(&results, 1, Duration::from_secs(60))?;
    ///     Ok(found.iter().position(|is_there| *is_there))
    /// }
    /// ```
    ///
    /// The call looks for the objects about once a millisecond, more rarely for very many of them,
    /// and uses at most a tenth of a core. With a timeout of zero it looks once.
    ///
    /// # Errors
    /// As [`contains`](Self::contains).
    pub fn wait(
        &self,
        ids: &[&[u8]],
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let begin = Instant::now();
        let found = self.wait_until(ids, count, begin.checked_add(timeout));
        let waited = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.counters.waits.add(1);
        self.shared.counters.waited_us.add(waited);
        found
    }

    fn wait_until(
        &self,
        ids: &[&[u8]],
        count: usize,
        deadline: Option<Instant>,
    ) -> Result<Vec<bool>, StoreError> {
        let (wanted, mut pauses) = (count.min(ids.len()), Pauses::default());
        let mut found = vec![false; ids.len()];
        loop {
            let begin = Instant::now();
            for (id, is_found) in ids.iter().zip(&mut found).filter(|(_, is_found)| !**is_found) {
                *is_found = self.contains(id)?;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if is_over || found.iter().filter(|is_found| **is_found).count() >= wanted {
                return Ok(found);
            }
            let rest = pauses.next(begin.elapsed());
            std::thread::sleep(left.map_or(rest, |left| left.min(rest)));
        }
    }
}
