//! Failures between a thread and its daemon, from the client's side.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rackpool_model::{
    FrameId, GlobalAddr, PageEvent, PageId, PageSize, PageWord, RackId, SizeClass,
};
use rackpool_ring::client_file::{CELLS_PER_THREAD, RingKind, ThreadSlot};
use rackpool_shm::access::AccessIntent;
use rackpool_shm::metadata::PageUse;
use rackpool_shm::superblock::Superblock;
use rackpool_shm::window::AtomicOperation;
use rackpool_sync::SplitMix64;
use rackpool_sync::barrier::Barrier;
use rackpool_testing::wait::wait_for;
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::atomic_batch::BatchedAtomic;
use crate::calls::Outcome;
use crate::connection::DaemonLink;
use crate::testing::{Bench, THREADS, TIMEOUT};
use crate::thread::Thread;
use crate::transfer::Bytes;
use crate::{AccessError, AllocError, DaemonError, FreeError};

mod full_ring;
mod moving;

/// Limit for steps without a guaranteed time; the machine may be busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
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

/// Frees the objects in the outbox and returns them.
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
    let mut thread = bench.thread();
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
    let mut thread = bench.thread();
    assert_eq!(thread.alloc(64).unwrap().raw(), 128);
    // A new daemon clears it so at adoption.
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
    let mut thread = bench.thread();
    let unavailable = DaemonError::Unavailable;
    assert_eq!(thread.alloc(64), Err(AllocError::Daemon(unavailable.clone())));
    let began = Instant::now();
    assert_eq!(thread.alloc(64), Err(AllocError::Daemon(unavailable.clone())));
    let returned = thread.give_back(GlobalAddr::from_raw(0x40), true, None);
    assert_eq!(returned, Err(FreeError::Access(unavailable.into())));
    assert!(began.elapsed() < TIMEOUT, "it waited for another answer");
    assert_eq!(bench.slot(0).outbox[0].load(Ordering::Relaxed), 0);
    bench.serve(|slot, request| match request {
        RackRequest::Refill { .. } if slot.inbox[0].load(Ordering::Relaxed) == 0 => {
            fill(slot, &[0x80])
        }
        _ => release(slot).1,
    });
    let addr = wait_for("an object", TEST_TIMEOUT, || thread.alloc(64).ok());
    assert_eq!(addr.raw(), 0x80);
}

#[test]
fn a_slot_with_a_call_given_up_comes_back_once_it_is_settled() {
    let mut bench = Bench::new();
    for round in 0..2 {
        for _ in 0..THREADS {
            let mut thread = bench.thread();
            assert!(thread.alloc(64).is_err());
        }
        assert!(matches!(Thread::new(&bench.connection), Ok(None)));
        if round == 0 {
            // The daemon died: these calls get no answer.
            Bench::lose_calls(&bench.connection);
        } else {
            bench.serve(|slot, request| match request {
                RackRequest::Refill { .. } => fill(slot, &[]).map(|_| RackAnswer::Invalid),
                _ => release(slot).1,
            });
        }
        let deadline = Instant::now() + TEST_TIMEOUT;
        let begin = |_| loop {
            match Thread::new(&bench.connection).unwrap() {
                Some(thread) => return thread,
                // Calls to a dead daemon are settled at once, those to a living one when it
                // answers.
                None => assert!(round == 1 && Instant::now() < deadline),
            }
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        drop(threads);
    }
}

#[test]
fn a_crash_loop_ends_an_operation_in_bounded_time() {
    let mut bench = Bench::new();
    let mut thread = bench.thread();
    let connection = Arc::clone(&bench.connection);
    bench.serve(move |_, _| {
        Bench::lose_calls(&connection);
        None
    });
    let began = Instant::now();
    let request = RackRequest::Translate {
        page: rackpool_model::PageId(1),
        access: rackpool_model::Access::Read,
    };
    let asked = thread.calls.ask(&bench.connection, request, RingKind::Rack);
    assert_eq!(asked, Err(DaemonError::Unavailable));
    assert!(began.elapsed() < TIMEOUT * 10);
}

#[test]
fn a_lost_call_wakes_its_thread_and_leaves_its_cell_usable() {
    let mut bench = Bench::new();
    let mut thread = bench.thread();
    let connection = Arc::clone(&bench.connection);
    let first = AtomicBool::new(true);
    bench.serve(move |slot, _| {
        if first.swap(false, Ordering::Relaxed) {
            Bench::lose_calls(&connection);
            return None;
        }
        fill(slot, &[])
    });
    for outcome in [Outcome::Lost, Outcome::Answered(RackAnswer::Done(0))] {
        let overdue = bench.connection.overdue();
        let asked = thread.calls.ask_once(&bench.connection, REFILL, RingKind::Rack, &overdue);
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
    let mut thread = bench.thread();
    let addr = GlobalAddr::from_raw(PAGE);
    let both = usize::try_from(2 * PAGE).unwrap();
    let target = thread.target(addr, both).unwrap();
    assert!(matches!(
        thread.translate(&target, AccessIntent::Read),
        Err(AccessError::BeyondObject { .. })
    ));
    large.store(true, Ordering::Relaxed);
    assert!(
        thread.translate(&target, AccessIntent::Read).is_ok(),
        "it became an object of two pages"
    );
    large.store(false, Ordering::Relaxed);
    let small = GlobalAddr::from_raw(PAGE + 64);
    assert_eq!(thread.free(small), Ok(()), "and a slab of small objects");
}

#[test]
fn a_batch_does_what_stands_before_the_wrong_one() {
    let mut bench = Bench::new();
    let (says, written) = mpsc::channel();
    bench.serve(move |slot, request| match request {
        RackRequest::Translate { page, .. } if page.0 == 1 => remote(slab(64)),
        RackRequest::Translate { .. } => Some(RackAnswer::NotAllocated),
        RackRequest::Write { addr, len, .. } => {
            says.send((addr.raw(), len)).unwrap();
            Some(RackAnswer::Done(0))
        }
        _ => release(slot).1,
    });
    let mut thread = bench.thread();
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
    let mut thread = bench.thread();
    let began = Instant::now();
    let mut into = vec![0; 1 << 20];
    let read = thread.transfer(GlobalAddr::from_raw(PAGE), Bytes::Read(&mut into));
    assert_eq!(read, Err(DaemonError::Unavailable.into()));
    assert!(began.elapsed() < TIMEOUT * 8, "{:?}", began.elapsed());
    // The cells become free again once the daemon is known to be dead.
    Bench::lose_calls(&bench.connection);
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
        RackRequest::Translate { page, .. } if page.0 == 1 => remote(slab(64)),
        RackRequest::Translate { .. } => remote(run(1)),
        _ => {
            let (freed, _) = release(slot);
            Some(RackAnswer::Done(freed.iter().filter(|object| **object == PAGE).count() as u64))
        }
    });
    let mut thread = bench.thread();
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

/// A daemon's view of the objects of two pages: the allocated ones, and those that the program has.
#[derive(Default)]
struct Model {
    used: BTreeSet<u64>,
    program: BTreeSet<u64>,
}

/// Sizes of the objects in pages 1 and 2, which lie in frames 0 and 1.
const SIZES: [u64; 2] = [64, 16 << 10];

impl Model {
    fn serve(&mut self, slot: &ThreadSlot, request: RackRequest) -> Option<RackAnswer> {
        match request {
            RackRequest::Translate { page, .. } => {
                let index = page.0 - 1;
                let word = live(index);
                let usage = slab(SIZES[index as usize]);
                Some(RackAnswer::Local { frame: FrameId(index), word, usage })
            }
            RackRequest::Refill { bytes, count } => {
                let page = 1 + SIZES.iter().position(|size| *size == bytes).unwrap() as u64;
                let all = (0..PAGE / bytes).map(|index| page * PAGE + index * bytes);
                let free = all.filter(|object| !self.used.contains(object));
                let objects: Vec<u64> = free.take(usize::try_from(count).unwrap()).collect();
                self.used.extend(&objects);
                fill(slot, &objects)
            }
            _ => {
                let (freed, answer) = release(slot);
                for object in freed {
                    assert!(!self.program.contains(&object), "{object:#x} is the program's");
                    assert!(self.used.remove(&object), "{object:#x} was freed twice");
                }
                answer
            }
        }
    }
}

fn live(index: u32) -> PageWord {
    PageWord::free(PageId(index + 1)).apply(PageEvent::Allocated).unwrap()
}

/// Compares the magazines with a set: an object is handed out to one owner at a time; the noted
/// objects and the program's are together those in use at the daemon; no object is left behind.
#[test]
fn a_threads_cache_behaves_like_a_set() {
    for seed in 1..=4_u64 {
        let mut bench = Bench::new();
        for (frame, bytes) in (0..).zip(SIZES) {
            let layout = bench.connection.layout;
            let class = SizeClass::for_bytes(bytes, PageSize::DEFAULT).unwrap();
            let store = |at, value: u64| bench.metadata.write(at, &value.to_le_bytes()).unwrap();
            store(layout.word(FrameId(frame)), live(frame).raw());
            store(layout.header(FrameId(frame)), slab(bytes));
            // All bits are set, so only the model detects a double free.
            let objects = class.objects_per_page(PageSize::DEFAULT);
            for first in (0..objects).step_by(64) {
                store(layout.bit(FrameId(frame), class, first).word, u64::MAX);
            }
        }
        let model = Arc::new(Mutex::new(Model::default()));
        let served = Arc::clone(&model);
        bench.serve(move |slot, request| served.lock().unwrap().serve(slot, request));
        let mut thread = bench.thread();
        let mut random = SplitMix64::new(seed);
        let mut held: Vec<GlobalAddr> = Vec::new();
        for step in 0..1500 {
            let number = usize::try_from(random.draw() >> 40).unwrap();
            // Alternates between mostly allocating and mostly freeing.
            let is_alloc = number % 10 < if step % 500 < 250 { 7 } else { 3 };
            if is_alloc && held.len() < 150 {
                let addr = thread.alloc(SIZES[number / 16 % 2]).unwrap();
                assert!(model.lock().unwrap().program.insert(addr.raw()), "{addr} was in use");
                held.push(addr);
            } else if !held.is_empty() {
                let addr = held.swap_remove(number / 16 % held.len());
                model.lock().unwrap().program.remove(&addr.raw());
                thread.free(addr).unwrap();
                assert!(thread.free(addr).is_err(), "{addr} was freed twice");
            }
            let slot = bench.slot(0);
            let places =
                slot.inbox.iter().chain(&slot.outbox).chain(slot.magazines.iter().flatten());
            let noted =
                places.map(|place| place.load(Ordering::Relaxed)).filter(|found| *found != 0);
            let noted: Vec<u64> = noted.collect();
            let model = model.lock().unwrap();
            let mut all: BTreeSet<u64> = noted.iter().copied().collect();
            assert_eq!(all.len(), noted.len(), "an object stands in two places");
            all.extend(&model.program);
            assert_eq!(all.len(), noted.len() + model.program.len(), "the program's is noted");
            assert_eq!(all, model.used, "after step {step} with seed {seed}");
        }
        drop(thread);
        let model = model.lock().unwrap();
        assert_eq!(model.used, model.program, "with seed {seed} something stays in the cache");
    }
}

#[test]
fn the_bytes_of_a_call_given_up_come_back_for_other_threads() {
    let mut bench = Bench::new();
    bench.serve(|slot, request| match request {
        RackRequest::Translate { .. } => remote(run(2)),
        RackRequest::Read { .. } => None,
        _ => release(slot).1,
    });
    let mut first = bench.thread();
    let read = first.transfer(GlobalAddr::from_raw(PAGE), Bytes::Read(&mut [0; 64]));
    assert_eq!(read, Err(DaemonError::Unavailable.into()));
    // The first thread makes no further call. The next daemon serves the others.
    Bench::lose_calls(&bench.connection);
    bench.serve(|slot, request| match request {
        RackRequest::Translate { .. } => remote(run(2)),
        RackRequest::Read { .. } => Some(RackAnswer::Done(0)),
        _ => release(slot).1,
    });
    let mut second = bench.thread();
    let mut into = vec![0; 1 << 20];
    for _ in 0..3 * bench.connection.data.longest() / (1 << 20) {
        second.transfer(GlobalAddr::from_raw(PAGE), Bytes::Read(&mut into)).unwrap();
    }
    assert!(bench.connection.strays.lock().unwrap().is_empty());
}

#[test]
fn a_batch_of_swaps_finds_new_pages_on_its_way() {
    let mut bench = Bench::new();
    bench.serve(|slot, request| match request {
        RackRequest::Translate { .. } => remote(run(1)),
        RackRequest::CompareAndSwap { expected, .. } => Some(RackAnswer::Done(expected)),
        _ => release(slot).1,
    });
    let mut thread = bench.thread();
    let wanted = |page: u64| BatchedAtomic {
        addr: GlobalAddr::from_raw(page * PAGE),
        atomic: AtomicOperation::CompareAndSwap { expected: page, new: 0 },
        before: 0,
    };
    // More swaps in one page than can be in flight, then swaps in other pages.
    let mut batch: Vec<BatchedAtomic> = (0..40).map(|i| wanted(1 + i.max(20) - 20)).collect();
    thread.atomic_batch(&mut batch).unwrap();
    assert!(batch.iter().all(|done| done.before == done.addr.raw() / PAGE));
}

#[test]
fn an_atomic_begun_while_the_daemon_is_away_goes_to_the_next_one() {
    let mut bench = Bench::new();
    let serve = |bench: &mut Bench| {
        bench.serve(|slot, request| match request {
            RackRequest::Translate { .. } => remote(run(1)),
            RackRequest::FetchAndAdd { delta, .. } => Some(RackAnswer::Done(delta)),
            _ => release(slot).1,
        });
    };
    serve(&mut bench);
    let mut thread = bench.thread();
    let addr = GlobalAddr::from_raw(PAGE);
    assert_eq!(thread.atomic(addr, AtomicOperation::FetchAndAdd { delta: 1 }), Ok(1));
    bench.stop();
    bench.connection.set_link(DaemonLink::Down);
    let connection = Arc::clone(&bench.connection);
    let keeper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        Bench::lose_calls(&connection);
        connection.set_link(DaemonLink::Up);
    });
    serve(&mut bench);
    assert_eq!(
        thread.atomic(addr, AtomicOperation::FetchAndAdd { delta: 2 }),
        Ok(2),
        "it was never sent"
    );
    keeper.join().unwrap();
}
