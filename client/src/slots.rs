//! The thread slots of a client's file: which are free.

use std::sync::Mutex;

use crate::calls::Calls;
use crate::connection::{Connection, lock};

/// Slots without a thread. Each one's calls stay with it: their numbers go on.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    free: Mutex<Vec<Calls>>,
    /// Slots whose thread ended with calls that the daemon may still carry out: it may write to
    /// them, so they must not get another owner before that is over.
    unsettled: Mutex<Vec<Calls>>,
}

impl ThreadSlots {
    pub(crate) fn new(threads: u16) -> Self {
        let free = (0..threads).rev().map(Calls::new).collect();
        Self { free: Mutex::new(free), unsettled: Mutex::new(Vec::new()) }
    }

    /// Takes a slot; `None` when all are in use.
    pub(crate) fn take(&self, connection: &Connection) -> Option<Calls> {
        let unsettled = std::mem::take(&mut *lock(&self.unsettled));
        for calls in unsettled {
            self.give_back(calls, connection);
        }
        let mut calls = lock(&self.free).pop()?;
        calls.begin_anew();
        Some(calls)
    }

    /// Gives a slot back with the calls that were made from it.
    pub(crate) fn give_back(&self, mut calls: Calls, connection: &Connection) {
        let list = if calls.settle(connection) { &self.free } else { &self.unsettled };
        lock(list).push(calls);
    }
}
