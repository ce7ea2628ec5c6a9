//! When an operation has taken too long.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// When operations of this thread end at the latest.
    static LIMIT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Calls `work`. Until it returns, no operation of the calling thread waits beyond `limit` from
/// now, whichever pool it uses, even if the pool's own
/// [timeouts](crate::ClientOptions::request_timeout) are longer. Of nested limits the earliest
/// counts.
///
/// An operation that reaches the limit fails with
/// [`DaemonError::Unavailable`](crate::DaemonError::Unavailable), or with
/// [`AccessError::PageBusy`](crate::AccessError::PageBusy) if its page moves. A write or an atomic
/// that fails so may have happened, or may happen later. An access that needs no answer from a
/// daemon is carried out even after the limit.
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
    /// Also where `work` panics.
    struct Restore(Option<Instant>);

    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }

    let outer = Restore(LIMIT.get());
    // A limit beyond all time is none.
    let ends = [outer.0, Instant::now().checked_add(limit)];
    LIMIT.set(ends.into_iter().flatten().min());
    work()
}

/// An end of timeout that asks the clock only when somebody wants to know: what is done before
/// that, like most operations, does not pay for it. So the time counts from the first look.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    timeout: Duration,
    end: Cell<Option<Instant>>,
    /// It ends with this one at the latest.
    outer: Option<&'a Self>,
}

impl<'a> Deadline<'a> {
    /// This long after the first look.
    pub(crate) const fn after(timeout: Duration) -> Self {
        Self { timeout, end: Cell::new(None), outer: None }
    }

    /// This long after the first look, and not after `self`.
    pub(crate) const fn within(&'a self, timeout: Duration) -> Self {
        Self { timeout, end: Cell::new(None), outer: Some(self) }
    }

    /// Looks at the clock.
    pub(crate) fn has_passed(&self) -> bool {
        self.left() == Duration::ZERO
    }

    /// How long it is until then. Looks at the clock.
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

    /// The same for one that was looked at before; no for one that was not.
    pub(crate) fn is_known_to_have_passed(&self) -> bool {
        self.end.get().is_some() && self.has_passed()
    }
}

/// Waits for room that others make: at first it gives the core away, later it sleeps, longer each
/// time.
#[derive(Debug, Default)]
pub(crate) struct Pauses(u32);

impl Pauses {
    /// Those that only give the core away.
    const PROMPT: u32 = 64;
    const LEAST: Duration = Duration::from_micros(20);
    /// log2 of how much longer the longest one is: 1.3 ms.
    const DOUBLINGS: u32 = 6;

    pub(crate) fn wait(&mut self) {
        match self.0.checked_sub(Self::PROMPT) {
            None => std::thread::yield_now(),
            Some(late) => std::thread::sleep(Self::LEAST * (1 << late.min(Self::DOUBLINGS))),
        }
        self.0 = self.0.saturating_add(1);
    }
}

/// Tries of something that others must get on with: the first few follow each other, later ones
/// wait a little, longer each time.
#[derive(Debug)]
pub(crate) struct Retries {
    deadline: Deadline<'static>,
    tries: Cell<u32>,
}

impl Retries {
    /// Tries that others can make no use of waiting for. Each waits for an answer itself, so the
    /// core is not given away either: whoever computes on it would keep it for some ms.
    const PROMPT: u32 = 4;
    const LEAST: Duration = Duration::from_micros(20);
    /// log2 of how much longer the longest pause is: 2.5 ms.
    const DOUBLINGS: u32 = 7;

    /// Tries until this long after the first one that failed.
    pub(crate) const fn within(timeout: Duration) -> Self {
        Self { deadline: Deadline::after(timeout), tries: Cell::new(0) }
    }

    /// A try has failed: pauses before the next one. `false`: time is up.
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
