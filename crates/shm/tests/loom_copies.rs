//! Models of reading a copy while it is withdrawn. Run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_shm::published::PublishedCopy;
use rackpool_sync::atomic::{AtomicU64, Ordering};

const COPY: u64 = 7;
const LATER: u64 = 8;
const UNTIL: u64 = 100;

/// A copy in a frame, and the word that its home allows to be written once the copy is withdrawn.
struct Frame {
    published: PublishedCopy,
    bytes: AtomicU64,
    written: AtomicU64,
}

impl Frame {
    fn published() -> Arc<Self> {
        let published = PublishedCopy::hidden();
        published.show(COPY, UNTIL);
        Arc::new(Self { published, bytes: AtomicU64::new(1), written: AtomicU64::new(0) })
    }

    fn read(&self, copy: u64) -> Option<u64> {
        self.published.read(copy, || self.bytes.load(Ordering::Relaxed), || UNTIL - 1)
    }
}

/// The frame gets another owner, which writes other bytes, and then another copy.
#[test]
fn nobody_takes_other_bytes_for_those_of_a_copy() {
    loom::model(|| {
        let frame = Frame::published();
        let reader = {
            let frame = frame.clone();
            loom::thread::spawn(move || frame.read(COPY))
        };
        frame.published.hide();
        frame.bytes.store(2, Ordering::Relaxed);
        frame.published.show(LATER, UNTIL);
        let found = reader.join().expect("the reader does not panic");
        assert!(found.is_none_or(|found| found == 1), "{found:?} was read");
        assert_eq!(frame.read(LATER), Some(2));
    });
}

/// A reader that knows of a write after the withdrawal does not read the copy.
#[test]
fn who_knows_of_a_write_does_not_read_what_was_before() {
    loom::model(|| {
        let frame = Frame::published();
        let reader = {
            let frame = frame.clone();
            loom::thread::spawn(move || {
                let knows = frame.written.load(Ordering::Acquire) == 1;
                (knows, frame.read(COPY))
            })
        };
        frame.published.hide();
        frame.written.store(1, Ordering::Release);
        let (knows, found) = reader.join().expect("the reader does not panic");
        assert!(!(knows && found.is_some()), "an old value was read");
    });
}

#[test]
fn what_is_read_after_its_time_does_not_count() {
    loom::model(|| {
        let frame = Frame::published();
        assert_eq!(frame.read(COPY), Some(1));
        assert_eq!(frame.published.read(COPY, || 1, || UNTIL), None);
        assert_eq!(frame.read(COPY + 1), None);
    });
}

/// The lease is renewed during a long read.
#[test]
fn a_copy_that_is_shown_for_longer_while_it_is_read_counts() {
    loom::model(|| {
        let frame = Frame::published();
        let renews = || {
            frame.published.show(COPY, 2 * UNTIL);
            frame.bytes.load(Ordering::Relaxed)
        };
        assert_eq!(frame.published.read(COPY, renews, || UNTIL + 1), Some(1));
    });
}

/// The frame gets a later copy with a longer validity, which must not extend the earlier one's.
#[test]
fn the_time_of_a_later_copy_is_none_of_an_earlier_one() {
    loom::model(|| {
        let frame = Frame::published();
        let reader = {
            let frame = frame.clone();
            loom::thread::spawn(move || frame.published.read(COPY, || (), || UNTIL + 1))
        };
        frame.published.hide();
        frame.published.show(LATER, 2 * UNTIL);
        let found = reader.join().expect("the reader does not panic");
        assert_eq!(found, None, "its time was over");
    });
}
