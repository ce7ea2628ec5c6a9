//! Lock requests that wait. They stand in a list, so that they occupy no serving thread. This
//! module decides which of them are due for another try, and which are in a cycle.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use rackpool_fs::{Ino, LockFamily, LockOwner, LockRequest, OtherLock, Outdated};

use crate::device::Reply;

/// First interval between two tries for a lock of another mount.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Longest interval.
const LONG_PAUSE: Duration = Duration::from_millis(10);
/// Added to the longest interval for each waiting request.
const PAUSE_EACH: Duration = Duration::from_micros(50);
/// Interval if all conflicting locks are in this mount, which reports their release.
const OWN_PAUSE: Duration = Duration::from_millis(200);
/// Interval between two tries of a request that seems to be in a cycle.
const SUSPICION: Duration = Duration::from_millis(1);
/// How long a request that must not wait nevertheless waits for a lock that is about to be
/// released: the kernel does not wait for `RELEASE` when the last descriptor is closed.
const CLOSING: Duration = Duration::from_millis(100);
/// Number of remembered interruptions of requests that are not in the list: they are being tried,
/// or are not lock requests.
const INTERRUPTIONS: usize = 256;

/// A waiting request.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ino: Ino,
    pub(crate) request: LockRequest,
    pub(crate) reply: Reply,
    /// The owners in this mount whose locks conflicted at the last try.
    blockers: Vec<LockOwner>,
    /// Whether locks of other mounts conflicted.
    is_blocked_elsewhere: bool,
    pause: Duration,
    due: Instant,
    /// Deadline of a request that must not wait, except for locks that are about to be released.
    pub(crate) until: Option<Instant>,
    /// Set when the request seemed to be in a cycle; the requests of the cycle have been made due
    /// since.
    is_suspect: bool,
}

impl Waiter {
    pub(crate) fn new(ino: Ino, request: LockRequest, reply: Reply, waits: bool) -> Self {
        let now = Instant::now();
        Self {
            ino,
            request,
            reply,
            blockers: Vec::new(),
            is_blocked_elsewhere: false,
            pause: FIRST_PAUSE / 2,
            due: now,
            until: (!waits).then_some(now + CLOSING),
            is_suspect: false,
        }
    }

    /// Whether the request has not been in the list yet.
    pub(crate) const fn is_new(&self) -> bool {
        self.blockers.is_empty() && !self.is_blocked_elsewhere
    }
}

/// A granted lock that may be used once the kernel has dropped its pages of the file.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) ino: Ino,
    pub(crate) request: LockRequest,
    pub(crate) outdated: Outdated,
    pub(crate) reply: Reply,
}

/// Work for the lock thread.
#[derive(Debug)]
pub(crate) enum Task {
    Drop(Granted),
    Try(Waiter),
    /// The mount has ended.
    End,
}

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of waiting requests: a thread that releases locks skips the list if it is 0.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    waiters: Vec<Waiter>,
    granted: VecDeque<Granted>,
    interrupted: VecDeque<u64>,
    is_over: bool,
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves the lists consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a granted lock whose file's pages the kernel has to drop.
    pub(crate) fn drop_pages(&self, granted: Granted) {
        self.state().granted.push_back(granted);
        self.changed.notify_one();
    }

    /// Adds a request that was just tried to the list. Answers it instead if it was interrupted
    /// meanwhile, or is still in a cycle after the other requests were tried again.
    pub(crate) fn wait(&self, mut waiter: Waiter, in_the_way: &[OtherLock]) {
        waiter.blockers = in_the_way.iter().filter_map(|other| other.owner).collect();
        waiter.is_blocked_elsewhere =
            in_the_way.is_empty() || in_the_way.iter().any(|other| other.owner.is_none());
        let mut state = self.state();
        let unique = waiter.reply.unique();
        if let Some(at) = state.interrupted.iter().position(|known| *known == unique) {
            state.interrupted.remove(at);
            drop(state);
            return waiter.reply.error(Errno::EINTR);
        }
        let waits_for_itself = waiter.until.is_none() && state.waits_for_itself(&waiter);
        if waits_for_itself && waiter.is_suspect {
            drop(state);
            return waiter.reply.error(Errno::EDEADLK);
        }
        let now = Instant::now();
        waiter.is_suspect = waits_for_itself;
        if waits_for_itself {
            // The obstacles of the others may be gone: they are tried before this request is tried
            // again.
            let others = state.waiters.iter_mut().filter(|other| !other.is_suspect);
            others.for_each(|other| other.due = other.due.min(now));
            waiter.due = now + SUSPICION;
        } else {
            let all = u32::try_from(state.waiters.len()).unwrap_or(u32::MAX);
            let longest = if waiter.is_blocked_elsewhere {
                LONG_PAUSE + PAUSE_EACH.saturating_mul(all)
            } else {
                OWN_PAUSE
            };
            waiter.pause = (waiter.pause * 2).min(longest);
            waiter.due =
                waiter.until.map_or(now + waiter.pause, |until| until.min(now + waiter.pause));
        }
        state.waiters.push(waiter);
        self.count.store(state.waiters.len(), Ordering::Relaxed);
        drop(state);
        self.changed.notify_one();
    }

    /// Interrupts a request: answers it with `EINTR` if it waits, else remembers the interruption.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        let at = state.waiters.iter().position(|waiter| waiter.reply.unique() == unique);
        let Some(at) = at else {
            // The request may not be in the list yet. The kernel interrupts only requests that it
            // has handed out.
            state.interrupted.push_back(unique);
            if state.interrupted.len() > INTERRUPTIONS {
                state.interrupted.pop_front();
            }
            return;
        };
        let waiter = state.waiters.swap_remove(at);
        drop(state);
        waiter.reply.error(Errno::EINTR);
    }

    /// Makes the requests for a file due: locks of the file were released.
    pub(crate) fn nudge(&self, ino: Ino) {
        // A request that is just being tried may enter the list later; its next try comes soon
        // anyway.
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = Instant::now();
        let mut state = self.state();
        for waiter in state.waiters.iter_mut().filter(|waiter| waiter.ino == ino) {
            waiter.due = waiter.due.min(now);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits until there is work for the lock thread.
    pub(crate) fn next(&self) -> Task {
        let mut state = self.state();
        loop {
            if state.is_over {
                return Task::End;
            }
            if let Some(granted) = state.granted.pop_front() {
                return Task::Drop(granted);
            }
            let first = state.waiters.iter().enumerate().min_by_key(|(_, waiter)| waiter.due);
            let now = Instant::now();
            state = match first.map(|(at, waiter)| (at, waiter.due)) {
                Some((at, due)) if due <= now => {
                    return Task::Try(state.waiters.swap_remove(at));
                }
                Some((_, due)) => {
                    let waited = self.changed.wait_timeout(state, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Ends the lock thread.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Returns whether the owner of a request waits for itself, directly or through other owners.
    fn waits_for_itself(&self, waiter: &Waiter) -> bool {
        let owner = waiter.request.owner;
        if owner.family != LockFamily::Record {
            return false;
        }
        let mut rest = waiter.blockers.clone();
        let mut seen = HashSet::new();
        while let Some(blocker) = rest.pop() {
            if blocker == owner {
                return true;
            }
            if seen.insert(blocker) {
                let waiting = self.waiters.iter().filter(|other| other.request.owner == blocker);
                rest.extend(waiting.flat_map(|other| &other.blockers));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Kernel;
    use rackpool_fs::{LockMode, LockRange};

    const INO: Ino = Ino(5);

    const fn owner(id: u64) -> LockOwner {
        LockOwner { family: LockFamily::Record, id }
    }

    fn waiter(kernel: &Kernel, unique: u64, id: u64) -> Waiter {
        let range = LockRange { first: 0, last: 9 };
        let mode = Some(LockMode::Exclusive);
        let request = LockRequest { owner: owner(id), range, mode, pid: 1, handle: id };
        Waiter::new(INO, request, kernel.reply(unique), true)
    }

    /// A conflicting lock of an owner in this mount.
    fn held_by(id: u64) -> [OtherLock; 1] {
        let range = LockRange { first: 0, last: 9 };
        [OtherLock {
            owner: Some(owner(id)),
            pid: 1,
            mode: LockMode::Exclusive,
            range,
            is_closing: false,
        }]
    }

    /// The next request to try.
    fn due(waiting: &Waiting) -> Waiter {
        match waiting.next() {
            Task::Try(waiter) => waiter,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_is_interrupted_is_told_whether_it_waits_already_or_is_about_to() {
        let (kernel, waiting) = (Kernel::new(), Waiting::default());
        waiting.wait(waiter(&kernel, 2, 1), &held_by(9));
        waiting.wait(waiter(&kernel, 4, 2), &held_by(9));
        waiting.interrupt(4);
        assert_eq!(kernel.answer(), (4, Errno::EINTR.code()));
        waiting.interrupt(6);
        waiting.wait(waiter(&kernel, 6, 3), &held_by(9));
        assert_eq!(kernel.answer(), (6, Errno::EINTR.code()));
        // The interruption is forgotten then.
        waiting.wait(waiter(&kernel, 6, 3), &held_by(9));
        waiting.interrupt(2);
        assert_eq!(kernel.answer(), (2, Errno::EINTR.code()));
        due(&waiting).reply.done();
        assert_eq!(kernel.answer(), (6, 0));
    }

    #[test]
    fn who_waits_for_itself_is_told_when_the_others_were_tried_again() {
        let (kernel, waiting) = (Kernel::new(), Waiting::default());
        waiting.wait(waiter(&kernel, 2, 1), &held_by(2));
        waiting.wait(waiter(&kernel, 4, 2), &held_by(3));
        waiting.wait(waiter(&kernel, 6, 3), &held_by(1));
        let mut told = Vec::new();
        while told.is_empty() {
            let again = due(&waiting);
            let holder = again.request.owner.id % 3 + 1;
            if again.is_suspect {
                told.push(again.reply.unique());
            }
            waiting.wait(again, &held_by(holder));
        }
        assert_eq!(kernel.answer(), (told[0], Errno::EDEADLK.code()));
        // The cycle is broken: the other requests wait on.
        for _ in 0..20 {
            let again = due(&waiting);
            let holder = again.request.owner.id % 3 + 1;
            waiting.wait(again, &held_by(holder));
        }
        assert_eq!(waiting.state().waiters.len(), 2);
    }

    #[test]
    fn what_was_in_the_way_and_is_gone_makes_no_circle() {
        let (kernel, waiting) = (Kernel::new(), Waiting::default());
        waiting.wait(waiter(&kernel, 2, 1), &held_by(2));
        // The second owner has released what the first waited for, and requests what the first has.
        waiting.wait(waiter(&kernel, 4, 2), &held_by(1));
        let first = due(&waiting);
        assert_eq!(first.reply.unique(), 2);
        first.reply.done();
        assert_eq!(kernel.answer(), (2, 0));
        let second = due(&waiting);
        waiting.wait(second, &held_by(1));
        assert_eq!(due(&waiting).reply.unique(), 4);
    }

    #[test]
    fn who_waits_for_a_lock_that_is_given_up_is_due() {
        let (kernel, waiting) = (Kernel::new(), Waiting::default());
        let mut patient = waiter(&kernel, 2, 1);
        patient.pause = Duration::from_secs(1000);
        waiting.wait(patient, &held_by(9));
        let before = waiting.state().waiters[0].due;
        waiting.nudge(Ino(6));
        assert_eq!(waiting.state().waiters[0].due, before);
        waiting.nudge(INO);
        assert_eq!(due(&waiting).reply.unique(), 2);
        waiting.end();
        assert!(matches!(waiting.next(), Task::End));
    }
}
