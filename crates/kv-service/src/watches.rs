//! The keys that connections of this instance watch, and what happens to them here.
//!
//! What changed a key is told by its version, whoever did it; but one that is absent, made and
//! deleted is as it was. So changes by this instance are counted besides.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rackpool_sync::atomic::{AtomicUsize, Ordering};

/// All watched keys of an instance.
#[derive(Debug, Default)]
pub struct Watches {
    /// How many keys there are, so that changes cost nothing while there are none.
    count: AtomicUsize,
    keys: Mutex<HashMap<Vec<u8>, Watched>>,
}

/// A key that somebody watches.
#[derive(Debug, Default)]
struct Watched {
    watchers: usize,
    changes: u64,
}

impl Watches {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One watcher of a key more; how often it has been changed so far.
    pub fn begin(&self, key: &[u8]) -> u64 {
        let mut keys = self.lock();
        let watched = keys.entry(key.to_vec()).or_default();
        watched.watchers += 1;
        let changes = watched.changes;
        self.count.store(keys.len(), Ordering::Relaxed);
        changes
    }

    /// One watcher less.
    pub fn end(&self, key: &[u8]) {
        let mut keys = self.lock();
        if let Some(watched) = keys.get_mut(key) {
            watched.watchers -= 1;
            if watched.watchers == 0 {
                keys.remove(key);
            }
        }
        self.count.store(keys.len(), Ordering::Relaxed);
    }

    /// How often a watched key has been changed so far.
    #[must_use]
    pub fn changes(&self, key: &[u8]) -> u64 {
        self.lock().get(key).map_or(0, |watched| watched.changes)
    }

    /// A key was changed.
    #[inline]
    pub fn note(&self, key: &[u8]) {
        // Whoever has been told that its key is watched has told that before it asks for a change.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.note_if_watched(key);
        }
    }

    #[cold]
    fn note_if_watched(&self, key: &[u8]) {
        if let Some(watched) = self.lock().get_mut(key) {
            watched.changes += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_as_long_as_somebody_watches() {
        let watches = Watches::default();
        watches.note(b"a");
        assert_eq!(watches.begin(b"a"), 0);
        watches.note(b"a");
        watches.note(b"b");
        assert_eq!((watches.begin(b"a"), watches.changes(b"b")), (1, 0));
        watches.end(b"a");
        watches.note(b"a");
        assert_eq!(watches.changes(b"a"), 2);
        watches.end(b"a");
        assert_eq!(watches.count.load(Ordering::Relaxed), 0);
        assert_eq!(watches.begin(b"a"), 0);
    }
}
