//! Deadlines and retry delays of operations.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// The limit that [`within`] set for the operations of this thread.
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Calls `work`. Until `work` returns, no operation of the calling thread in any pool waits longer
/// than `limit` from now, even if the pool's own [timeouts](crate::ClientOptions::request_timeout)
/// are longer. The earliest of nested limits applies.
///
/// An operation that reaches the limit fails with
/// [`DaemonError::Unavailable`](crate::DaemonError::Unavailable), or with
/// [`AccessError::PageBusy`](crate::AccessError::PageBusy) if its page is moving. A write or an
/// atomic that fails so may have been executed, or may be executed later. An access that needs no
/// answer from a daemon succeeds even after the limit.
///
/// ```no_run
/// use std::time::Duration;
/// use rackpool_client::{AccessError, GlobalAddr, Pool, within};
///
/// /// The object's first bytes, if they can be had in 5 ms.
/// fn soon(pool: &Pool, addr: GlobalAddr) -> Result<[u8; 64], AccessError> {
///     let mut bytes = [0; 64];
///     within(Duration::from_millis(5), || pool.read(addr, &mut bytes))?;
///     Ok(bytes)
/// }
/// ```
pub fn within<R>(limit: Duration, work: impl FnOnce() -> R) -> R {
    /// Restores the outer limit, also if `work` panics.
    struct Restore(Option<Instant>);

    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }

    let outer = Restore(LIMIT.get());
    // A limit that overflows the clock is no limit.
    let ends = [outer.0, Instant::now().checked_add(limit)];
    LIMIT.set(ends.into_iter().flatten().min());
    work()
}

/// A timeout that starts with the first check: only a check reads the clock, so the many operations
/// that end before do not pay for it.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    timeout: Duration,
    end: Cell<Option<Instant>>,
    /// A deadline that also ends this one.
    outer: Option<&'a Self>,
}

impl<'a> Deadline<'a> {
    /// Ends `timeout` after the first check.
    pub(crate) const fn after(timeout: Duration) -> Self {
        Self { timeout, end: Cell::new(None), outer: None }
    }

    /// Ends `timeout` after the first check, or with `self` if that is earlier.
    pub(crate) const fn within(&'a self, timeout: Duration) -> Self {
        Self { timeout, end: Cell::new(None), outer: Some(self) }
    }

    /// Returns true if the deadline has passed. Reads the clock.
    pub(crate) fn has_passed(&self) -> bool {
        self.left() == Duration::ZERO
    }

    /// Time left. Reads the clock.
    pub(crate) fn left(&self) -> Duration {
        let now = Instant::now();
        let end = self.end.get().unwrap_or_else(|| {
            let end = now + self.timeout;
            LIMIT.get().map_or(end, |limit| limit.min(end))
        });
        self.end.set(Some(end));
        let left = end.saturating_duration_since(now);
        self.outer.map_or(left, |outer| outer.left().min(left))
    }

    /// Like [`Self::has_passed`], but returns false without starting the timeout if it was never
    /// checked.
    pub(crate) fn is_known_to_have_passed(&self) -> bool {
        self.end.get().is_some() && self.has_passed()
    }
}

/// Back-off while another party has to make room: yields the core at first, later sleeps for
/// growing times.
#[derive(Debug, Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    /// Number of pauses that only yield the core.
    const PROMPT: u32 = 64;
    const LEAST: Duration = Duration::from_micros(20);
    /// log2 of the longest sleep over the shortest one; the longest is 1.3 ms.
    const DOUBLINGS: u32 = 6;

    pub(crate) fn wait(&mut self) {
        match self.0.checked_sub(Self::PROMPT) {
            None => std::thread::yield_now(),
            Some(late) => std::thread::sleep(Self::LEAST * (1 << late.min(Self::DOUBLINGS))),
        }
        self.0 = self.0.saturating_add(1);
    }
}

/// Back-off between attempts that depend on another party's progress: the first attempts follow
/// each other at once, later ones after growing pauses.
#[derive(Debug)]
pub(crate) struct Retries {
    deadline: Deadline<'static>,
    tries: Cell<u32>,
}

impl Retries {
    /// Number of retries without a pause. Each attempt itself waits for an answer; yielding the
    /// core as well would give it to a busy thread for some ms.
    const PROMPT: u32 = 4;
    const LEAST: Duration = Duration::from_micros(20);
    /// log2 of the longest pause over the shortest one; the longest is 2.5 ms.
    const DOUBLINGS: u32 = 7;

    /// Allows retries until `timeout` after the first failure.
    pub(crate) const fn within(timeout: Duration) -> Self {
        Self { deadline: Deadline::after(timeout), tries: Cell::new(0) }
    }

    /// Pauses before the next attempt. Returns false if the time is over.
    pub(crate) fn pause(&self) -> bool {
        let tries = self.tries.get();
        self.tries.set(tries.saturating_add(1));
        if self.deadline.has_passed() {
            return false;
        }
        if let Some(late) = tries.checked_sub(Self::PROMPT) {
            std::thread::sleep(Self::LEAST * (1 << late.min(Self::DOUBLINGS)));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_few_and_end() {
        let (retries, began) = (Retries::within(Duration::from_millis(50)), Instant::now());
        let tries = std::iter::from_fn(|| retries.pause().then_some(())).count();
        assert!(began.elapsed() > Duration::from_millis(50));
        assert!((Retries::PROMPT as usize..40).contains(&tries), "{tries}");
    }

    #[test]
    fn time_counts_from_the_first_look() {
        let deadline = Deadline::after(Duration::from_millis(20));
        assert!(!deadline.is_known_to_have_passed());
        std::thread::sleep(Duration::from_millis(30));
        assert!(!deadline.is_known_to_have_passed() && !deadline.has_passed());
        std::thread::sleep(Duration::from_millis(30));
        assert!(deadline.has_passed() && deadline.is_known_to_have_passed());
    }

    #[test]
    fn a_limit_ends_what_begins_within_it_and_nothing_else() {
        let long = Duration::from_secs(1000);
        let ended = || Deadline::after(long).has_passed();
        assert!(within(Duration::ZERO, ended));
        assert!(within(Duration::ZERO, || within(long, ended)), "the outer one ends first");
        assert!(within(long, || within(Duration::ZERO, ended)));
        assert!(!within(long, || {
            within(Duration::ZERO, || ());
            ended()
        }));
        assert!(!within(Duration::MAX, ended));
        let panicked = std::panic::catch_unwind(|| within(Duration::ZERO, || panic!("in work")));
        assert!(panicked.is_err() && !ended());
    }

    #[test]
    fn the_outer_one_ends_the_inner_one() {
        let outer = Deadline::after(Duration::ZERO);
        let inner = outer.within(Duration::from_secs(1000));
        assert!(!inner.is_known_to_have_passed());
        inner.has_passed();
        std::thread::sleep(Duration::from_millis(2));
        assert!(inner.has_passed());
    }
}
