//! Model of the meeting of access slot and page word: run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_model::{FrameId, PageEvent, PageId, PageWord};
use rackpool_shm::access::{AccessSlot, Drain, Intent, PageWordRef, is_drained};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::{Barrier, heavy};

const FRAME: FrameId = FrameId(0);

fn live() -> PageWord {
    PageWord::free(PageId(1)).apply(PageEvent::Allocated).expect("a free page can be allocated")
}

/// A client writes through its slot while the daemon takes the page away and hands the frame to
/// somebody else: the client's write must never land in the new owner's bytes.
#[test]
fn a_write_never_lands_after_the_drain() {
    loom::model(|| {
        let slot = Arc::new(AccessSlot::new());
        let word = Arc::new(AtomicU64::new(live().raw()));
        let bytes = Arc::new(AtomicU64::new(0));
        let client = {
            let (slot, word, bytes) = (slot.clone(), word.clone(), bytes.clone());
            loom::thread::spawn(move || {
                if let Ok(_guard) =
                    slot.enter(FRAME, Intent::Write, PageWordRef::new(&word), live(), Barrier::Full)
                {
                    bytes.store(7, Ordering::Relaxed);
                }
            })
        };
        let leaving = live().apply(PageEvent::Left).expect("a live page can leave");
        word.store(leaving.raw(), Ordering::Release);
        heavy();
        if is_drained(FRAME, Drain::Everyone, [&*slot]) {
            let before = bytes.load(Ordering::Relaxed);
            client.join().expect("the client does not panic");
            assert_eq!(bytes.load(Ordering::Relaxed), before, "a write landed after the drain");
        } else {
            client.join().expect("the client does not panic");
        }
    });
}

/// What a client wrote under its guard is seen by whoever found the frame drained.
#[test]
fn drained_means_the_write_is_visible() {
    loom::model(|| {
        let slot = Arc::new(AccessSlot::new());
        let word = Arc::new(AtomicU64::new(live().raw()));
        let bytes = Arc::new(AtomicU64::new(0));
        let entered = Arc::new(AtomicU64::new(0));
        let client = {
            let (slot, word) = (slot.clone(), word.clone());
            let (bytes, entered) = (bytes.clone(), entered.clone());
            loom::thread::spawn(move || {
                let word = PageWordRef::new(&word);
                if let Ok(guard) = slot.enter(FRAME, Intent::Write, word, live(), Barrier::Full) {
                    bytes.store(7, Ordering::Relaxed);
                    drop(guard);
                    entered.store(1, Ordering::Relaxed);
                }
            })
        };
        let frozen = live().apply(PageEvent::Frozen).expect("a live page can be frozen");
        word.store(frozen.raw(), Ordering::Release);
        heavy();
        if is_drained(FRAME, Drain::Writers, [&*slot]) {
            let seen = bytes.load(Ordering::Relaxed);
            client.join().expect("the client does not panic");
            if entered.load(Ordering::Relaxed) == 1 {
                assert_eq!(seen, 7, "the copy of a frozen page misses an acknowledged write");
            }
        } else {
            client.join().expect("the client does not panic");
        }
    });
}
