//! A counter with one writer and many readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit counter on its own pair of cache lines, which avoids false sharing.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// A counter that starts at `value`.
    pub(super) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Returns the value. Writes made before it was [`publish`](Self::publish)ed are visible.
    pub(super) fn get(&self) -> u64 {
        // SYNC: pairs with the store in `SharedCounter::publish`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value. Only the counter's one writer may call it, or callers that hold a lock or
    /// all set the same value.
    pub(super) fn publish(&self, value: u64) {
        // SYNC: pairs with the load in `SharedCounter::get`.
        self.0.store(value, Ordering::Release);
    }

    /// Increments the counter and returns the value before.
    pub(super) fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
