//! Models of clients that write a dirty-logged page and log the lines. Run with `cargo x loom`.
#![cfg(loom)]

use std::collections::BTreeSet;

use loom::sync::Arc;
use rackpool_model::{FrameId, Occupants, PageEvent, PageId, PageWord};
use rackpool_shm::access::{AccessSlot, PageWordRef, is_quiesced};
use rackpool_shm::dirty_log::DirtyLog;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};
use rackpool_sync::barrier::heavy;

const FRAME: FrameId = FrameId(0);

/// A page of one line, and the slot and log of the client that writes it.
struct Page {
    word: AtomicU64,
    slot: AccessSlot,
    lines: DirtyLog,
    bytes: AtomicU64,
}

fn live() -> PageWord {
    PageWord::free(PageId(1)).apply(PageEvent::Allocated).expect("a free page can be allocated")
}

fn closed() -> PageWord {
    live().apply(PageEvent::Frozen).expect("a live page can be frozen")
}

fn dirty_logged() -> PageWord {
    closed().apply(PageEvent::DirtyLogged).expect("a frozen page can be dirty-logged")
}

impl Page {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU64::new(dirty_logged().raw()),
            slot: AccessSlot::new(),
            lines: DirtyLog::default(),
            bytes: AtomicU64::new(0),
        })
    }

    /// One write of the client.
    fn write(&self, value: u64) {
        let word = PageWordRef::new(&self.word);
        if let Ok(_guard) = self.slot.enter_dirty_logged(FRAME, word, dirty_logged())
            && self.lines.note(FRAME, 0, 8)
        {
            self.bytes.store(value, Ordering::Relaxed);
        }
    }

    fn take(&self, into: &mut BTreeSet<u32>) {
        self.lines.take(|_, lines| into.extend(lines));
    }

    /// The daemon freezes the page without dirty logging. Returns true if no client writes it any
    /// more.
    fn close(&self) -> bool {
        self.word.store(closed().raw(), Ordering::Release);
        fence(Ordering::SeqCst);
        is_quiesced(FRAME, Occupants::Writers, [&self.slot])
    }
}

#[test]
fn whatever_is_written_by_then_is_noted_and_nothing_is_written_later() {
    loom::model(|| {
        let page = Page::new();
        let client = {
            let page = page.clone();
            loom::thread::spawn(move || page.write(7))
        };
        if page.close() {
            let mut lines = BTreeSet::new();
            page.take(&mut lines);
            let bytes = page.bytes.load(Ordering::Relaxed);
            assert!(bytes == 0 || lines.contains(&0), "the new home misses a write");
            client.join().expect("the client does not panic");
            assert_eq!(page.bytes.load(Ordering::Relaxed), bytes, "a write landed later");
        } else {
            client.join().expect("the client does not panic");
        }
    });
}

#[test]
fn what_is_written_again_is_noted_again_or_has_been_taken() {
    loom::model(|| {
        let page = Page::new();
        let client = {
            let page = page.clone();
            loom::thread::spawn(move || {
                page.write(7);
                page.write(8);
            })
        };
        let mut lines = BTreeSet::new();
        page.take(&mut lines);
        if page.close() {
            page.take(&mut lines);
            let bytes = page.bytes.load(Ordering::Relaxed);
            assert!(bytes == 0 || lines.contains(&0), "the new home misses a write");
        }
        client.join().expect("the client does not panic");
    });
}

/// A swap is aborted and its log discarded. The next swap finds a client in the middle of a write
/// that began during the first one.
#[test]
fn who_writes_since_an_earlier_swap_is_not_forgotten() {
    loom::model(|| {
        let page = Page::new();
        let client = {
            let page = page.clone();
            loom::thread::spawn(move || page.write(7))
        };
        page.word.store(live().raw(), Ordering::Release);
        page.take(&mut BTreeSet::new());

        let mut lines = BTreeSet::new();
        page.word.store(dirty_logged().raw(), Ordering::Release);
        page.lines.look_at_last(|_, last| lines.extend(last));
        heavy();
        if is_quiesced(FRAME, Occupants::NotDirtyLogged, [&page.slot]) {
            let copy = page.bytes.load(Ordering::Relaxed);
            if page.close() {
                page.take(&mut lines);
                let bytes = page.bytes.load(Ordering::Relaxed);
                assert!(bytes == copy || lines.contains(&0), "the copy lacks a write");
            }
        }
        client.join().expect("the client does not panic");
    });
}
