use std::io;
use std::sync::{Mutex, PoisonError};

use mio::{Poll, Token, Waker};
use rackpool_sync::atomic::{AtomicUsize, Ordering};

use super::stream::Stream;

/// Connections on their way to the thread that serves them.
#[derive(Debug)]
pub struct Mailbox {
    waiting: Mutex<Vec<Stream>>,
    waker: Waker,
    /// How many connections the thread has, those on their way counted.
    load: AtomicUsize,
}

impl Mailbox {
    /// Of the thread that polls here.
    pub(super) fn new(poll: &Poll, token: Token) -> io::Result<Self> {
        let waker = Waker::new(poll.registry(), token)?;
        Ok(Self { waiting: Mutex::default(), waker, load: AtomicUsize::new(0) })
    }

    /// How many connections the thread has.
    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }

    /// Hands a connection over.
    pub(super) fn post(&self, stream: Stream) -> io::Result<()> {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.wake()
    }

    /// Lets the thread look around.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }

    /// What has come.
    pub(super) fn take(&self) -> Vec<Stream> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A connection has ended.
    pub(super) fn ended(&self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}
