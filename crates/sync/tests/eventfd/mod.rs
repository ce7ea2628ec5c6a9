//! A loom model of an eventfd, for the models of sleeping threads.

use loom::sync::{Condvar, Mutex};

/// Readable from a ring until it is drained.
#[derive(Default)]
pub(crate) struct EventFd {
    is_rung: Mutex<bool>,
    changed: Condvar,
}

impl EventFd {
    pub(crate) fn ring(&self) {
        *self.is_rung.lock().expect("nobody panics with it") = true;
        self.changed.notify_one();
    }

    /// Blocks until the event is readable; does not drain it.
    pub(crate) fn wait(&self) {
        let mut is_rung = self.is_rung.lock().expect("nobody panics with it");
        while !*is_rung {
            is_rung = self.changed.wait(is_rung).expect("nobody panics with it");
        }
    }

    pub(crate) fn drain(&self) {
        *self.is_rung.lock().expect("nobody panics with it") = false;
    }
}
