//! Sleeping beside a peer that may not write this side's memory, and wakes it with an event.

/// Whether one side sleeps, and for what: `counter << 2 | wants room << 1 | asleep`. It stands
/// where the peer can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepWord(u64);

/// What the sleeper may be waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Something new for it.
    Message,
    /// Room in the ring that it fills.
    Room,
}

/// The sleeps of one side: each has a number, so that the peer knows which it has ended already.
///
/// The sleeper stores the word of [`begin`](Self::begin), fences, looks a last time whether there
/// is anything to do, and only then sleeps until its event is rung. Afterwards it stores the word
/// of [`end`](Self::end), empties the event and looks at everything again.
#[derive(Debug, Default)]
pub struct EventCount(u64);

/// What one side has ended of the peer's sleeps. It stores what is new for the peer, fences, loads
/// the peer's word and asks [`must_ring`](Self::must_ring). With a full fence on both sides at
/// least one sees the other: nothing is slept through.
///
/// ```
/// use rackpool_model::{Doorbell, Awaited, EventCount};
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
    /// From what stands in memory that the peer writes: any value is possible.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// What to store.
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
    /// The next sleep.
    pub const fn begin(&mut self, wants_room: bool) -> SleepWord {
        self.0 += 1;
        SleepWord::new(self.0, true, wants_room)
    }

    /// It is over.
    #[must_use]
    pub const fn end(&self) -> SleepWord {
        SleepWord::new(self.0, false, false)
    }
}

impl Doorbell {
    /// Whether the peer's event has to be rung, once for each sleep.
    pub fn must_ring(&mut self, peer: SleepWord, event: Awaited) -> bool {
        let counter = peer.0 >> 2;
        let rings = peer.waits_for(event) && counter != self.0;
        if rings {
            self.0 = counter;
        }
        rings
    }
}
