//! Models of the arrays of a thread slot, with a client that may be killed before any of its
//! stores, and daemons that take over from each other. Run with `cargo x loom`.
#![cfg(loom)]

use std::cell::Cell;

use loom::sync::Arc;
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::objects::{NoteCell, carry, strike, take};
use rackpool_ring::request::{ARGUMENTS, Request, RequestRing, RingEntry, RingHeader};
use rackpool_sync::atomic::{AtomicU64, Ordering};

const REFILL: u8 = 2;
const RELEASE: u8 = 3;
const OBJECTS: u64 = 2;

/// A thread slot, its call cell and ring, and the allocation state of the objects.
struct Rack {
    ring: (RingHeader, [RingEntry; 2]),
    cell: CallCell,
    inbox: [AtomicU64; 2],
    outbox: [AtomicU64; 2],
    magazine: [AtomicU64; 2],
    /// 1 at index `n - 1` if object `n` is in use. Only daemons change it, and every daemon sees
    /// it.
    used: [AtomicU64; OBJECTS as usize],
}

impl Rack {
    fn new() -> Arc<Self> {
        let words = || [AtomicU64::new(0), AtomicU64::new(0)];
        let ring = (RingHeader::default(), [RingEntry::default(), RingEntry::default()]);
        let (inbox, outbox) = (words(), words());
        let (cell, magazine, used) = (CallCell::default(), words(), words());
        Arc::new(Self { ring, cell, inbox, outbox, magazine, used })
    }

    fn ring(&self) -> RequestRing<'_> {
        RequestRing::new(&self.ring.0, &self.ring.1)
    }

    fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        self.inbox.iter().chain(&self.outbox).chain(&self.magazine)
    }

    fn used(&self, object: u64) -> &AtomicU64 {
        &self.used[usize::try_from(object - 1).expect("a small number")]
    }

    fn is_used(&self, object: u64) -> bool {
        self.used(object).load(Ordering::Relaxed) == 1
    }

    fn noted(&self, object: u64) -> usize {
        self.places().filter(|place| place.object() == object).count()
    }

    /// The daemon's execution of a request, as in its `requests.rs`.
    fn serve(&self, request: &Request) {
        let mut count = 0;
        match request.code {
            REFILL => {
                let free = (1..=OBJECTS).filter(|object| !self.is_used(*object));
                for (place, object) in self.inbox.iter().zip(free) {
                    assert_eq!(place.object(), 0, "a note is overwritten");
                    place.set(object);
                    self.used(object).store(1, Ordering::Relaxed);
                    count += 1;
                }
            }
            _ => {
                for place in self.outbox.iter().filter(|place| place.object() != 0) {
                    assert!(self.is_used(place.object()), "freed twice");
                    self.used(place.object()).store(0, Ordering::Relaxed);
                    place.set(0);
                }
            }
        }
        self.cell.finish(request.call, &Answer { status: 0, values: [count; VALUES] });
    }

    /// Reclaims a dead client: frees every noted object once.
    fn reclaim(&self) {
        for object in 1..=OBJECTS {
            if self.noted(object) > 0 && self.is_used(object) {
                self.used(object).store(0, Ordering::Relaxed);
            }
        }
        strike(self.places(), |_| true);
    }

    /// Adoption by a new daemon: clears the notes of free objects, whose step a kill has
    /// interrupted.
    fn adopt(&self) {
        strike(self.places(), |object| !self.is_used(object));
    }
}

/// Number of stores that a client still makes.
struct Life(Cell<u32>);

impl Life {
    fn spend(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    fn is_over(&self) -> bool {
        self.0.get() == 0
    }

    fn of<'a, const N: usize>(&'a self, words: &'a [AtomicU64; N]) -> [Mortal<'a>; N] {
        std::array::from_fn(|at| Mortal { word: &words[at], life: self })
    }
}

/// A place that a dead client does not change.
struct Mortal<'a> {
    word: &'a AtomicU64,
    life: &'a Life,
}

impl NoteCell for Mortal<'_> {
    fn object(&self) -> u64 {
        self.word.object()
    }

    fn set(&self, object: u64) {
        if self.life.spend() {
            self.word.set(object);
        }
    }

    fn strike(&self, object: u64) {
        if self.life.spend() {
            self.word.strike(object);
        }
    }
}

/// Sends a request and waits for the answer. Returns its count, or `None` if the client is dead.
fn ask(rack: &Rack, life: &Life, code: u8) -> Option<u64> {
    if !life.spend() {
        return None;
    }
    let call = rack.cell.answered() + 1;
    let entry = Request { code, cell: 0, thread: 0, call, life: 1, arguments: [0; ARGUMENTS] };
    rack.ring().push(&[entry]).expect("there is room");
    loop {
        // The client is killed while it waits.
        if life.is_over() {
            return None;
        }
        if let Some(answer) = rack.cell.answer(call) {
            return Some(answer.values[0]);
        }
        loom::thread::yield_now();
    }
}

/// Refill, `alloc`, `free`, `alloc` and a release. Returns the object that the program has in the
/// end.
fn live(rack: &Rack, life: &Life) -> u64 {
    let (inbox, outbox) = (life.of(&rack.inbox), life.of(&rack.outbox));
    let magazine = life.of(&rack.magazine);
    let mut program = 0;
    let Some(count) = ask(rack, life, REFILL) else { return program };
    let filled = carry(&inbox, &magazine);
    assert!(life.is_over() || filled as u64 == count, "an answer came before what it says");
    let alloc = |at: usize, program: &mut u64| {
        let lives = !life.is_over();
        let object = take(&magazine[at]);
        if lives {
            assert!(object != 0);
            *program = object;
        }
    };
    alloc(1, &mut program);
    if !life.is_over() {
        magazine[1].set(program);
        program = 0;
    }
    alloc(1, &mut program);
    if life.is_over() {
        return program;
    }
    carry(&magazine, &outbox);
    let _ = ask(rack, life, RELEASE);
    program
}

/// The client is killed before each of its stores in turn while the daemon serves its requests.
/// Afterwards only the object that the program has is in use.
#[test]
fn a_client_killed_at_any_store_leaves_nothing_behind() {
    for stores in 0..16 {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let rack = Rack::new();
            let done = Arc::new(AtomicU64::new(0));
            let client = {
                let (rack, done) = (rack.clone(), done.clone());
                loom::thread::spawn(move || {
                    let program = live(&rack, &Life(Cell::new(stores)));
                    done.store(1, Ordering::Release);
                    program
                })
            };
            loop {
                let was_done = done.load(Ordering::Acquire) == 1;
                rack.ring().pop(2, |request| rack.serve(&request));
                if was_done {
                    break;
                }
                loom::thread::yield_now();
            }
            let program = client.join().expect("the client does not panic");
            rack.reclaim();
            for object in 1..=OBJECTS {
                assert_eq!(rack.is_used(object), object == program, "object {object}");
                assert_eq!(rack.noted(object), 0);
            }
        });
    }
}

/// A daemon was killed between the two stores of a release (or before the second one of a refill).
/// The next daemon adopts the slot while the living client continues to use its magazine. The note
/// of the free object is cleared, and no note of an object in use is lost.
#[test]
fn adoption_takes_nothing_from_a_living_client() {
    for on_its_way in 0..2 {
        loom::model(move || {
            let rack = Rack::new();
            // Object 1 is free but noted; object 2 is in the magazine.
            [&rack.outbox, &rack.inbox][on_its_way][0].set(1);
            rack.used(2).store(1, Ordering::Relaxed);
            rack.magazine[0].set(2);
            let client = {
                let rack = rack.clone();
                loom::thread::spawn(move || {
                    let object = take(&rack.magazine[0]);
                    assert_eq!(object, 2, "an object in use was struck out");
                    // The client frees the object and moves it behind the one that waits in the
                    // outbox.
                    rack.magazine[0].set(object);
                    carry(&rack.magazine[..1], &rack.outbox[1..]);
                })
            };
            rack.adopt();
            client.join().expect("the client does not panic");
            assert_eq!(rack.noted(1), 0);
            assert_eq!(rack.outbox[1].object(), 2, "a note of an object in use was lost");
        });
    }
}
