//! Models of a magazine, with an owner that may be killed before any of its stores, and daemons
//! that take over the notes in its cells. Run with `cargo x loom`.
#![cfg(loom)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::sync::Arc;
use rackpool_ring::magazine::Magazine;
use rackpool_ring::objects::{NoteCell, strike};
use rackpool_ring::reservation::ReservationRecord;
use rackpool_sync::atomic::{AtomicU64, Ordering};

const REFILL: u64 = 1;
const RELEASE: u64 = 2;
/// Number of objects that a daemon hands out.
const OBJECTS: u64 = 2;
/// Number of objects in all.
const ALL: usize = 4;
/// More stores than any party makes.
const FOR_EVER: u32 = 1000;

type Words<const N: usize> = [AtomicU64; N];

fn words<const N: usize>() -> Words<N> {
    std::array::from_fn(|_| AtomicU64::new(0))
}

/// A thread slot with one magazine, and the allocation state of the objects.
struct Slot {
    /// Code of the request in flight; 0 after the answer.
    request: AtomicU64,
    inbox: Words<2>,
    outbox: Words<2>,
    magazine: Words<2>,
    reservation: ReservationRecord,
    /// 1 at index `n - 1` if object `n` is in use. Only daemons change it, and every daemon sees
    /// it.
    used: Words<ALL>,
}

impl Slot {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            request: AtomicU64::new(0),
            inbox: words(),
            outbox: words(),
            magazine: words(),
            reservation: ReservationRecord::default(),
            used: words(),
        })
    }

    fn objects() -> impl Iterator<Item = u64> {
        1..=OBJECTS
    }

    fn used(&self, object: u64) -> &AtomicU64 {
        &self.used[usize::try_from(object - 1).expect("a small number")]
    }

    fn is_used(&self, object: u64) -> bool {
        self.used(object).object() == 1
    }

    /// The places that the daemon scans, as in its `clients.rs`.
    fn places(&self) -> impl Iterator<Item = &AtomicU64> {
        let arrays = self.inbox.iter().chain(&self.outbox).chain(&self.magazine);
        arrays.chain(self.reservation.struck())
    }

    fn noted(&self, object: u64) -> usize {
        self.places().filter(|place| place.object() == object).count()
    }

    /// The daemon's execution of a request.
    fn serve(&self, request: u64) {
        if request == REFILL {
            let free = Self::objects().filter(|object| !self.is_used(*object));
            for (place, object) in self.inbox.iter().zip(free) {
                assert_eq!(place.object(), 0, "a note is overwritten");
                place.set(object);
                self.used(object).set(1);
            }
        } else {
            for place in self.outbox.iter().filter(|place| place.object() != 0) {
                assert!(self.is_used(place.object()), "freed twice");
                self.used(place.object()).set(0);
                place.set(0);
            }
        }
        self.request.store(0, Ordering::Release);
    }

    /// Reclaims a dead client: frees every noted object once. The daemon is killed when `life` is
    /// spent.
    fn reclaim(&self, life: &Life) {
        for object in Self::objects().filter(|object| self.noted(*object) > 0) {
            // As in the daemon's `reclaim.rs`, a free object is left alone.
            if self.is_used(object) {
                life.of_word(self.used(object)).set(0);
            }
        }
        for place in self.places().filter(|place| place.object() != 0) {
            life.of_word(place).strike(place.object());
        }
    }

    /// Adoption by a new daemon: clears the notes of free objects, whose step a kill has
    /// interrupted.
    fn adopt(&self) {
        strike(self.places(), |object| !self.is_used(object));
    }

    /// All words that a daemon finds when every other party is dead.
    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        let arrays = self.inbox.iter().chain(&self.outbox).chain(&self.magazine);
        arrays.chain(self.reservation.noted()).chain(&self.used)
    }
}

/// Number of stores that a party still makes.
struct Life(Cell<u32>);

/// The panic payload of a kill: nothing of the killed program runs after it.
struct Killed;

impl Life {
    fn spend(&self) {
        match self.0.get().checked_sub(1) {
            Some(left) => self.0.set(left),
            None => resume_unwind(Box::new(Killed)),
        }
    }

    fn of_word<'a>(&'a self, word: &'a AtomicU64) -> Mortal<'a> {
        Mortal { word, life: self }
    }

    fn of<'a, const N: usize>(&'a self, words: &'a Words<N>) -> [Mortal<'a>; N] {
        std::array::from_fn(|at| self.of_word(&words[at]))
    }
}

/// Runs `work` until it ends or is killed. Returns true if it ended.
fn lives_through(work: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(()) => true,
        Err(reason) if reason.is::<Killed>() => false,
        Err(reason) => resume_unwind(reason),
    }
}

/// A place whose writer may be killed before it writes.
struct Mortal<'a> {
    word: &'a AtomicU64,
    life: &'a Life,
}

impl NoteCell for Mortal<'_> {
    fn object(&self) -> u64 {
        self.word.object()
    }

    fn set(&self, object: u64) {
        self.life.spend();
        // A swap in place of the store: loom allows a store and a compare-and-swap that have not
        // seen each other in either order, although only the earlier one could succeed.
        self.word.swap(object, Ordering::Release);
    }

    fn strike(&self, object: u64) {
        self.life.spend();
        self.word.strike(object);
    }
}

fn ask(slot: &Slot, life: &Life, code: u64) {
    life.spend();
    slot.request.store(code, Ordering::Release);
    while slot.request.load(Ordering::Acquire) != 0 {
        loom::thread::yield_now();
    }
}

/// The life of a thread with its magazine; `program` is the object that the program has.
fn live(slot: &Slot, life: &Life, program: &Cell<u64>) {
    let (inbox, outbox) = (life.of(&slot.inbox), life.of(&slot.outbox));
    let cells = life.of(&slot.magazine);
    let magazine = Magazine::new(2, &cells);
    // Two stores; only the second one takes effect.
    let hold = |object| {
        life.spend();
        slot.reservation.hold(object);
        true
    };
    ask(slot, life, REFILL);
    assert_eq!(magazine.fill(&inbox, &cells), 2, "an answer came before what it says");

    // `alloc`, then `free`.
    let object = magazine.take(&cells, |_| true).expect("it is full");
    program.set(object);
    assert!(magazine.keep(&cells, object));
    program.set(0);
    assert!(!magazine.keep(&cells, 77), "it is full");

    // `reserve`, then `free` of it.
    let object = magazine.take(&cells, hold).expect("it is full");
    assert!(magazine.keep(&cells, object));
    life.spend();
    slot.reservation.clear();

    // The program keeps one object and releases the other.
    program.set(magazine.take(&cells, |_| true).expect("it is full"));
    outbox[0].set(magazine.last(&cells));
    assert!(magazine.take(&cells, |_| true).is_some());
    ask(slot, life, RELEASE);
    assert_eq!(magazine.take(&cells, |_| true), None);
}

/// Serves requests until the client's life is over. Returns the object that its program has, and
/// whether it was killed.
fn serve_a_life(slot: &Arc<Slot>, stores: u32) -> (u64, bool) {
    let over = Arc::new(AtomicU64::new(0));
    let client = {
        let (slot, over) = (slot.clone(), over.clone());
        loom::thread::spawn(move || {
            let program = Cell::new(0);
            let lived = lives_through(|| live(&slot, &Life(Cell::new(stores)), &program));
            over.store(1, Ordering::Release);
            (program.get(), !lived)
        })
    };
    loop {
        let was_over = over.load(Ordering::Acquire) == 1;
        let request = slot.request.load(Ordering::Acquire);
        if request != 0 {
            slot.serve(request);
        } else if was_over {
            break;
        } else {
            loom::thread::yield_now();
        }
    }
    client.join().expect("the client does not panic")
}

/// Checks that everything found is taken back by a daemon that is killed before each of its stores
/// in turn, and then by the next one.
fn take_back(slot: &Slot, program: u64) {
    let found: Vec<u64> = slot.words().map(NoteCell::object).collect();
    for stores in 0.. {
        slot.words().zip(&found).for_each(|(word, was)| word.set(*was));
        let life = Life(Cell::new(stores));
        let finished = lives_through(|| slot.reclaim(&life));
        if !finished {
            slot.adopt();
            slot.reclaim(&Life(Cell::new(FOR_EVER)));
        }
        for object in Slot::objects() {
            assert_eq!(slot.is_used(object), object == program, "object {object}");
            assert_eq!(slot.noted(object), 0, "object {object}");
        }
        if finished {
            return;
        }
    }
}

/// The owner is killed before each of its stores in turn while a daemon serves it. Afterwards only
/// the object that the program has is in use.
#[test]
fn what_a_killed_owner_left_goes_back_once() {
    let lived = std::sync::Arc::new(std::sync::OnceLock::new());
    for stores in 0..FOR_EVER {
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 10_000;
        let says = lived.clone();
        builder.check(move || {
            let slot = Slot::new();
            let (program, was_killed) = serve_a_life(&slot, stores);
            take_back(&slot, program);
            if !was_killed {
                let _ = says.set(());
            }
        });
        if lived.get().is_some() {
            assert!(stores > 10, "killed at {stores} stores only");
            return;
        }
    }
    panic!("the owner's life does not end");
}

/// A daemon was killed, and the next one adopts the slot of a living owner that continues to use
/// its magazine. The free object with a note (object 1, in one of the places) is struck out. No
/// note of an object in use is lost, and no object is handed out or kept twice.
#[test]
fn an_owner_goes_on_while_a_new_daemon_strikes_out_what_is_free() {
    for place in 0..4 {
        loom::model(move || {
            let slot = Slot::new();
            // Object 2 is in the magazine, the program has object 3, object 4 is reserved.
            [2, 3, 4].into_iter().for_each(|object| slot.used(object).set(1));
            slot.magazine[1].set(2);
            slot.reservation.hold(if place == 3 { 1 } else { 4 });
            match place {
                0 => slot.inbox[0].set(1),
                1 => slot.outbox[0].set(1),
                2 => slot.magazine[0].set(1),
                _ => slot.magazine[0].set(4),
            }
            let owner = {
                let slot = slot.clone();
                loom::thread::spawn(move || go_on(&slot))
            };
            slot.adopt();
            let first = owner.join().expect("the owner does not panic");
            for object in 2..=4 {
                let is_noted = slot.noted(object) == 1;
                assert!(is_noted || first == Some(object), "object {object} is lost");
            }
            assert_eq!(slot.noted(1), 0);
            match place {
                // After a double free it may have been handed out before its note was cleared.
                2 => assert!(matches!(first, None | Some(1))),
                3 => assert_eq!(first, Some(4)),
                _ => assert_eq!(first, None),
            }
        });
    }
}

/// Pops all objects and frees two. Returns the object that was in the first cell.
fn go_on(slot: &Slot) -> Option<u64> {
    let life = Life(Cell::new(FOR_EVER));
    let cells = life.of(&slot.magazine);
    let magazine = Magazine::new(2, &cells);
    assert_eq!(magazine.take(&cells, |_| true), Some(2), "an object in use was struck out");
    let first = magazine.take(&cells, |_| true);
    for object in [2, 3] {
        assert!(magazine.keep(&cells, object));
    }
    first
}
