//! Which frees the client takes back without a request, and which it does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackpool_model::{FrameId, GlobalAddr, PageEvent, PageId, PageSize, PageWord, SizeClass};
use rackpool_ring::magazines::{self, Keep};
use rackpool_shm::marks::{Mark, ObjectHolder};
use rackpool_shm::metadata::PageUse;
use rackpool_shm::permit::Permit;
use rackpool_shm::window::{self, AtomicOperation, TakeBackOutcome};
use rackpool_sync::SplitMix64;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::FreeError;
use crate::testing::Bench;
use crate::thread::Thread;

const PAGE: u64 = PageSize::DEFAULT.bytes();

fn class(bytes: u64) -> SizeClass {
    SizeClass::for_bytes(bytes, PageSize::DEFAULT).unwrap()
}

fn live(frame: u32) -> PageWord {
    PageWord::free(PageId(frame + 1)).apply(PageEvent::Allocated).unwrap()
}

fn small(index: u64) -> GlobalAddr {
    GlobalAddr::from_raw(PAGE + index * 64)
}

/// A rack with a slab of 64 B objects in page 1 and one of 256 KiB objects in page 2, with the
/// first 64 and 8 objects in use, and a thread that knows both pages.
fn with_pages() -> (Bench, Thread) {
    let mut bench = Bench::new();
    let usages = [64, 256 << 10].map(|bytes| PageUse::Slab(class(bytes)));
    for (frame, usage) in (0..).zip(usages) {
        let PageUse::Slab(class) = usage else { unreachable!() };
        let layout = bench.connection.layout;
        let store = |at, value: u64| bench.metadata.write(at, &value.to_le_bytes()).unwrap();
        store(layout.word(FrameId(frame)), live(frame).raw());
        store(layout.header(FrameId(frame)), usage.to_raw());
        store(layout.bit(FrameId(frame), class, 0).word, u64::MAX);
    }
    bench.serve(move |slot, request| match request {
        RackRequest::Translate { page, .. } => {
            let frame = page.0 - 1;
            let usage = usages[frame as usize].to_raw();
            Some(RackAnswer::Local { frame: FrameId(frame), word: live(frame), usage })
        }
        RackRequest::Refill { .. } => {
            slot.inbox[0].store(small(63).raw(), Ordering::Release);
            Some(RackAnswer::Done(1))
        }
        _ => Some(RackAnswer::Done(0)),
    });
    let mut thread = bench.thread();
    for page in [1, 2] {
        assert_eq!(thread.is_local(GlobalAddr::from_raw(page * PAGE)), Ok(true));
    }
    thread.bring_to_front();
    (bench, thread)
}

fn mark(bench: &Bench, index: u32) -> &Mark {
    bench.connection.marks.of(FrameId(0), class(64), index).unwrap()
}

/// The class of an object that the fast path would take back; changes nothing.
fn known_to(thread: &Thread, addr: GlobalAddr) -> Option<SizeClass> {
    let mut class = None;
    let refuse = |found| {
        class = Some(found);
        false
    };
    assert_eq!(
        thread.window.take_back(addr, ObjectHolder::DAEMON, refuse),
        TakeBackOutcome::Unknown
    );
    class
}

/// The fast path of the calling thread's front window and magazines for the pool of `permit`.
fn take_back(permit: &Permit, addr: GlobalAddr) -> TakeBackOutcome {
    window::take_back(permit, addr, ObjectHolder::DAEMON, Keep(permit))
}

fn set_word(bench: &Bench, word: PageWord) {
    let at = bench.connection.layout.word(FrameId(0));
    bench.metadata.write(at, &word.raw().to_le_bytes()).unwrap();
}

#[test]
fn only_small_objects_that_are_in_use_are_known_without_asking() {
    let (bench, thread) = with_pages();
    let known = |addr: GlobalAddr| known_to(&thread, addr);
    assert_eq!(known(small(0)), Some(class(64)));
    assert_eq!(known(small(63)), Some(class(64)));
    assert_eq!(known(small(64)), None, "never handed out");
    assert_eq!(known(GlobalAddr::from_raw(PAGE + 16)), None, "inside an object");
    assert_eq!(known(GlobalAddr::from_raw(2 * PAGE)), None, "not small");
    assert_eq!(known(GlobalAddr::from_raw(3 * PAGE)), None, "a page that is not known");
    assert_eq!(known(GlobalAddr::NULL), None);
    assert_eq!(known(GlobalAddr::from_raw(u64::MAX)), None);
    for event in [PageEvent::Frozen, PageEvent::Left] {
        set_word(&bench, live(0).apply(event).unwrap());
        assert_eq!(known(small(0)), None, "{event:?}");
    }
    set_word(&bench, live(0));
    assert_eq!(known(small(0)), Some(class(64)));
    let other = thread.id.checked_add(1).unwrap();
    let other = Permit::new(other).unwrap();
    assert_eq!(take_back(&other, small(0)), TakeBackOutcome::Unknown, "another pool");
    assert_eq!(take_back(&thread.connection.permit, small(0)), TakeBackOutcome::Noted);
    assert_eq!(magazines::take(&other, SizeClass::index_for(64)), None, "another pool");
    let taken = magazines::take(&thread.connection.permit, SizeClass::index_for(64));
    assert_eq!(taken, Some(small(0).raw()));
    drop(thread);
    let permit = &bench.connection.permit;
    assert_eq!(take_back(permit, small(0)), TakeBackOutcome::Unknown, "the thread has ended");
    assert_eq!(magazines::take(permit, SizeClass::index_for(64)), None, "the thread has ended");
}

#[test]
fn words_are_changed_in_known_live_pages_only() {
    let (bench, thread) = with_pages();
    let change = |addr: u64| {
        let atomic = AtomicOperation::FetchAndAdd { delta: 3 };
        window::change(&thread.connection.permit, GlobalAddr::from_raw(addr), atomic)
    };
    assert_eq!(change(2 * PAGE - 8), Some(0));
    assert_eq!(change(2 * PAGE - 8), Some(3));
    assert_eq!(change(PAGE + 4), None, "not aligned");
    assert_eq!(change(3 * PAGE), None, "not known");
    set_word(&bench, live(0).apply(PageEvent::Frozen).unwrap());
    assert_eq!(change(PAGE), None, "frozen");
    set_word(&bench, live(0));
    let swap = AtomicOperation::CompareAndSwap { expected: 6, new: 1 };
    let last = GlobalAddr::from_raw(2 * PAGE - 8);
    assert_eq!(window::change(&thread.connection.permit, last, swap), Some(6));
    assert_eq!(change(2 * PAGE - 8), Some(1));
}

#[test]
fn a_page_that_is_only_read_is_read_and_nothing_else_without_asking() {
    let (bench, mut thread) = with_pages();
    for event in [PageEvent::Frozen, PageEvent::Shared] {
        let word = live(0).apply(event).unwrap();
        set_word(&bench, word);
        thread.window.admit(PageId(1), FrameId(0), word, PageUse::Slab(class(64)));
        assert!(window::read(&thread.connection.permit, small(0), &mut [0; 8]), "{event:?}");
        assert!(!window::write(&thread.connection.permit, small(0), &[1; 8]), "{event:?}");
        assert!(
            !window::write_slow_path(&thread.connection.permit, small(0), &[1; 8]),
            "{event:?}"
        );
        let add = AtomicOperation::FetchAndAdd { delta: 3 };
        assert_eq!(window::change(&thread.connection.permit, small(0), add), None, "{event:?}");
        assert_eq!(known_to(&thread, small(0)), None, "{event:?}");
        // Thawed: a thread with the old word has to look the page up again.
        set_word(&bench, live(0));
        assert!(!window::write(&thread.connection.permit, small(0), &[1; 8]), "{event:?}");
        assert!(!window::read(&thread.connection.permit, small(0), &mut [0; 8]), "{event:?}");
    }
}

#[test]
fn a_copy_is_read_as_long_as_it_is_shown() {
    let (bench, mut thread) = with_pages();
    let layout = bench.connection.layout;
    let shows = |frame: u32, copy: u64, until: u64| {
        let at = layout.published(FrameId(frame));
        bench.metadata.write(at, &[copy.to_le_bytes(), until.to_le_bytes()].concat()).unwrap();
    };
    bench.connection.frames.write(3 * PAGE + 64, &[7; 8]).unwrap();
    let addr = GlobalAddr::from_raw(9 * PAGE + 64);
    let read = |thread: &Thread| {
        let mut bytes = [0; 8];
        window::read(&thread.connection.permit, addr, &mut bytes).then_some(bytes)
    };
    shows(3, 5, u64::MAX);
    assert_eq!(read(&thread), None, "nobody has said where it is");
    thread.window.keep(PageId(9), FrameId(3), 5);
    assert_eq!(read(&thread), Some([7; 8]));
    assert!(!window::write(&thread.connection.permit, addr, &[1; 8]));
    let mut page = vec![0; 1 << 21];
    assert!(!window::read(&thread.connection.permit, addr, &mut page), "beyond the page");
    shows(3, 5, 1);
    assert_eq!(read(&thread), None, "its time is over");
    shows(3, 6, u64::MAX);
    assert_eq!(read(&thread), None, "another copy");
    shows(3, 0, u64::MAX);
    assert_eq!(read(&thread), None, "hidden");
    shows(3, 5, u64::MAX);
    thread.window.forget(PageId(9));
    assert_eq!(read(&thread), None, "forgotten");
    // A copy of a frame that the rack does not have.
    thread.window.keep(PageId(9), FrameId(99), 5);
    assert_eq!(read(&thread), None);
}

#[test]
fn an_object_in_the_cache_is_not_taken_again() {
    let (_bench, mut thread) = with_pages();
    let mut cached = Vec::new();
    let mut random = SplitMix64::new(7);
    for _ in 0..20_000 {
        let drawn = random.draw();
        let addr = small(drawn >> 58);
        let is_cached = cached.contains(&addr);
        match drawn >> 32 & 3 {
            0 if !cached.is_empty() => assert_eq!(thread.alloc(64), Ok(cached.pop().unwrap())),
            _ => match thread.free(addr) {
                Ok(()) => {
                    assert!(!is_cached, "{addr} was freed twice");
                    cached.push(addr);
                }
                refused => {
                    assert_eq!(refused, Err(FreeError::NotAllocated(addr)));
                    assert!(is_cached, "{addr} was not in the cache");
                }
            },
        }
    }
}

#[test]
fn what_a_daemon_struck_out_is_neither_handed_out_nor_in_the_way() {
    let (bench, mut thread) = with_pages();
    for index in 0..4 {
        thread.free(small(index)).unwrap();
    }
    let cells = &bench.slot(0).magazines[2];
    for (struck, index) in [(1, 1), (3, 3)] {
        cells[struck].store(0, Ordering::Release);
        mark(&bench, index).hand_out();
    }
    assert_eq!(
        magazines::take(&thread.connection.permit, SizeClass::index_for(64)),
        None,
        "the last one was struck out"
    );
    assert_eq!(thread.free(small(3)), Ok(()), "it may come back");
    assert_eq!(thread.free(small(1)), Ok(()));
    assert_eq!(thread.free(small(1)), Err(FreeError::NotAllocated(small(1))));
    let taken: Vec<_> = (0..5).map(|_| thread.alloc(64).unwrap()).collect();
    assert_eq!(taken, [1, 3, 2, 0, 63].map(small));
}

/// The bench's daemon knows no other thread: the two threads share only the marks.
#[test]
fn a_second_free_by_another_thread_is_refused_at_once_and_its_note_goes() {
    let (bench, mut thread) = with_pages();
    let connection = Arc::clone(&bench.connection);
    let addrs = [small(3), GlobalAddr::from_raw(2 * PAGE + (256 << 10))];
    for addr in addrs {
        assert_eq!(thread.free(addr), Ok(()));
    }
    let elsewhere = std::thread::spawn(move || {
        let mut other = Thread::new(&connection).unwrap().unwrap();
        other.bring_to_front();
        let refused = addrs.map(|addr| [other.free(addr), other.free(addr)]);
        let left = other.slot().magazines.as_flattened().iter();
        let left = left.filter(|cell| cell.load(Ordering::Relaxed) != 0).count();
        (refused, left, other.free(small(4)))
    });
    let (refused, left, other) = elsewhere.join().unwrap();
    for (addr, refused) in addrs.into_iter().zip(refused) {
        assert_eq!(refused, [(); 2].map(|()| Err(FreeError::NotAllocated(addr))));
    }
    assert_eq!((left, other), (0, Ok(())));
    assert_eq!(thread.alloc(64), Ok(small(3)), "the first one has it");
    assert!(mark(&bench, 3).is_with_program());
    assert_eq!(thread.free(small(3)), Ok(()));
}
