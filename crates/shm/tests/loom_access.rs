//! Models of the handshake of access slot and page word. Run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_model::{FrameId, Occupants, PageEvent, PageId, PageWord};
use rackpool_shm::access::{AccessIntent, AccessSlot, PageWordRef, is_quiesced};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::{Barrier, heavy};

const FRAME: FrameId = FrameId(0);

fn live() -> PageWord {
    PageWord::free(PageId(1)).apply(PageEvent::Allocated).expect("a free page can be allocated")
}

/// A client writes under its slot while the daemon revokes the page and gives the frame to another
/// owner: the write must never land in the new owner's bytes.
#[test]
fn a_write_never_lands_after_the_drain() {
    loom::model(|| {
        let slot = Arc::new(AccessSlot::new());
        let word = Arc::new(AtomicU64::new(live().raw()));
        let bytes = Arc::new(AtomicU64::new(0));
        let client = {
            let (slot, word, bytes) = (slot.clone(), word.clone(), bytes.clone());
            loom::thread::spawn(move || {
                if let Ok(_guard) = slot.enter(
                    FRAME,
                    AccessIntent::Write,
                    PageWordRef::new(&word),
                    live(),
                    Barrier::Full,
                ) {
                    bytes.store(7, Ordering::Relaxed);
                }
            })
        };
        let leaving = live().apply(PageEvent::Left).expect("a live page can leave");
        word.store(leaving.raw(), Ordering::Release);
        heavy();
        if is_quiesced(FRAME, Occupants::Everyone, [&*slot]) {
            let before = bytes.load(Ordering::Relaxed);
            client.join().expect("the client does not panic");
            assert_eq!(bytes.load(Ordering::Relaxed), before, "a write landed after the quiesce");
        } else {
            client.join().expect("the client does not panic");
        }
    });
}

/// A client's write under its guard is visible to the daemon that found the frame quiesced.
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
                if let Ok(guard) =
                    slot.enter(FRAME, AccessIntent::Write, word, live(), Barrier::Full)
                {
                    bytes.store(7, Ordering::Relaxed);
                    drop(guard);
                    entered.store(1, Ordering::Relaxed);
                }
            })
        };
        let frozen = live().apply(PageEvent::Frozen).expect("a live page can be frozen");
        word.store(frozen.raw(), Ordering::Release);
        heavy();
        if is_quiesced(FRAME, Occupants::Writers, [&*slot]) {
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

/// Readers continue in a frozen page: one that knows the old word gets the new one and enters with
/// it, and the daemon waits for none.
#[test]
fn a_reader_goes_on_while_a_page_is_frozen_and_holds_nobody_up() {
    loom::model(|| {
        let slot = Arc::new(AccessSlot::new());
        let word = Arc::new(AtomicU64::new(live().raw()));
        let frozen = live().apply(PageEvent::Frozen).expect("a live page can be frozen");
        let client = {
            let (slot, word) = (slot.clone(), word.clone());
            loom::thread::spawn(move || {
                let word = PageWordRef::new(&word);
                let entered = slot.enter(FRAME, AccessIntent::Read, word, live(), Barrier::Full);
                if let Err(found) = entered.map(drop) {
                    assert_eq!(found, frozen);
                    let again = slot.enter(FRAME, AccessIntent::Read, word, found, Barrier::Full);
                    assert!(again.is_ok(), "a reader was kept out of a frozen page");
                }
            })
        };
        word.store(frozen.raw(), Ordering::Release);
        heavy();
        assert!(is_quiesced(FRAME, Occupants::Writers, [&*slot]), "a reader was waited for");
        client.join().expect("the client does not panic");
    });
}

/// A frozen page leaves, its frame is found quiesced and gets another page: from then on no thread
/// reads the old bytes, whichever word it knew.
#[test]
fn nobody_reads_old_bytes_once_a_page_that_left_is_drained() {
    for knew_it_live in [true, false] {
        loom::model(move || {
            let frozen = live().apply(PageEvent::Frozen).expect("a live page can be frozen");
            let known = if knew_it_live { live() } else { frozen };
            let slot = Arc::new(AccessSlot::new());
            let word = Arc::new(AtomicU64::new(known.raw()));
            let vacated = Arc::new(AtomicU64::new(0));
            let client = {
                let (slot, word) = (slot.clone(), word.clone());
                let vacated = vacated.clone();
                loom::thread::spawn(move || {
                    let word = PageWordRef::new(&word);
                    if let Ok(_guard) =
                        slot.enter(FRAME, AccessIntent::Read, word, known, Barrier::Full)
                    {
                        let before = vacated.load(Ordering::Relaxed);
                        assert_eq!(before, 0, "the frame has another page and was read");
                    }
                })
            };
            let left = frozen.apply(PageEvent::Left).expect("a frozen page can leave");
            word.store(frozen.raw(), Ordering::Release);
            word.store(left.raw(), Ordering::Release);
            heavy();
            if is_quiesced(FRAME, Occupants::Everyone, [&*slot]) {
                vacated.store(1, Ordering::Relaxed);
            }
            client.join().expect("the client does not panic");
        });
    }
}

/// A page leaves, and its new home is told without a barrier: a read that begins later is refused,
/// whichever word the reader knew. A reader that loaded the word earlier may still be in the frame.
#[test]
fn nobody_enters_a_page_once_its_new_home_knows_that_it_has_left() {
    for knew_it_live in [true, false] {
        loom::model(move || {
            let frozen = live().apply(PageEvent::Frozen).expect("a live page can be frozen");
            let known = if knew_it_live { live() } else { frozen };
            let slot = Arc::new(AccessSlot::new());
            let word = Arc::new(AtomicU64::new(known.raw()));
            let told = Arc::new(AtomicU64::new(0));
            let client = {
                let (slot, word, told) = (slot.clone(), word.clone(), told.clone());
                loom::thread::spawn(move || {
                    let begins_after = told.load(Ordering::Acquire) == 1;
                    let word = PageWordRef::new(&word);
                    let entered = slot.enter(FRAME, AccessIntent::Read, word, known, Barrier::Full);
                    assert!(!(begins_after && entered.is_ok()), "the page is written elsewhere");
                })
            };
            let left = frozen.apply(PageEvent::Left).expect("a frozen page can leave");
            word.store(frozen.raw(), Ordering::Release);
            word.store(left.raw(), Ordering::Release);
            told.store(1, Ordering::Release);
            client.join().expect("the client does not panic");
        });
    }
}
