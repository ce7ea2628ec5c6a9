//! Call cells: the answer to one request arrives here, and its thread waits here for it.
//!
//! ```text
//!   0          4        8                     48         64       68            128
//!  +----------+--------+---------------------+----------+--------+--------------+
//!  | answered | status | 5 values            |          | asleep |              |
//!  +----------+--------+---------------------+----------+--------+--------------+
//!    written by the daemon                                by the thread; its waker stores 0
//! ```
//! The thread numbers the calls of a cell. The daemon writes the answer and then the number, so
//! that an answer is one cache line that moves in one direction. A number other than the awaited
//! one belongs to an earlier call: a thread that abandoned a call, or lost it with its daemon,
//! continues with the next number and needs to tell no other party. A cell has at most one call in
//! flight.

use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of values in an answer.
pub const VALUES: usize = 5;

/// The cell of one outstanding call, with a cache line for each direction.
#[derive(Debug, Default)]
#[repr(C)]
pub struct CallCell {
    answer: AnswerLine,
    waiter: WaiterLine,
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct AnswerLine {
    answered: AtomicU32,
    status: AtomicU32,
    values: [AtomicU64; VALUES],
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct WaiterLine {
    asleep: AtomicU32,
}

/// An answer of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success; otherwise an error code whose meaning depends on the request.
    pub status: u32,
    /// The result; its meaning depends on the request.
    pub values: [u64; VALUES],
}

impl CallCell {
    /// The value of [`Self::sleep_word`] while the thread sleeps.
    pub const ASLEEP: u32 = 1;

    /// Returns the answer to `call` if it has arrived.
    #[inline]
    #[must_use]
    pub fn answer(&self, call: u32) -> Option<Answer> {
        // SYNC: pairs with the store in `finish`: the answer is complete.
        if self.answer.answered.load(Ordering::Acquire) != call {
            return None;
        }
        Some(Answer {
            status: self.answer.status.load(Ordering::Relaxed),
            values: std::array::from_fn(|i| self.answer.values[i].load(Ordering::Relaxed)),
        })
    }

    /// Returns the number of the call that was answered last; 0 before the first answer.
    #[must_use]
    pub fn answered(&self) -> u32 {
        // SYNC: pairs with the store in `finish`.
        self.answer.answered.load(Ordering::Acquire)
    }

    /// Delivers the answer to `call`, the only call in flight. The caller must then issue a full
    /// fence and call [`Self::rouse`].
    #[inline]
    pub fn finish(&self, call: u32, answer: &Answer) {
        self.answer.status.store(answer.status, Ordering::Relaxed);
        for (cell, value) in self.answer.values.iter().zip(answer.values) {
            cell.store(value, Ordering::Relaxed);
        }
        // SYNC: pairs with the load in `answer`.
        self.answer.answered.store(call, Ordering::Release);
    }

    /// Announces that the thread is about to sleep until `call` is answered. Returns false if the
    /// answer has arrived already.
    #[must_use]
    pub fn will_sleep(&self, call: u32) -> bool {
        self.waiter.asleep.store(Self::ASLEEP, Ordering::Relaxed);
        // SYNC: pairs with the fence between `finish` and `rouse`: either the thread sees the
        // answer here, or the daemon sees the sleeper there.
        fence(Ordering::SeqCst);
        if self.answer(call).is_none() {
            return true;
        }
        self.woke();
        false
    }

    /// Announces that the thread no longer sleeps.
    pub fn woke(&self) {
        self.waiter.asleep.store(0, Ordering::Relaxed);
    }

    /// The futex word. The thread sleeps on it while it holds [`Self::ASLEEP`].
    #[must_use]
    pub const fn sleep_word(&self) -> &AtomicU32 {
        &self.waiter.asleep
    }

    /// Returns true, once, if a thread sleeps that the caller must wake on [`Self::sleep_word`].
    /// The caller must have stored what the thread waits for and then issued a full fence; one
    /// fence suffices for many cells.
    #[inline]
    #[must_use]
    pub fn rouse(&self) -> bool {
        self.waiter.asleep.load(Ordering::Relaxed) != 0
            && self.waiter.asleep.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(not(loom))]
// SAFETY: `repr(C)`, nothing but atomic integers and padding.
unsafe impl rackpool_shm::Shared for CallCell {}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ANSWER: Answer = Answer { status: 4, values: [9, 8, 7, 6, 5] };

    #[test]
    fn an_answer_is_for_its_call() {
        let cell = CallCell::default();
        assert_eq!(cell.answer(1), None);
        cell.finish(1, &ANSWER);
        assert_eq!(cell.answer(1), Some(ANSWER));
        assert_eq!(cell.answer(2), None, "the next call waits for its own");
    }

    #[test]
    fn a_sleeper_is_woken_once_and_a_waking_one_not() {
        let cell = CallCell::default();
        assert!(!cell.rouse());
        assert!(cell.will_sleep(1));
        assert!(cell.rouse() && !cell.rouse());
        cell.finish(1, &ANSWER);
        assert!(!cell.will_sleep(1) && !cell.rouse());
    }

    /// The offsets of docs/design/messages.md. The two directions do not share a cache line.
    #[test]
    fn the_layout_is_the_documented_one() {
        use std::mem::offset_of;
        assert_eq!(size_of::<CallCell>(), 128);
        assert_eq!((offset_of!(CallCell, answer), offset_of!(CallCell, waiter)), (0, 64));
        assert_eq!(offset_of!(AnswerLine, answered), 0);
        assert_eq!((offset_of!(AnswerLine, status), offset_of!(AnswerLine, values)), (4, 8));
        assert_eq!(offset_of!(WaiterLine, asleep), 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The next call begins; the one before was answered, or lost with its daemon.
        Begin,
        /// The daemon answers the call in flight with these values.
        Finish(u32, [u64; VALUES]),
        Sleep,
        Wake,
        Rouse,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::Begin),
            2 => any::<(u32, [u64; VALUES])>().prop_map(|(status, v)| Step::Finish(status, v)),
            2 => Just(Step::Sleep),
            1 => Just(Step::Wake),
            2 => Just(Step::Rouse),
        ];
        proptest::collection::vec(step, 1..100)
    }

    proptest! {
        /// The model of a cell: the last answer with its number, and whether a thread sleeps.
        #[test]
        fn behaves_like_a_numbered_answer_and_a_flag(
            start in prop_oneof![Just(1), any::<u32>(), u32::MAX - 5..=u32::MAX],
            steps in steps(),
        ) {
            let cell = CallCell::default();
            let mut call = start;
            let (mut last, mut sleeps) = (None, false);
            for step in steps {
                match step {
                    // As the client counts: 0 is never a call's number.
                    Step::Begin => call = call.wrapping_add(1).max(1),
                    Step::Finish(status, values) => {
                        let answer = Answer { status, values };
                        cell.finish(call, &answer);
                        last = Some((call, answer));
                    }
                    Step::Sleep => {
                        sleeps = last.is_none_or(|(answered, _)| answered != call);
                        prop_assert_eq!(cell.will_sleep(call), sleeps);
                    }
                    Step::Wake => {
                        cell.woke();
                        sleeps = false;
                    }
                    Step::Rouse => {
                        prop_assert_eq!(cell.rouse(), sleeps);
                        sleeps = false;
                    }
                }
                for asked in [call, call.wrapping_sub(1), call.wrapping_add(1)] {
                    let found = last.filter(|(answered, _)| *answered == asked);
                    let is_before_the_first = last.is_none() && asked == 0;
                    prop_assert!(is_before_the_first || cell.answer(asked) == found.map(|(_, a)| a));
                }
                prop_assert_eq!(cell.answered(), last.map_or(0, |(answered, _)| answered));
                let asleep = cell.sleep_word().load(Ordering::Relaxed) == CallCell::ASLEEP;
                prop_assert_eq!(asleep, sleeps);
            }
        }
    }
}
