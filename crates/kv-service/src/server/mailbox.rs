use std::io;
use std::sync::{Mutex, PoisonError};

use mio::{Poll, Token, Waker};
use rackpool_sync::atomic::{AtomicUsize, Ordering};

use super::long_commands::LongCommandDone;
use super::stream::Stream;

/// Connections and results on their way to a thread that serves connections.
#[derive(Debug)]
pub struct Mailbox {
    /// New connections.
    waiting: Mutex<Vec<Stream>>,
    /// Results of long commands.
    done: Mutex<Vec<LongCommandDone>>,
    waker: Waker,
    /// The number of the thread's connections, including those on their way.
    load: AtomicUsize,
}

impl Mailbox {
    /// The mailbox of the thread that waits at `poll`.
    pub(super) fn new(poll: &Poll, token: Token) -> io::Result<Self> {
        let waker = Waker::new(poll.registry(), token)?;
        Ok(Self {
            waiting: Mutex::default(),
            done: Mutex::default(),
            waker,
            load: AtomicUsize::new(0),
        })
    }

    /// The number of the thread's connections.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Hands a connection to the thread.
    pub(super) fn post(&self, stream: Stream) -> io::Result<()> {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.wake()
    }

    /// Hands the result of a long command to the thread.
    pub(super) fn post_done(&self, done: LongCommandDone) -> io::Result<()> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        self.wake()
    }

    /// Takes the results of long commands.
    pub(super) fn take_done(&self) -> Vec<LongCommandDone> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the thread.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }

    /// Takes the new connections.
    pub(super) fn take(&self) -> Vec<Stream> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Accounts for a connection that was closed.
    pub(super) fn ended(&self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}
