use std::os::fd::{AsFd, OwnedFd};

use super::link::{Link, Word};
use crate::FabricError;

/// Whether one side of a link sleeps, and what would wake it:
/// `counter << 2 | wants room << 1 | asleep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SleepWord(u64);

/// Tells the peer about this side's sleep and wakes the peer from its own.
pub(super) struct Sleep {
    counter: u64,
    /// The peer's sleep that this side has ended already.
    woken: u64,
    peer_wake: OwnedFd,
}

/// What the peer may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// There is a message for it.
    Message,
    /// There is room again in the ring that it fills.
    Room,
}

impl SleepWord {
    const fn new(counter: u64, asleep: bool, wants_room: bool) -> Self {
        Self(counter << 2 | (wants_room as u64) << 1 | asleep as u64)
    }

    const fn waits_for(self, news: News) -> bool {
        let wants_room = self.0 & 2 != 0;
        self.0 & 1 != 0 && (wants_room || matches!(news, News::Message))
    }

    const fn counter(self) -> u64 {
        self.0 >> 2
    }
}

impl Sleep {
    pub(super) const fn new(peer_wake: OwnedFd) -> Self {
        Self { counter: 0, woken: 0, peer_wake }
    }

    /// Says that this side is about to sleep. The caller looks for news after it.
    pub(super) fn arm(&mut self, link: &Link, wants_room: bool) -> Result<(), FabricError> {
        self.counter += 1;
        link.store(Word::Sleep, SleepWord::new(self.counter, true, wants_room).0)?;
        link.fence();
        Ok(())
    }

    /// Says that this side is awake.
    pub(super) fn disarm(&self, link: &Link) -> Result<(), FabricError> {
        link.store(Word::Sleep, SleepWord::new(self.counter, false, false).0)
    }

    /// Wakes the peer if it sleeps and waits for what was just stored in the link.
    pub(super) fn tell(&mut self, link: &Link, news: News) -> Result<(), FabricError> {
        link.fence();
        let word = SleepWord(link.peer(Word::Sleep)?);
        if word.waits_for(news) && word.counter() != self.woken {
            self.woken = word.counter();
            self.wake();
        }
        Ok(())
    }

    /// Wakes the peer in any case.
    pub(super) fn wake(&self) {
        signal(&self.peer_wake);
    }
}

/// Makes an eventfd readable.
pub(super) fn signal(fd: impl AsFd) {
    // The only possible error, a full counter, means that it is readable.
    let _ = rustix::io::write(fd, &1_u64.to_le_bytes());
}

/// Empties an eventfd.
pub(super) fn drain(fd: impl AsFd) {
    // It is empty already when there is nothing to read.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
