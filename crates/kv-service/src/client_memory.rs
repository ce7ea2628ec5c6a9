//! The memory that all connections hold together, and its bound.

use rackpool_sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that connections hold between two turns: requests that wait, answers that nobody has read,
/// transactions, watched keys.
#[derive(Debug)]
pub struct ClientMemory {
    held: AtomicUsize,
    limit: usize,
}

impl ClientMemory {
    /// Nothing is held; more than `limit` bytes are too many.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { held: AtomicUsize::new(0), limit }
    }

    /// How many bytes are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// How many there may be. A thread may exceed it by what one turn of a connection takes, until
    /// the largest connections have ended.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether connections have to end.
    #[inline]
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.held() > self.limit
    }

    /// A connection holds `after` bytes where it held `before`.
    pub(crate) fn change(&self, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(0) => {}
            Some(more) => drop(self.held.fetch_add(more, Relaxed)),
            None => drop(self.held.fetch_sub(before - after, Relaxed)),
        }
    }
}
