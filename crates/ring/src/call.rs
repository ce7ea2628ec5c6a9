//! Call cells: where the answer to one request arrives and its thread waits for it.
//!
//! ```text
//!   0          4        8                     48         64       68            128
//!  +----------+--------+---------------------+----------+--------+--------------+
//!  | answered | status | 5 values            |          | asleep |              |
//!  +----------+--------+---------------------+----------+--------+--------------+
//!    written by the daemon                                by the thread, and 0 by who wakes it
//! ```
//! A thread numbers the calls of a cell. The daemon writes the answer and then the number: one
//! cache line that goes one way. A number other than the awaited one is an answer to an earlier
//! call, so a thread that gave a call up, or lost it with its daemon, goes on with the next number
//! and needs to tell nobody. A cell has one call under way at a time.

use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Values an answer carries.
pub const VALUES: usize = 5;

/// The cell of one outstanding call: a cache line for each direction.
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

/// What the daemon answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 0 for success; else why not, in the meaning of the request.
    pub status: u32,
    /// What was asked for.
    pub values: [u64; VALUES],
}

impl CallCell {
    /// The value of [`Self::sleep_word`] to sleep at.
    pub const ASLEEP: u32 = 1;

    /// The answer to `call`, if it has come.
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

    /// The number of the call that was answered last; 0 before the first.
    #[must_use]
    pub fn answered(&self) -> u32 {
        // SYNC: pairs with the store in `finish`.
        self.answer.answered.load(Ordering::Acquire)
    }

    /// Delivers the answer to `call`, the only one under way. [`Self::rouse`] must follow.
    #[inline]
    pub fn finish(&self, call: u32, answer: &Answer) {
        self.answer.status.store(answer.status, Ordering::Relaxed);
        for (cell, value) in self.answer.values.iter().zip(answer.values) {
            cell.store(value, Ordering::Relaxed);
        }
        // SYNC: pairs with the load in `answer`.
        self.answer.answered.store(call, Ordering::Release);
    }

    /// Says that the thread is about to sleep until `call` is answered; `false` when it has been.
    #[must_use]
    pub fn will_sleep(&self, call: u32) -> bool {
        self.waiter.asleep.store(Self::ASLEEP, Ordering::Relaxed);
        // SYNC: pairs with the fence between `finish` and `rouse`: the answer is seen here, or the
        // sleeper there.
        fence(Ordering::SeqCst);
        if self.answer(call).is_none() {
            return true;
        }
        self.woke();
        false
    }

    /// Says that the thread no longer sleeps.
    pub fn woke(&self) {
        self.waiter.asleep.store(0, Ordering::Relaxed);
    }

    /// The word to sleep on while it is [`Self::ASLEEP`].
    #[must_use]
    pub const fn sleep_word(&self) -> &AtomicU32 {
        &self.waiter.asleep
    }

    /// Whether a sleeper has to be woken on [`Self::sleep_word`]. After what it waits for, with a
    /// full fence in between; one fence does for many cells.
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

    /// The offsets of docs/design/messages.md: directions do not share a line.
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
        /// The next call begins: the one before was answered, or lost with its daemon.
        Begin,
        /// The daemon answers the call under way with these.
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
        /// What a cell has to be: the last answer and its number, and whether somebody sleeps.
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
                    // As the client counts: 0 is the number before the first.
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
