//! The free thread slots of a client's file.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rackpool_ring::client_file::MAX_THREADS;

use crate::calls::Calls;
use crate::connection::{Connection, lock};
use crate::deadline::Deadline;

/// Slots that no thread keeps. Threads without a slot of their own borrow them.
const SPARE: u16 = 4;

/// Interval at which a thread that waits for a slot checks whether the calls of the unsettled slots
/// have ended.
const LOOK: Duration = Duration::from_millis(5);

/// The slots that no thread uses. A slot's call cells stay with it, because their numbers continue.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    /// Number of slots that [`Self::take`] leaves free.
    spare: usize,
    free: Mutex<Vec<Calls>>,
    /// Signalled when a slot is returned.
    returned: Condvar,
    /// Slots whose thread ended with abandoned calls. The daemon may still write to them, so they
    /// get no new owner before those calls have ended.
    unsettled: Mutex<Vec<Calls>>,
}

impl ThreadSlots {
    /// `slots` slots, of which threads can keep `own`.
    pub(crate) fn new(slots: u16, own: u16) -> Self {
        Self {
            spare: usize::from(slots.saturating_sub(own)),
            free: Mutex::new((0..slots).rev().map(Calls::new).collect()),
            returned: Condvar::new(),
            unsettled: Mutex::default(),
        }
    }

    /// The number of slots to request, so that threads can keep `own`.
    pub(crate) fn wanted(own: u16) -> u16 {
        // The daemon refuses a number out of range.
        if (1..MAX_THREADS).contains(&own) { MAX_THREADS.min(own + SPARE) } else { own }
    }

    /// Takes a slot for a thread to keep. Returns `None` when all but the spare slots are in use.
    pub(crate) fn take(&self, connection: &Connection) -> Option<Calls> {
        self.take_above(self.spare, connection)
    }

    /// Takes any slot. Waits for one until the deadline.
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

    /// Takes a slot if more than `kept` are free.
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

    /// Returns a slot with its call cells.
    pub(crate) fn give_back(&self, mut calls: Calls, connection: &Connection) {
        if calls.settle(connection) {
            lock(&self.free).push(calls);
            self.returned.notify_one();
        } else {
            lock(&self.unsettled).push(calls);
        }
    }
}
