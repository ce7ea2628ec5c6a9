//! Call cells: where the answer to one request arrives and its thread waits for it.
//!
//! ```text
//!            begin             finish              finish
//!    idle ---------> waiting --------> writing ------------> done
//!     ^                 |                 |
//!     +-----------------+-----------------+
//!            lose: the daemon has died
//! ```
//! The thread begins, the daemon finishes. Number and phase of the call are one word, so a step
//! is made for exactly the call it was meant for: an answer to a call that was given up, or lost
//! with an earlier daemon, can't complete a later one.

use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Values an answer carries.
pub const VALUES: usize = 5;

/// One outstanding call of a thread: a cache line.
///
/// ```text
/// state  63          32 31        3  2     1    0
///       +--------------+----------+-------+-------+
///       |  call number |    0     | asleep| phase |
///       +--------------+----------+-------+-------+
/// ```
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CallCell {
    state: AtomicU64,
    /// What a thread that waits sleeps on: counts the times somebody may have to be woken.
    wake: AtomicU32,
    status: AtomicU32,
    values: [AtomicU64; VALUES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<CallCell>() == 64);

/// What the daemon answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success; else why not, in the meaning of the request.
    pub status: u32,
    /// What was asked for.
    pub values: [u64; VALUES],
}

/// The word `state`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Never begun, or lost.
    Idle = 0,
    Waiting = 1,
    /// The daemon is writing the answer.
    Writing = 2,
    Done = 3,
}

impl State {
    const ASLEEP: u64 = 1 << 2;

    const fn new(call: u32, phase: Phase) -> Self {
        Self((call as u64) << 32 | phase as u64)
    }

    const fn call(self) -> u32 {
        (self.0 >> 32) as u32
    }

    const fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::Idle,
            1 => Phase::Waiting,
            2 => Phase::Writing,
            _ => Phase::Done,
        }
    }

    /// Whether an answer may still come.
    const fn is_open(self) -> bool {
        matches!(self.phase(), Phase::Waiting | Phase::Writing)
    }

    const fn is_asleep(self) -> bool {
        self.0 & Self::ASLEEP != 0
    }

    /// The same call in another phase; a sleeper goes on sleeping.
    const fn with(self, phase: Phase) -> Self {
        Self(self.0 & !3 | phase as u64)
    }

    const fn is(self, call: u32, phase: Phase) -> bool {
        self.call() == call && self.phase() as u64 == phase as u64
    }
}

impl CallCell {
    fn load(&self) -> State {
        // SYNC: pairs with the step to done in `finish`.
        State(self.state.load(Ordering::Acquire))
    }

    /// Makes a step if there is one from the present state; returns the state before.
    fn step(&self, next: impl Fn(State) -> Option<State>) -> Option<State> {
        let next = |now| next(State(now)).map(|next| next.0);
        // SYNC: pairs with the load in `CallCell::load`, and with itself between thread and daemon.
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(State)
    }

    /// Starts a call and returns its number, whatever became of the one before: an answer to that
    /// one is dropped from now on.
    pub fn begin(&self) -> u32 {
        let call = State(self.state.load(Ordering::Relaxed)).call().wrapping_add(1);
        // SYNC: pairs with `CallCell::step`: the daemon sees this call or a later one when it has
        // seen its request. A swap, so that it stands in one order with the steps.
        self.state.swap(State::new(call, Phase::Waiting).0, Ordering::AcqRel);
        call
    }

    /// The answer, if it has come.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        if self.load().phase() != Phase::Done {
            return None;
        }
        Some(Answer {
            status: self.status.load(Ordering::Relaxed),
            values: std::array::from_fn(|i| self.values[i].load(Ordering::Relaxed)),
        })
    }

    /// Whether the call was lost with its daemon: no answer will come.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.load().phase() == Phase::Idle
    }

    /// Says that the thread is about to sleep on [`Self::sleep_word`], which it has read before;
    /// `false` when there is nothing to wait for any more.
    #[must_use]
    pub fn will_sleep(&self) -> bool {
        self.step(|now| now.is_open().then_some(State(now.0 | State::ASLEEP))).is_some()
    }

    /// The word to sleep on while it holds the value returned with it.
    #[must_use]
    pub fn sleep_word(&self) -> (&AtomicU32, u32) {
        (&self.wake, self.wake.load(Ordering::Relaxed))
    }

    /// Delivers the answer to `call`; returns whether a sleeper has to be woken on
    /// [`Self::sleep_word`]. An answer to a call that was given up is dropped.
    #[must_use]
    pub fn finish(&self, call: u32, answer: &Answer) -> bool {
        let writing = |now: State| now.is(call, Phase::Waiting).then(|| now.with(Phase::Writing));
        if self.step(writing).is_none() {
            return false;
        }
        self.status.store(answer.status, Ordering::Relaxed);
        for (cell, value) in self.values.iter().zip(answer.values) {
            cell.store(value, Ordering::Relaxed);
        }
        self.close(|now| now.is(call, Phase::Writing).then_some(State::new(call, Phase::Done)))
    }

    /// Notes that the daemon which owes the answer is dead, be it in the middle of writing it;
    /// returns whether a sleeper has to be woken. Only when no other daemon can be serving the
    /// call. An answer that has come stays.
    #[must_use]
    pub fn lose(&self) -> bool {
        self.close(|now| now.is_open().then_some(State::new(now.call(), Phase::Idle)))
    }

    /// A last step, and whether somebody sleeps who has to hear of it.
    fn close(&self, last: impl Fn(State) -> Option<State>) -> bool {
        let asleep = self.step(last).is_some_and(State::is_asleep);
        if asleep {
            // The sleeper read this word before it said that it sleeps, so it reads the new value
            // when it gets to sleep only now.
            self.wake.fetch_add(1, Ordering::Relaxed);
        }
        asleep
    }

    /// Whether the daemon still owes the answer to `call`.
    #[must_use]
    pub fn is_waiting_for(&self, call: u32) -> bool {
        self.load().is(call, Phase::Waiting)
    }
}

#[cfg(not(loom))]
// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl rackpool_shm::Shared for CallCell {}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const ANSWER: Answer = Answer { status: 4, values: [9, 8, 7, 6, 5] };

    #[test]
    fn an_answer_arrives_once() {
        let cell = CallCell::default();
        let call = cell.begin();
        assert_eq!(cell.answer(), None);
        assert!(cell.is_waiting_for(call));
        assert!(!cell.finish(call, &ANSWER));
        assert_eq!(cell.answer(), Some(ANSWER));
        assert!(!cell.finish(call, &Answer { status: 0, values: [0; VALUES] }));
        assert_eq!(cell.answer(), Some(ANSWER));
    }

    #[test]
    fn a_late_answer_is_dropped() {
        let cell = CallCell::default();
        let first = cell.begin();
        let second = cell.begin();
        assert!(!cell.finish(first, &ANSWER));
        assert_eq!(cell.answer(), None);
        assert!(cell.is_waiting_for(second) && !cell.is_waiting_for(first));
    }

    #[test]
    fn a_sleeper_is_to_be_woken() {
        let cell = CallCell::default();
        let call = cell.begin();
        let (_, before) = cell.sleep_word();
        assert!(cell.will_sleep());
        assert!(cell.will_sleep(), "it woke for nothing and sleeps again");
        assert!(cell.is_waiting_for(call));
        assert!(cell.finish(call, &ANSWER));
        assert_ne!(cell.sleep_word().1, before, "who gets to sleep only now does not");
        assert!(!cell.will_sleep());
        let next = cell.begin();
        assert!(!cell.finish(next, &ANSWER), "nobody sleeps on the next call");
    }

    #[test]
    fn a_daemon_killed_while_it_writes_loses_the_call_and_not_the_cell() {
        let cell = CallCell::default();
        let call = cell.begin();
        assert!(cell.will_sleep());
        let asleep = State(cell.state.load(Ordering::Relaxed));
        cell.state.store(asleep.with(Phase::Writing).0, Ordering::Relaxed);
        assert!(cell.answer().is_none() && !cell.is_lost() && !cell.is_waiting_for(call));
        assert!(cell.lose(), "the sleeper hears of it");
        assert!(cell.is_lost() && !cell.will_sleep());
        assert!(!cell.finish(call, &ANSWER));
        assert!(cell.is_lost(), "no daemon answers what is lost");
        let next = cell.begin();
        assert!(!cell.finish(next, &ANSWER));
        assert!(!cell.lose());
        assert_eq!(cell.answer(), Some(ANSWER), "what was answered is not lost");
    }
}
