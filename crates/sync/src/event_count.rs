//! An event count for two parties: each sleeps in the kernel and publishes that in a word of its
//! own; the peer can read that word, not write it, and wakes the sleeper through a doorbell (an
//! eventfd).

/// One side's sleep state: `counter << 2 | wants room << 1 | asleep`. It lies in memory that the
/// peer can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepWord(u64);

/// What a sleeper waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A message in the ring that it reads.
    Message,
    /// Room in the ring that it writes.
    Room,
}

/// The sleeper's half. It numbers the sleeps of one side, so that the peer rings the doorbell once
/// for each.
///
/// The sleeper stores the word returned by [`begin`](Self::begin), executes a full fence, checks
/// its rings once more, and sleeps only if they are unchanged. After waking it stores the word
/// returned by [`end`](Self::end), drains the eventfd and checks all of its rings again.
#[derive(Debug, Default)]
pub struct EventCount(u64);

/// The waker's half. It remembers the last sleep of the peer that it has ended. The waker stores
/// its message, executes a full fence, loads the peer's word and calls
/// [`must_ring`](Self::must_ring). With a full fence on both sides either the waker sees the sleep
/// or the sleeper sees the message, so no wake-up is lost.
///
/// ```
/// use rackpool_sync::{Doorbell, Awaited, EventCount};
/// let (mut event_count, mut doorbell) = (EventCount::default(), Doorbell::default());
/// assert!(!doorbell.must_ring(event_count.end(), Awaited::Message), "it is awake");
/// let asleep = event_count.begin(false);
/// assert!(!doorbell.must_ring(asleep, Awaited::Room), "it wants none");
/// assert!(doorbell.must_ring(asleep, Awaited::Message));
/// assert!(!doorbell.must_ring(asleep, Awaited::Message), "it is being woken");
/// ```
#[derive(Debug, Default)]
pub struct Doorbell(u64);

impl SleepWord {
    /// Interprets a word loaded from the peer's memory. Every value is accepted.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the value to store.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    const fn new(counter: u64, asleep: bool, wants_room: bool) -> Self {
        Self(counter << 2 | (wants_room as u64) << 1 | asleep as u64)
    }

    const fn waits_for(self, event: Awaited) -> bool {
        let wants_room = self.0 & 2 != 0;
        self.0 & 1 != 0 && (wants_room || matches!(event, Awaited::Message))
    }
}

impl EventCount {
    /// Begins the next sleep and returns the word to store before it. `wants_room`: the sleeper
    /// also waits for room.
    pub const fn begin(&mut self, wants_room: bool) -> SleepWord {
        self.0 += 1;
        SleepWord::new(self.0, true, wants_room)
    }

    /// Returns the word to store when the current sleep is over.
    #[must_use]
    pub const fn end(&self) -> SleepWord {
        SleepWord::new(self.0, false, false)
    }
}

impl Doorbell {
    /// Returns true if the caller must ring the peer's doorbell for `event`, at most once for each
    /// sleep.
    pub fn must_ring(&mut self, peer: SleepWord, event: Awaited) -> bool {
        let counter = peer.0 >> 2;
        let rings = peer.waits_for(event) && counter != self.0;
        if rings {
            self.0 = counter;
        }
        rings
    }
}
