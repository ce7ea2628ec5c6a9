//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Polls the condition every 2 ms. Returns whether it became true before `timeout`.
pub fn wait_for(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}
