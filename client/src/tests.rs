//! The client's part of what can go wrong between a thread and its daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rackpool_model::{GlobalAddr, PageSize, RackId, SizeClass};
use rackpool_ring::client_file::{CELLS_PER_THREAD, Route, ThreadSlot};
use rackpool_shm::metadata::PageUse;
use rackpool_shm::superblock::Superblock;
use rackpool_sync::barrier::Barrier;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::calls::Outcome;
use crate::testing::{Bench, THREADS, TIMEOUT};
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{AccessError, AllocError, DaemonError, FreeError};

const PAGE: u64 = PageSize::DEFAULT.bytes();
const REFILL: RackRequest = RackRequest::Refill { bytes: 64, count: 1 };

fn slab(bytes: u64) -> u64 {
    let class = SizeClass::for_bytes(bytes, PageSize::DEFAULT).unwrap();
    PageUse::Slab(class).to_raw()
}

fn run(pages: u32) -> u64 {
    PageUse::Run { index: 0, pages }.to_raw()
}

fn remote(usage: u64) -> Option<RackAnswer> {
    Some(RackAnswer::Remote { home: RackId(1), usage })
}

/// Frees what stands in the outbox and says what it was.
fn release(slot: &ThreadSlot) -> (Vec<u64>, Option<RackAnswer>) {
    let freed = slot.outbox.iter().map(|cell| cell.swap(0, Ordering::AcqRel));
    (freed.filter(|object| *object != 0).collect(), Some(RackAnswer::Done(0)))
}

fn fill(slot: &ThreadSlot, objects: &[u64]) -> Option<RackAnswer> {
    for (cell, object) in slot.inbox.iter().zip(objects) {
        assert_eq!(cell.swap(*object, Ordering::AcqRel), 0, "an object was in the way");
    }
    Some(RackAnswer::Done(objects.len() as u64))
}

#[test]
fn what_a_late_or_earlier_request_brought_goes_back_before_the_next_refill() {
    let mut bench = Bench::new();
    let slot = bench.slot(0);
    slot.inbox[3].store(0x40, Ordering::Relaxed);
    slot.inbox[5].store(0x80, Ordering::Relaxed);
    slot.magazines[2][5].store(0xc0, Ordering::Relaxed);
    let (says, released) = mpsc::channel();
    bench.serve(move |slot, request| match request {
        RackRequest::Refill { .. } => fill(slot, &[0x4000]),
        _ => {
            let (freed, answer) = release(slot);
            says.send(freed).unwrap();
            answer
        }
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    assert_eq!(thread.alloc(4096).unwrap().raw(), 0x4000);
    assert_eq!(released.recv().unwrap(), [0x40, 0x80]);
    assert_eq!(thread.alloc(64).unwrap().raw(), 0xc0, "what an earlier thread kept is used");
}

#[test]
fn an_emptied_cell_is_never_handed_out() {
    let mut bench = Bench::new();
    let objects = AtomicU64::new(1);
    bench.serve(move |slot, request| match request {
        RackRequest::Refill { bytes: 64, .. } => {
            let first = objects.fetch_add(2, Ordering::Relaxed);
            fill(slot, &[first * 64, first * 64 + 64])
        }
        RackRequest::Refill { .. } => Some(RackAnswer::Done(1)),
        _ => release(slot).1,
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    assert_eq!(thread.alloc(64).unwrap().raw(), 128);
    // As a new daemon does at adoption.
    bench.slot(0).magazines[2][0].store(0, Ordering::Relaxed);
    assert_eq!(thread.alloc(64).unwrap().raw(), 256);
    for bytes in [4096, PAGE] {
        let none = thread.alloc(bytes);
        assert_eq!(none, Err(AllocError::Daemon(DaemonError::Protocol)), "{bytes} B");
    }
}

#[test]
fn no_refill_and_no_release_while_one_that_was_given_up_may_still_be_served() {
    let mut bench = Bench::new();
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let unavailable = DaemonError::Unavailable;
    assert_eq!(thread.alloc(64), Err(AllocError::Daemon(unavailable.clone())));
    let began = Instant::now();
    assert_eq!(thread.alloc(64), Err(AllocError::Daemon(unavailable.clone())));
    let returned = thread.give_back(GlobalAddr::from_raw(0x40), true);
    assert_eq!(returned, Err(FreeError::Access(unavailable.into())));
    assert!(began.elapsed() < TIMEOUT, "it waited for another answer");
    assert_eq!(bench.slot(0).outbox[0].load(Ordering::Relaxed), 0);
    bench.serve(|slot, request| match request {
        RackRequest::Refill { .. } if slot.inbox[0].load(Ordering::Relaxed) == 0 => {
            fill(slot, &[0x80])
        }
        _ => release(slot).1,
    });
    let patience = Instant::now() + Duration::from_secs(10);
    let addr = loop {
        match thread.alloc(64) {
            Ok(addr) => break addr,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
    };
    assert_eq!(addr.raw(), 0x80);
}

#[test]
fn a_slot_with_a_call_given_up_comes_back_once_it_is_settled() {
    let mut bench = Bench::new();
    for round in 0..2 {
        for _ in 0..THREADS {
            let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
            assert!(thread.alloc(64).is_err());
        }
        let full = Thread::new(Arc::clone(&bench.connection)).map(drop);
        assert_eq!(full, Err(DaemonError::TooManyThreads(THREADS)));
        if round == 0 {
            // The daemon died: nobody answers these any more.
            bench.connection.lose_calls();
        } else {
            bench.serve(|slot, request| match request {
                RackRequest::Refill { .. } => fill(slot, &[]).map(|_| RackAnswer::Invalid),
                _ => release(slot).1,
            });
            std::thread::sleep(Duration::from_millis(50));
        }
        let threads: Vec<_> =
            (0..THREADS).map(|_| Thread::new(Arc::clone(&bench.connection)).unwrap()).collect();
        drop(threads);
    }
}

#[test]
fn a_crash_loop_ends_an_operation_in_bounded_time() {
    let mut bench = Bench::new();
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let connection = Arc::clone(&bench.connection);
    bench.serve(move |_, _| {
        connection.lose_calls();
        None
    });
    let began = Instant::now();
    let request = RackRequest::Translate { page: rackpool_model::PageId(1) };
    let asked = thread.calls.ask(&bench.connection, request, Route::Rack);
    assert_eq!(asked, Err(DaemonError::Unavailable));
    assert!(began.elapsed() < TIMEOUT * 10);
}

#[test]
fn a_lost_call_wakes_its_thread_and_leaves_its_cell_usable() {
    let mut bench = Bench::new();
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let connection = Arc::clone(&bench.connection);
    let first = AtomicBool::new(true);
    bench.serve(move |slot, _| {
        if first.swap(false, Ordering::Relaxed) {
            connection.lose_calls();
            return None;
        }
        fill(slot, &[])
    });
    for outcome in [Outcome::Lost, Outcome::Answered(RackAnswer::Done(0))] {
        let overdue = bench.connection.overdue();
        let asked = thread.calls.ask_once(&bench.connection, REFILL, Route::Rack, overdue);
        assert_eq!(asked, Ok(outcome));
    }
}

#[test]
fn a_remembered_page_that_is_used_anew_is_asked_for_again() {
    let mut bench = Bench::new();
    let large = Arc::new(AtomicBool::new(false));
    let grown = Arc::clone(&large);
    bench.serve(move |slot, request| match request {
        RackRequest::Translate { .. } if grown.load(Ordering::Relaxed) => remote(run(2)),
        RackRequest::Translate { .. } => remote(slab(64)),
        _ => release(slot).1,
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let addr = GlobalAddr::from_raw(PAGE);
    let both = usize::try_from(2 * PAGE).unwrap();
    let target = thread.target(addr, both).unwrap();
    assert!(matches!(thread.translate(&target), Err(AccessError::BeyondObject { .. })));
    large.store(true, Ordering::Relaxed);
    assert!(thread.translate(&target).is_ok(), "it became an object of two pages");
    large.store(false, Ordering::Relaxed);
    let small = GlobalAddr::from_raw(PAGE + 64);
    assert_eq!(thread.free(small), Ok(()), "and a slab of small objects");
}

#[test]
fn a_batch_does_what_stands_before_the_wrong_one() {
    let mut bench = Bench::new();
    let (says, written) = mpsc::channel();
    bench.serve(move |slot, request| match request {
        RackRequest::Translate { page } if page.0 == 1 => remote(slab(64)),
        RackRequest::Translate { .. } => Some(RackAnswer::NotAllocated),
        RackRequest::Write { addr, len, .. } => {
            says.send((addr.raw(), len)).unwrap();
            Some(RackAnswer::Done(0))
        }
        _ => release(slot).1,
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let good = GlobalAddr::from_raw(PAGE);
    let wrong = GlobalAddr::from_raw(2 * PAGE);
    for (addr, bytes, error) in [
        (good, &[][..], AccessError::Empty),
        (GlobalAddr::NULL, &[1], AccessError::InvalidAddress(GlobalAddr::NULL)),
        (wrong, &[1], AccessError::NotAllocated(wrong)),
    ] {
        let writes = [(good, &[7, 7][..]), (addr, bytes), (good, &[8][..])];
        let writes = writes.into_iter().map(|(addr, from)| (addr, Bytes::Write(from)));
        assert_eq!(thread.transfer_batch(writes), Err(error));
        assert_eq!(written.try_iter().collect::<Vec<_>>(), [(PAGE, 2)]);
    }
}

#[test]
fn all_pieces_of_a_transfer_share_one_deadline() {
    let mut bench = Bench::new();
    bench.serve(|slot, request| match request {
        RackRequest::Translate { .. } => remote(run(2)),
        RackRequest::Read { .. } => None,
        _ => release(slot).1,
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    let began = Instant::now();
    let mut into = vec![0; 1 << 20];
    let read = thread.transfer(GlobalAddr::from_raw(PAGE), Bytes::Read(&mut into));
    assert_eq!(read, Err(DaemonError::Unavailable.into()));
    assert!(began.elapsed() < TIMEOUT * 8, "{:?}", began.elapsed());
    // The cells of these calls are found again when the daemon is known to be dead.
    bench.connection.lose_calls();
    let (mut cells, connection) = (Vec::new(), &bench.connection);
    while thread.calls.is_available(connection) {
        cells.push(thread.calls.reserve(connection).unwrap());
    }
    cells.sort_unstable();
    assert_eq!(cells.len(), CELLS_PER_THREAD);
    cells.dedup();
    assert_eq!(cells.len(), CELLS_PER_THREAD);
}

#[test]
fn a_refused_neighbour_is_not_blamed_on_this_object() {
    let mut bench = Bench::new();
    bench.serve(|slot, request| match request {
        RackRequest::Translate { page } if page.0 == 1 => remote(slab(64)),
        RackRequest::Translate { .. } => remote(run(1)),
        _ => {
            let (freed, _) = release(slot);
            Some(RackAnswer::Done(freed.iter().filter(|object| **object == PAGE).count() as u64))
        }
    });
    let mut thread = Thread::new(Arc::clone(&bench.connection)).unwrap();
    assert_eq!(thread.free(GlobalAddr::from_raw(PAGE)), Ok(()), "it waits for others");
    assert_eq!(thread.free(GlobalAddr::from_raw(2 * PAGE)), Ok(()), "it travels alone");
}

#[test]
fn a_daemon_without_the_promised_barrier_is_found_out() {
    let bench = Bench::new();
    assert!(bench.connection.barrier_holds());
    bench.metadata.view::<Superblock>(0).unwrap().set_heavy_barrier(false);
    let light = bench.connection.barrier == Barrier::Light;
    assert_eq!(bench.connection.barrier_holds(), !light);
}
