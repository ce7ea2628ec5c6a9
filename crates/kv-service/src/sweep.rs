//! Removal of expired keys, and of maps and large strings that no key names.

use std::time::{Duration, Instant};

use rackpool_kv::ordered::{MapSweep, Swept};
use rackpool_kv::{EntryChange, Recovery, RecoveryStep, Round};
use rackpool_sync::atomic::Ordering;

use crate::failure::Failure;
use crate::shared::ServiceState;
use crate::store::Store;
use crate::values::{self, Named};

/// The longest step while little is to be deleted, and while much is: 1 % and a quarter of the time
/// between two steps.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(25);
/// The number of entries that are read between two looks at the clock.
const STRIDE: usize = 64;
/// Much is to be deleted if more than one entry in this number was.
const MANY: usize = 10;

/// The time between two steps of either sweep.
const TICK: Duration = Duration::from_millis(100);

/// Deletes expired keys until the service ends.
/// `thread` is the place of its metrics.
pub fn sweep_keys(mut store: Store, shared: &ServiceState, thread: usize) {
    let mut sweep = Sweep::anywhere(&store);
    while !shared.has_to_end() {
        std::thread::sleep(TICK);
        match sweep.step(&mut store) {
            Ok(expired) => shared.stats(thread).expired.add(expired),
            Err(failure) if failure.is_forgotten() => shared.end(&failure.to_string()),
            Err(failure) => tracing::debug!("expired keys can't be deleted: {failure}"),
        }
        store.settle(&shared.memory, true);
    }
}

/// A repeated walk through the table of keys, from a random position.
#[derive(Debug)]
struct Sweep {
    round: Round,
    /// Expired keys, and what they named.
    found: Vec<(Vec<u8>, Option<Named>)>,
}

impl Sweep {
    /// Starts at a random position.
    fn anywhere(store: &Store) -> Self {
        Self { round: Round::anywhere(&store.keys), found: Vec::new() }
    }

    /// Runs one step; returns the number of keys deleted.
    fn step(&mut self, store: &mut Store) -> Result<u64, Failure> {
        let begin = Instant::now();
        let (mut seen, mut deleted) = (0, 0);
        loop {
            self.found.clear();
            let found = &mut self.found;
            let scanned = store.keys.scan(self.round.cursor(), STRIDE, |key, entry| {
                seen += 1;
                if entry.form.is_over() {
                    found.push((key.to_vec(), values::named(entry.form.kind, entry.value)));
                }
            });
            // An entry that cannot be read or deleted must not stop the sweep at its place.
            let is_round = match scanned {
                Ok(next) => self.round.go_on(next),
                Err(error) => {
                    self.round.go_on(store.keys.scan_past(self.round.cursor()).unwrap_or(0));
                    return Err(error.into());
                }
            };
            for (key, named) in &self.found {
                let done = store.keys.modify(key, |entry, _| {
                    if entry.is_none() { EntryChange::Delete } else { EntryChange::Keep }
                })?;
                deleted += usize::from(done);
                if let Some(named) = named.filter(|_| done) {
                    // Only this key ever named it.
                    store.destroy(named);
                }
            }
            let limit = if deleted * MANY > seen { LONG } else { SHORT };
            if is_round || begin.elapsed() > limit {
                return Ok(deleted as u64);
            }
        }
    }
}

/// The pause after a round, unless the pool is full.
const REST: Duration = Duration::from_secs(5);

/// A repeated walk through the node table and all records of transactions.
#[derive(Debug)]
struct MapsSweep {
    maps: MapSweep,
    records: Recovery,
    /// Whether the round is complete: of the maps, and of the records.
    is_round: [bool; 2],
    /// The first round is fast, since a killed instance may have left maps and records.
    is_first: bool,
    rests_until: Option<Instant>,
}

impl MapsSweep {
    fn new(store: &mut Store) -> Self {
        Self {
            maps: MapSweep::anywhere(&store.maps),
            records: Recovery::anywhere(&mut store.keys),
            is_round: [false; 2],
            is_first: true,
            rests_until: None,
        }
    }

    /// Runs one step, or does nothing during the pause. `wants_memory`: a command found the pool
    /// full.
    fn step(&mut self, store: &mut Store, wants_memory: bool) -> Result<(), Failure> {
        let begin = Instant::now();
        if self.rests_until.is_some_and(|until| begin < until) && !wants_memory {
            return Ok(());
        }
        self.rests_until = None;
        let (mut seen, mut deleted) = (0, 0);
        loop {
            if !self.is_round[0] {
                let swept = self.sweep_maps(store)?;
                (seen, deleted) = (seen + swept.seen, deleted + swept.deleted);
                self.is_round[0] = swept.is_round;
            }
            if !self.is_round[1] {
                let Store { keys, maps, .. } = store;
                let RecoveryStep { cleared, is_round } =
                    self.records.step(&mut [keys, maps.handle_mut()], STRIDE)?;
                (deleted, self.is_round[1]) = (deleted + cleared, is_round);
            }
            if self.is_round == [true; 2] {
                (self.is_round, self.is_first) = ([false; 2], false);
                self.rests_until = Some(Instant::now() + REST);
                break;
            }
            let is_fast = self.is_first || wants_memory || deleted * MANY as u64 > seen;
            if begin.elapsed() > if is_fast { LONG } else { SHORT } {
                break;
            }
        }
        if deleted > 0 {
            tracing::debug!(
                "freed {deleted} unused nodes of ordered maps, strings and records of transactions"
            );
        }
        Ok(())
    }

    /// Deletes the nodes of maps, and large strings, that no key names.
    fn sweep_maps(&mut self, store: &mut Store) -> Result<Swept, Failure> {
        let Store { keys, maps, .. } = store;
        let mut swept = self.maps.step(maps, STRIDE, |key, id| {
            let entry = keys.read(key)?;
            let map = entry.and_then(|entry| values::map_of(entry.form.kind, entry.value));
            Ok::<_, Failure>(map == Some(id))
        })?;
        for key in self.maps.others() {
            (swept.seen, swept.deleted) =
                (swept.seen + 1, swept.deleted + u64::from(store.sweep_string(key)?));
        }
        Ok(swept)
    }
}

/// Deletes maps and large strings that no key names, and abandoned locks and records, until the
/// service ends.
pub fn sweep_maps(mut store: Store, shared: &ServiceState) {
    let mut sweep = MapsSweep::new(&mut store);
    while !shared.has_to_end() {
        std::thread::sleep(TICK);
        let wants_memory = shared.wants_memory.swap(false, Ordering::Relaxed);
        if let Err(failure) = sweep.step(&mut store, wants_memory) {
            tracing::debug!("unused nodes of ordered maps can't be freed: {failure}");
        }
        store.settle(&shared.memory, true);
    }
}
