//! The thread slots of a client's file: which are free.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rackpool_ring::client_file::MAX_THREADS;

use crate::calls::Calls;
use crate::connection::{Connection, lock};
use crate::deadline::Deadline;

/// Slots that no thread keeps: threads beyond those that have one of their own borrow them.
const SPARE: u16 = 4;

/// A thread that waits for a slot looks this often whether the calls of an unsettled slot have
/// ended.
const LOOK: Duration = Duration::from_millis(5);

/// Slots without a thread. Each one's calls stay with it: their numbers go on.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    /// As many of these are left as there are spare ones.
    spare: usize,
    free: Mutex<Vec<Calls>>,
    /// Somebody has given one back.
    returned: Condvar,
    /// Slots whose thread ended with calls that the daemon may still carry out: it may write to
    /// them, so they must not get another owner before that is over.
    unsettled: Mutex<Vec<Calls>>,
}

impl ThreadSlots {
    /// `slots`, of which `own` are for threads that keep them.
    pub(crate) fn new(slots: u16, own: u16) -> Self {
        Self {
            spare: usize::from(slots.saturating_sub(own)),
            free: Mutex::new((0..slots).rev().map(Calls::new).collect()),
            returned: Condvar::new(),
            unsettled: Mutex::default(),
        }
    }

    /// How many slots to ask for, of which `own` are for threads that keep them.
    pub(crate) fn wanted(own: u16) -> u16 {
        // What is out of its range is for the daemon to refuse.
        if (1..MAX_THREADS).contains(&own) { MAX_THREADS.min(own + SPARE) } else { own }
    }

    /// Takes a slot that its thread keeps; `None` when all but the spare ones are in use.
    pub(crate) fn take(&self, connection: &Connection) -> Option<Calls> {
        self.take_above(self.spare, connection)
    }

    /// Takes any slot; waits for one until the deadline.
    pub(crate) fn borrow(&self, connection: &Connection, deadline: &Deadline<'_>) -> Option<Calls> {
        loop {
            if let Some(calls) = self.take_above(0, connection) {
                return Some(calls);
            }
            let left = deadline.left().min(LOOK);
            if left.is_zero() {
                return None;
            }
            let free = lock(&self.free);
            if free.is_empty() {
                drop(
                    self.returned.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner),
                );
            }
        }
    }

    /// Takes a slot if more than `kept` slots are free.
    fn take_above(&self, kept: usize, connection: &Connection) -> Option<Calls> {
        let unsettled = std::mem::take(&mut *lock(&self.unsettled));
        for calls in unsettled {
            self.give_back(calls, connection);
        }
        let mut free = lock(&self.free);
        if free.len() <= kept {
            return None;
        }
        let mut calls = free.pop()?;
        drop(free);
        calls.begin_anew();
        Some(calls)
    }

    /// Gives a slot back with the calls that were made from it.
    pub(crate) fn give_back(&self, mut calls: Calls, connection: &Connection) {
        if calls.settle(connection) {
            lock(&self.free).push(calls);
            self.returned.notify_one();
        } else {
            lock(&self.unsettled).push(calls);
        }
    }
}
