//! Waiting for conditions, with deadlines.

use std::time::{Duration, Instant};

/// The limit of every wait without a promised limit of its own: the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Calls `look` every millisecond until it returns a value; fails the test after `timeout`.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, look: impl FnMut() -> Option<T>) -> T {
    match try_wait_for(timeout, look) {
        Some(found) => found,
        None => panic!("not within {timeout:?}: {what}"),
    }
}

/// As [`wait_for`], but returns `None` after `timeout`.
pub fn try_wait_for<T>(timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the condition holds; fails the test after `timeout`.
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, timeout, || condition().then_some(()));
}

/// As [`wait_until`], but returns false after `timeout`.
pub fn try_wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    try_wait_for(timeout, || condition().then_some(())).is_some()
}
