//! A counter that one thread writes and others look at.

use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit counter on its own pair of cache lines, so that counting on one core does not slow
/// another.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// A counter that starts at `value`.
    pub(super) fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The value, and everything that was written before it was [`publish`](Self::publish)ed.
    pub(super) fn get(&self) -> u64 {
        // SYNC: pairs with the store in `SharedCounter::publish`.
        self.0.load(Ordering::Acquire)
    }

    /// Sets the value. For the counter's one writer, under a lock, or where all set the same.
    pub(super) fn publish(&self, value: u64) {
        // SYNC: pairs with the load in `SharedCounter::get`.
        self.0.store(value, Ordering::Release);
    }

    /// Adds one and returns the value before.
    pub(super) fn take(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
