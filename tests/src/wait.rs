//! Waiting for conditions, with deadlines.

use std::time::{Duration, Instant};

/// How long anything may take that has no promise of its own: the machine may be busy.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Looks every millisecond until there is an answer; fails the test when there is none in time.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, look: impl FnMut() -> Option<T>) -> T {
    match try_wait_for(timeout, look) {
        Some(found) => found,
        None => panic!("not within {timeout:?}: {what}"),
    }
}

/// The same for what may fail to come; `None` when it has not come in time.
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

/// Waits until the condition holds.
#[track_caller]
pub fn wait_until(what: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, timeout, || condition().then_some(()));
}
