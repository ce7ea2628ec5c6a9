use std::io;
use std::sync::{Mutex, PoisonError};

use mio::{Poll, Token, Waker};
use rackpool_sync::atomic::{AtomicUsize, Ordering};

use super::long::Done;
use super::stream::Stream;

/// What is on its way to a thread that serves connections.
#[derive(Debug)]
pub struct Mailbox {
    /// New connections.
    waiting: Mutex<Vec<Stream>>,
    /// Long commands that are done.
    done: Mutex<Vec<Done>>,
    waker: Waker,
    /// How many connections the thread has, those on their way counted.
    load: AtomicUsize,
}

impl Mailbox {
    /// Of the thread that polls here.
    pub(super) fn new(poll: &Poll, token: Token) -> io::Result<Self> {
        let waker = Waker::new(poll.registry(), token)?;
        Ok(Self {
            waiting: Mutex::default(),
            done: Mutex::default(),
            waker,
            load: AtomicUsize::new(0),
        })
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

    /// Hands back what a long command has left.
    pub(super) fn post_done(&self, done: Done) -> io::Result<()> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        self.wake()
    }

    /// What long commands have left.
    pub(super) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock().unwrap_or_else(PoisonError::into_inner))
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
