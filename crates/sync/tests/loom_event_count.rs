//! A loom model of the event count, run with `cargo x loom`. A lost wake-up is a deadlock, which
//! loom reports.
#![cfg(loom)]

mod eventfd;

use eventfd::EventFd;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use rackpool_sync::{Awaited, Doorbell, EventCount, SleepWord};

/// One side of a link: the memory that its sleeper reads.
#[derive(Default)]
struct Side {
    sleep_word: AtomicU64,
    messages: AtomicU64,
    room: AtomicU64,
    event: EventFd,
}

impl Side {
    /// Publishes an event to the sleeper and rings its doorbell if it must be woken.
    fn tell(&self, doorbell: &mut Doorbell, event: Awaited, fenced: bool) {
        let place = match event {
            Awaited::Message => &self.messages,
            Awaited::Room => &self.room,
        };
        // Only this thread stores to it.
        place.store(place.load(Ordering::Relaxed) + 1, Ordering::Release);
        if fenced {
            fence(Ordering::SeqCst);
        }
        let word = SleepWord::from_raw(self.sleep_word.load(Ordering::Relaxed));
        if doorbell.must_ring(word, event) {
            self.event.ring();
        }
    }

    fn seen(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Acquire), self.room.load(Ordering::Acquire))
    }

    /// Sleeps while nothing is new, until `messages` messages and `room` units of room were seen.
    /// An event of room counts only while the sleeper waits for room.
    fn sleep_until(&self, messages: u64, room: u64) {
        let mut event_count = EventCount::default();
        loop {
            let seen = self.seen();
            if seen.0 >= messages && seen.1 >= room {
                return;
            }
            let wants_room = seen.1 < room;
            self.sleep_word.store(event_count.begin(wants_room).raw(), Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let now = self.seen();
            if now.0 == seen.0 && (now.1 == seen.1 || !wants_room) {
                self.event.wait();
            }
            self.event.drain();
            self.sleep_word.store(event_count.end().raw(), Ordering::Relaxed);
        }
    }
}

fn check(event: &'static [Awaited], fenced: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let side = Arc::new(Side::default());
        let teller = {
            let side = side.clone();
            loom::thread::spawn(move || {
                let mut doorbell = Doorbell::default();
                for event in event {
                    side.tell(&mut doorbell, *event, fenced);
                }
            })
        };
        let count = |kind| event.iter().filter(|event| **event == kind).count() as u64;
        side.sleep_until(count(Awaited::Message), count(Awaited::Room));
        teller.join().expect("a teller does not panic");
    });
}

#[test]
fn messages_wake_a_sleeper() {
    check(&[Awaited::Message, Awaited::Message], true);
}

#[test]
fn room_wakes_a_sleeper_that_wants_it() {
    check(&[Awaited::Room], true);
}

/// One doorbell serves both kinds of event, and one sleep may see several events.
#[test]
fn messages_and_room_wake_a_sleeper() {
    check(&[Awaited::Message, Awaited::Room, Awaited::Message], true);
}

/// The model fails without the fence.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fence_a_message_is_slept_through() {
    check(&[Awaited::Message], false);
}
