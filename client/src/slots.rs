//! The thread slots of a client's file: which are free.

use std::sync::Mutex;

use crate::calls::Calls;
use crate::connection::{Connection, lock};

/// Slots without a thread.
#[derive(Debug)]
pub(crate) struct ThreadSlots {
    free: Mutex<Vec<u16>>,
    /// Slots whose thread ended with calls that the daemon may still carry out: it may write to
    /// them, so they must not get another owner before that is over.
    unsettled: Mutex<Vec<Calls>>,
}

impl ThreadSlots {
    pub(crate) fn new(threads: u16) -> Self {
        Self { free: Mutex::new((0..threads).rev().collect()), unsettled: Mutex::new(Vec::new()) }
    }

    /// Takes a slot; `None` when all are in use.
    pub(crate) fn take(&self, connection: &Connection) -> Option<u16> {
        lock(&self.unsettled).retain_mut(|calls| {
            let settled = calls.settle(connection);
            if settled {
                lock(&self.free).push(calls.thread());
            }
            !settled
        });
        lock(&self.free).pop()
    }

    /// Gives a slot back with the calls that were made from it.
    pub(crate) fn give_back(&self, mut calls: Calls, connection: &Connection) {
        if calls.settle(connection) {
            lock(&self.free).push(calls.thread());
        } else {
            lock(&self.unsettled).push(calls);
        }
    }
}
