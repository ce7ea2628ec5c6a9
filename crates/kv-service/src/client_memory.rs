//! The memory that all connections hold together, and its limit.

use rackpool_sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The bytes that connections hold between two turns: pending requests, unread answers, queued
/// transactions, watched keys.
#[derive(Debug)]
pub struct ClientMemory {
    held: AtomicUsize,
    limit: usize,
}

impl ClientMemory {
    /// Nothing is held; the limit is `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { held: AtomicUsize::new(0), limit }
    }

    /// The bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// The limit in bytes. A thread may exceed it by what one turn of a connection adds, until the
    /// largest connections are closed.
    #[must_use]
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether connections must be closed.
    #[inline]
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.held() > self.limit
    }

    /// Accounts for a connection that held `before` bytes and now holds `after`.
    pub(crate) fn change(&self, before: usize, after: usize) {
        match after.checked_sub(before) {
            Some(0) => {}
            Some(more) => drop(self.held.fetch_add(more, Relaxed)),
            None => drop(self.held.fetch_sub(before - after, Relaxed)),
        }
    }
}
