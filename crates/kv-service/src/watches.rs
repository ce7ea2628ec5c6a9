//! The keys that connections of this instance watch, and changes of them by this instance.
//!
//! The version of an entry tells changes by any client. But a key that is absent, created and
//! deleted ends with the version that it had. So changes by this instance are also counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rackpool_sync::atomic::{AtomicUsize, Ordering};

/// The watched keys of an instance.
#[derive(Debug, Default)]
pub struct Watches {
    /// The number of watched keys. While it is 0, a change does not take the lock.
    count: AtomicUsize,
    keys: Mutex<HashMap<Vec<u8>, Watched>>,
}

/// A watched key: the number of its watchers, and of its changes since the first of them.
#[derive(Debug, Default)]
struct Watched {
    watchers: usize,
    changes: u64,
}

impl Watches {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Watched>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a watcher of a key; returns the number of changes noted so far.
    pub fn begin(&self, key: &[u8]) -> u64 {
        let mut keys = self.lock();
        let watched = keys.entry(key.to_vec()).or_default();
        watched.watchers += 1;
        let changes = watched.changes;
        self.count.store(keys.len(), Ordering::Relaxed);
        changes
    }

    /// Removes a watcher of a key.
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

    /// The number of changes noted for a watched key; 0 for other keys.
    #[must_use]
    pub fn changes(&self, key: &[u8]) -> u64 {
        self.lock().get(key).map_or(0, |watched| watched.changes)
    }

    /// Notes a change of a key.
    #[inline]
    pub fn note(&self, key: &[u8]) {
        // Relaxed suffices: `WATCH` was answered after `count` was stored, and a change that must
        // be noted was requested after that answer.
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
