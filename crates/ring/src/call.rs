//! Call cells: where the answer to one request arrives and its thread waits for it.
//!
//! ```text
//!            begin                finish
//!   (idle) --------> waiting ----------------> done --> (idle)
//!                       |                        ^
//!                       | sleep                  | finish, wakes the thread
//!                       +------> asleep ---------+
//! ```
//! The thread makes the steps on the left, the daemon those to `done`.

use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Values an answer carries.
pub const VALUES: usize = 5;

const WAITING: u32 = 1;
const ASLEEP: u32 = 2;
const DONE: u32 = 3;

/// One outstanding call of a thread: a cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct CallCell {
    state: AtomicU32,
    call: AtomicU32,
    status: AtomicU32,
    reserved: AtomicU32,
    values: [AtomicU64; VALUES],
}

/// What the daemon answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success; else why not, in the meaning of the request.
    pub status: u32,
    /// What was asked for.
    pub values: [u64; VALUES],
}

impl CallCell {
    /// Starts a call and returns its number.
    pub fn begin(&self) -> u32 {
        let call = self.call.load(Ordering::Relaxed).wrapping_add(1);
        self.state.store(WAITING, Ordering::Relaxed);
        // SYNC: pairs with the load in `finish`: it sees the state of this call or a later one.
        self.call.store(call, Ordering::Release);
        call
    }

    /// The answer, if it has come.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        // SYNC: pairs with the swap in `finish`.
        if self.state.load(Ordering::Acquire) != DONE {
            return None;
        }
        Some(Answer {
            status: self.status.load(Ordering::Relaxed),
            values: std::array::from_fn(|i| self.values[i].load(Ordering::Relaxed)),
        })
    }

    /// Says that the thread is about to sleep; `false` when the answer has come meanwhile.
    #[must_use]
    pub fn will_sleep(&self) -> bool {
        self.state
            .compare_exchange(WAITING, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            .is_ok_and(|_| true)
            || self.state.load(Ordering::Acquire) == ASLEEP
    }

    /// The word to sleep on while it holds the value returned with it.
    #[must_use]
    pub const fn sleep_word(&self) -> (&AtomicU32, u32) {
        (&self.state, ASLEEP)
    }

    /// Delivers the answer to `call`; returns whether a sleeper has to be woken on
    /// [`Self::sleep_word`]. An answer to a call that was given up is dropped.
    #[must_use]
    pub fn finish(&self, call: u32, answer: &Answer) -> bool {
        // SYNC: pairs with the store in `begin`.
        if self.call.load(Ordering::Acquire) != call {
            return false;
        }
        if self.state.load(Ordering::Acquire) == DONE {
            return false;
        }
        self.status.store(answer.status, Ordering::Relaxed);
        for (cell, value) in self.values.iter().zip(answer.values) {
            cell.store(value, Ordering::Relaxed);
        }
        // SYNC: pairs with the load in `answer`.
        self.state.swap(DONE, Ordering::AcqRel) == ASLEEP
    }

    /// Whether the daemon still owes the answer to `call`.
    #[must_use]
    pub fn is_waiting_for(&self, call: u32) -> bool {
        self.call.load(Ordering::Acquire) == call
            && matches!(self.state.load(Ordering::Acquire), WAITING | ASLEEP)
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
        assert!(cell.will_sleep());
        assert!(cell.will_sleep(), "it woke for nothing and sleeps again");
        assert!(cell.finish(call, &ANSWER));
        assert!(!cell.will_sleep());
    }
}
