//! Models of pins: a reader, a remover, and the daemon that reuses the object's memory. Run with
//! `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_ring::pins::{pin, pinned};
use rackpool_ring::sparse_array::{HighWater, SparseArray};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::{Barrier, heavy};

const OBJECT: u64 = 64;
const SEALED: u64 = 7;
const REUSED: u64 = 9;

/// A mistake of a reader or of the daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// The reader loads the link again without a barrier after its note.
    PinWithoutBarrier,
    /// The reader does not load the link again.
    PinWithoutSearch,
    /// The daemon scans without a barrier.
    ScanWithoutBarrier,
    /// The daemon forgets the pins of a client that lives.
    ForgetPins,
}

#[derive(Default)]
struct Rack {
    high_water: HighWater,
    cells: [AtomicU64; 2],
    link: AtomicU64,
    /// The object's bytes.
    bytes: AtomicU64,
    bug: Option<Bug>,
}

impl Rack {
    fn new(bug: Option<Bug>) -> Arc<Self> {
        let rack = Self { bug, ..Self::default() };
        rack.link.store(OBJECT, Ordering::Relaxed);
        rack.bytes.store(SEALED, Ordering::Relaxed);
        Arc::new(rack)
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn pins(&self) -> SparseArray<'_> {
        SparseArray::new(&self.high_water, &self.cells)
    }

    /// Pins the object in a cell, and reads it twice if the pin counts.
    fn read(&self, cell: usize) {
        if self.link.load(Ordering::Acquire) != OBJECT {
            return;
        }
        if self.has(Bug::PinWithoutBarrier) {
            assert!(self.pins().note(cell, OBJECT));
        } else {
            assert!(pin(&self.pins(), cell, OBJECT, Barrier::Full));
        }
        if self.has(Bug::PinWithoutSearch) || self.link.load(Ordering::Acquire) == OBJECT {
            for _ in 0..2 {
                let bytes = self.bytes.load(Ordering::Relaxed);
                assert_eq!(bytes, SEALED, "the bytes of a pinned object were reused");
            }
        }
        self.pins().clear(cell);
    }

    /// Unlinks the object, and reuses its memory if a scan after the barrier finds no pin. Returns
    /// true if it did.
    fn remove(&self) -> bool {
        self.link.store(0, Ordering::Release);
        if !self.has(Bug::ScanWithoutBarrier) {
            heavy();
        }
        if self.has(Bug::ForgetPins) {
            (0..self.cells.len()).for_each(|cell| self.pins().clear(cell));
        }
        let is_pinned = pinned(&self.pins()).any(|object| object == OBJECT);
        if !is_pinned {
            self.bytes.store(REUSED, Ordering::Relaxed);
        }
        !is_pinned
    }
}

/// A reader beside the removal of the object.
fn run(bug: Option<Bug>) {
    loom::model(move || {
        let rack = Rack::new(bug);
        let reader = {
            let rack = Arc::clone(&rack);
            loom::thread::spawn(move || rack.read(0))
        };
        rack.remove();
        reader.join().expect("the reader does not panic");
        assert!(rack.remove(), "a pin outlives its reader");
    });
}

#[test]
fn the_bytes_of_a_pinned_object_are_not_reused() {
    run(None);
}

#[test]
#[should_panic(expected = "the bytes of a pinned object were reused")]
fn a_pin_without_barrier_is_found() {
    run(Some(Bug::PinWithoutBarrier));
}

#[test]
#[should_panic(expected = "the bytes of a pinned object were reused")]
fn a_pin_without_search_is_found() {
    run(Some(Bug::PinWithoutSearch));
}

#[test]
#[should_panic(expected = "the bytes of a pinned object were reused")]
fn a_scan_without_barrier_is_found() {
    run(Some(Bug::ScanWithoutBarrier));
}

#[test]
#[should_panic(expected = "the bytes of a pinned object were reused")]
fn pins_of_a_client_that_lives_count() {
    run(Some(Bug::ForgetPins));
}

/// Two threads of a client raise the high-water mark at the same time.
#[test]
fn the_pin_of_each_of_two_readers_counts() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let rack = Rack::new(None);
        let readers = [1, 0].map(|cell| {
            let rack = Arc::clone(&rack);
            loom::thread::spawn(move || rack.read(cell))
        });
        rack.remove();
        for reader in readers {
            reader.join().expect("the reader does not panic");
        }
    });
}
