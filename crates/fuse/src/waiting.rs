//! Requests for locks that wait: in a list of their own, so that they keep no thread from serving.
//! Which of them are due, and which can never be answered, as they wait for one another.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::Errno;
use rackpool_fs::{Ino, LockFamily, LockOwner, LockRequest, OtherLock, Outdated};

use crate::device::Reply;

/// How soon a lock of another mount is looked at again at first.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// And later.
const LONG_PAUSE: Duration = Duration::from_millis(10);
/// What each request that waits adds to that.
const PAUSE_EACH: Duration = Duration::from_micros(50);
/// How soon if all that is in the way is in this mount, which says when it goes.
const OWN_PAUSE: Duration = Duration::from_millis(200);
/// How soon those are looked at again that seem to wait for one another.
const SUSPICION: Duration = Duration::from_millis(1);
/// How long who does not wait waits nevertheless for a lock that is about to go: the kernel does
/// not wait for the end of a description when its last descriptor is closed.
const CLOSING: Duration = Duration::from_millis(100);
/// Interruptions that are remembered: of requests that are being tried, or no requests for locks.
const INTERRUPTIONS: usize = 256;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) ino: Ino,
    pub(crate) request: LockRequest,
    pub(crate) reply: Reply,
    /// Who of this mount was in the way when it was last tried.
    blockers: Vec<LockOwner>,
    /// Whether others were.
    is_blocked_elsewhere: bool,
    pause: Duration,
    due: Instant,
    /// When it is refused at last, if it is not to wait but for locks that are about to go.
    pub(crate) until: Option<Instant>,
    /// Whether it seemed to wait for itself, by way of others that were looked at again since.
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

    /// Whether it has not waited yet.
    pub(crate) const fn is_new(&self) -> bool {
        self.blockers.is_empty() && !self.is_blocked_elsewhere
    }
}

/// A lock that is had, and to be used when the kernel has dropped what it keeps of the file.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) ino: Ino,
    pub(crate) request: LockRequest,
    pub(crate) outdated: Outdated,
    pub(crate) reply: Reply,
}

/// What there is to do.
#[derive(Debug)]
pub(crate) enum Task {
    Drop(Granted),
    Try(Waiter),
    /// Nothing any more.
    End,
}

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    state: Mutex<State>,
    changed: Condvar,
    /// Requests that wait: who gives locks up need not look when there are none.
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
        // Lists are whole whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has somebody drop what the kernel keeps of a file.
    pub(crate) fn drop_pages(&self, granted: Granted) {
        self.state().granted.push_back(granted);
        self.changed.notify_one();
    }

    /// Lets a request wait, which was just tried; answers it if it was interrupted meanwhile, or
    /// waits for itself.
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
            // What the others wait for may be long gone: they are looked at before this one is
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

    /// A request was interrupted: it is answered so if it waits.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state();
        let at = state.waiters.iter().position(|waiter| waiter.reply.unique() == unique);
        let Some(at) = at else {
            // It may be on its way to the list. The kernel says so only of requests it has handed
            // out.
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

    /// Locks of a file were given up.
    pub(crate) fn nudge(&self, ino: Ino) {
        // A request that is just being tried may come later: it is looked at again soon anyway.
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

    /// Waits until there is something to do.
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

    /// Has nobody wait any more.
    pub(crate) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }
}

impl State {
    /// Whether who is in the way of a request waits for its owner, if only by way of others.
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

    /// A lock of an owner of this mount.
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

    /// What is to be tried next.
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
        // It is forgotten then.
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
        // The circle is broken: the rest waits on.
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
        // The second has given up what the first waited for, and asks for what that one has.
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
