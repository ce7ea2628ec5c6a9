//! Threads that run until a test ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag that stops threads when it is dropped, so also when a test fails.
#[derive(Debug)]
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
