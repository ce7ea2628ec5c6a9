//! Who may change data at the same time: all threads, each in its turn, or one alone.
//!
//! Each thread has a lock of its own, which it holds while it does the commands of a connection and
//! which nobody else wants, but for who must be alone (`EXEC`, `MSET`): that one takes all of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The locks of all threads.
#[derive(Debug)]
pub struct Gate(Box<[Lane]>);

/// A lock that shares its cache line with no other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(Mutex<()>);

/// A thread's right to do commands.
#[derive(Debug)]
pub struct Turn<'g> {
    gate: &'g Gate,
    lane: usize,
    own: Option<MutexGuard<'g, ()>>,
    all: Vec<MutexGuard<'g, ()>>,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // There is no data that a panic could have left half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// For so many threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self((0..threads.max(1)).map(|_| Lane::default()).collect())
    }

    /// The turn of a thread; waits while another one is alone.
    #[must_use]
    pub fn turn(&self, thread: usize) -> Turn<'_> {
        let lane = thread.min(self.0.len() - 1);
        let own = Some(self.0[lane].lock());
        Turn { gate: self, lane, own, all: Vec::new() }
    }
}

impl Turn<'_> {
    /// Waits until no other thread has its turn, and keeps it so. False if it is so already.
    pub fn begin_alone(&mut self) -> bool {
        if !self.all.is_empty() {
            return false;
        }
        // All take the locks in the same order, and none while holding a later one.
        self.own = None;
        self.all = self.gate.0.iter().map(Lane::lock).collect();
        true
    }

    /// Lets the other threads go on.
    pub fn end_alone(&mut self) {
        self.all.clear();
        self.own = Some(self.gate.0[self.lane].lock());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_sees_nobody_change_anything() {
        let gate = Gate::new(3);
        // Both are changed together, or seen unequal.
        let pair = [const { rackpool_sync::atomic::AtomicU64::new(0) }; 2];
        let order = rackpool_sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (gate, pair) = (&gate, &pair);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let mut turn = gate.turn(thread);
                        assert!(turn.begin_alone());
                        assert!(!turn.begin_alone());
                        let [first, second] = pair.each_ref().map(|count| count.load(order));
                        assert_eq!(first, second);
                        pair[0].store(first + 1, order);
                        pair[1].store(second + 1, order);
                        turn.end_alone();
                    }
                });
            }
        });
        assert_eq!(pair.map(|count| count.into_inner()), [600, 600]);
    }
}
