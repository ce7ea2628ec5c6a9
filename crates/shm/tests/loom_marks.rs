//! Models of two clients that free the same object, each of which may be killed before any of its
//! stores; the daemon then takes back what the dead one noted. Run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_model::ClientId;
use rackpool_shm::marks::{Mark, ObjectHolder};
use rackpool_sync::atomic::{AtomicU64, Ordering};

/// Number of stores of a free: the note, the mark, and the removal of the note if another client
/// has the mark.
const STEPS: u32 = 3;

/// One object that a program has, and a magazine cell of each client.
struct Rack {
    mark: Mark,
    bit: AtomicU64,
    notes: [AtomicU64; 2],
}

impl Rack {
    fn new() -> Arc<Self> {
        let notes = [AtomicU64::new(0), AtomicU64::new(0)];
        Arc::new(Self { mark: Mark::new(), bit: AtomicU64::new(1), notes })
    }

    fn holder(client: usize) -> ObjectHolder {
        ObjectHolder::of(ClientId(u32::try_from(client).expect("0 or 1")))
    }

    /// Executes the first `steps` stores of a client's free. Returns whether the free succeeded, or
    /// `None` if the client was killed before it knew.
    fn free(&self, client: usize, steps: u32) -> Option<bool> {
        if steps > 0 {
            self.notes[client].store(1, Ordering::Release);
        }
        if steps < 2 {
            return None;
        }
        let took = self.mark.take(Self::holder(client));
        if took {
            return Some(true);
        }
        if steps < STEPS {
            return None;
        }
        self.notes[client].store(0, Ordering::Release);
        Some(false)
    }

    /// The daemon reclaims a dead client's note. Returns true if it freed the object.
    fn reclaim(&self, client: usize) -> bool {
        if self.notes[client].load(Ordering::Acquire) == 0 {
            return false;
        }
        let frees =
            self.bit.load(Ordering::Relaxed) == 1 && self.mark.take_or_holds(Self::holder(client));
        if frees {
            self.bit.store(0, Ordering::Relaxed);
        }
        self.notes[client].store(0, Ordering::Release);
        frees
    }

    fn noted(&self, client: usize) -> bool {
        self.notes[client].load(Ordering::Acquire) == 1
    }
}

#[test]
fn one_of_two_frees_has_the_object() {
    loom::model(|| {
        let rack = Rack::new();
        let other = {
            let rack = rack.clone();
            loom::thread::spawn(move || rack.free(1, STEPS))
        };
        let told = [rack.free(0, STEPS), other.join().expect("a client does not panic")];
        assert!(told == [Some(true), Some(false)] || told == [Some(false), Some(true)]);
        for (client, told) in told.into_iter().enumerate() {
            assert_eq!(Some(rack.noted(client)), told, "client {client}");
        }
    });
}

/// One client is killed before one of its stores while the other one frees the same object.
#[test]
fn a_kill_inside_a_free_loses_nothing_and_gives_nothing_to_two() {
    for steps in 0..=STEPS {
        loom::model(move || {
            let rack = Rack::new();
            let other = {
                let rack = rack.clone();
                loom::thread::spawn(move || rack.free(1, STEPS))
            };
            let _unsaid = rack.free(0, steps);
            let told = other.join().expect("a client does not panic");
            let freed = rack.reclaim(0);
            assert_eq!(told, Some(rack.noted(1)));
            assert_ne!(rack.noted(1), freed, "killed before store {steps}");
            assert!(!rack.noted(0));
        });
    }
}

/// A client that hands the object out of its magazine is killed before one of its stores while
/// another client frees the object, which is a double free.
#[test]
fn a_kill_inside_an_allocation_loses_nothing_and_gives_nothing_to_two() {
    for steps in 0..=2 {
        loom::model(move || {
            let rack = Rack::new();
            assert_eq!(rack.free(0, STEPS), Some(true));
            let other = {
                let rack = rack.clone();
                loom::thread::spawn(move || rack.free(1, STEPS))
            };
            if steps > 0 {
                rack.mark.hand_out();
            }
            if steps > 1 {
                rack.notes[0].store(0, Ordering::Release);
            }
            let told = other.join().expect("a client does not panic");
            let freed = rack.reclaim(0);
            assert_eq!(told, Some(rack.noted(1)));
            if steps > 1 {
                assert!(!freed, "the program has it, or the other one");
            } else {
                assert_ne!(rack.noted(1), freed, "killed before store {steps}");
            }
        });
    }
}
