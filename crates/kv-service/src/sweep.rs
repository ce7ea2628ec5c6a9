//! Deleting keys whose time is over and that nobody asks for, and maps that no key names.

use std::time::{Duration, Instant};

use rackpool_kv::Change;
use rackpool_kv::ordered::MapId;
use rackpool_sync::atomic::Ordering;

use crate::failure::Failure;
use crate::shared::Shared;
use crate::store::Store;
use crate::values;

/// How long a step takes at most while few keys have to go, and while many do: 1 % and a quarter of
/// the time between two steps.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(25);
/// How many entries are looked at between two looks at the clock.
const STRIDE: usize = 64;
/// Many: one of so many entries that were looked at.
const MANY: usize = 10;

/// A walk through the table, again and again.
#[derive(Debug, Default)]
pub struct Sweep {
    cursor: u64,
    /// Keys whose time is over, and the maps that they named.
    found: Vec<(Vec<u8>, Option<MapId>)>,
}

impl Sweep {
    /// Goes on for a moment; how many keys it deleted.
    pub fn step(&mut self, store: &mut Store) -> Result<u64, Failure> {
        let begin = Instant::now();
        let (mut seen, mut deleted) = (0, 0);
        loop {
            self.found.clear();
            let found = &mut self.found;
            let scanned = store.keys.scan(self.cursor, STRIDE, |key, entry| {
                seen += 1;
                if entry.form.is_over() {
                    found.push((key.to_vec(), values::map_of(entry.form.kind, entry.value)));
                }
            });
            // What can't be read or deleted now must not keep the rest from being swept.
            self.cursor = match scanned {
                Ok(next) => next,
                Err(error) => {
                    self.cursor = store.keys.scan_past(self.cursor).unwrap_or(0);
                    return Err(error.into());
                }
            };
            for (key, map) in &self.found {
                let done = store.keys.modify(key, |entry, _| {
                    if entry.is_none() { Change::Delete } else { Change::Keep }
                })?;
                deleted += usize::from(done);
                if let Some(map) = map.filter(|_| done) {
                    // Only this key has ever named it. What stays is swept up later.
                    let _ = store.maps.map(map).destroy();
                }
            }
            let limit = if deleted * MANY > seen { LONG } else { SHORT };
            if self.cursor == 0 || begin.elapsed() > limit {
                return Ok(deleted as u64);
            }
        }
    }
}

/// How long the sweep of the maps rests.
const REST: Duration = Duration::from_secs(600);
/// How long it rests at least while the pool is full.
const SHORT_REST: Duration = Duration::from_secs(5);
/// How often it looks whether the service ends.
const LOOK: Duration = Duration::from_millis(50);

/// Deletes maps that no key names, again and again until the service ends.
pub fn sweep_maps(mut store: Store, shared: &Shared) {
    let mut last = Instant::now();
    while !shared.has_to_end() {
        std::thread::sleep(LOOK);
        let rest = if shared.wants_memory.load(Ordering::Relaxed) { SHORT_REST } else { REST };
        if last.elapsed() < rest {
            continue;
        }
        shared.wants_memory.store(false, Ordering::Relaxed);
        let Store { keys, maps, .. } = &mut store;
        let is_named = |key: &[u8], id: MapId| {
            let entry = keys.read(key)?;
            let map = entry.and_then(|entry| values::map_of(entry.form.kind, entry.value));
            Ok::<_, Failure>(map == Some(id))
        };
        match maps.sweep(is_named) {
            Ok(0) => {}
            Ok(nodes) => tracing::info!("{nodes} nodes of maps that no key names are free again"),
            Err(failure) => tracing::warn!("the maps were not swept: {failure}"),
        }
        last = Instant::now();
    }
}
