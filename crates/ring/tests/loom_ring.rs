//! Models of the request ring, the data ring and the call cell. Run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::data::{DataRing, GRANULE};
use rackpool_ring::request::{ARGUMENTS, Request, RequestRing, RingEntry, RingHeader};
use rackpool_sync::atomic::{AtomicU32, Ordering, fence};

fn request(call: u32) -> Request {
    let arguments = [u64::from(call); ARGUMENTS];
    Request { code: 1, cell: 0, thread: 0, call, life: 3, arguments }
}

fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder
}

type Ring = Arc<(RingHeader, [RingEntry; 2])>;

fn push_all(ring: &Ring, batch: &[Request]) {
    while RequestRing::new(&ring.0, &ring.1).push(batch).is_err() {
        loom::thread::yield_now();
    }
}

fn pop_all(ring: &Ring, count: usize) -> Vec<u32> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let taken = RequestRing::new(&ring.0, &ring.1).pop(2, |popped| {
            assert_eq!(popped, request(popped.call), "torn");
            seen.push(popped.call);
        });
        if taken == 0 {
            loom::thread::yield_now();
        }
    }
    seen
}

/// Two pushers and a popper: no request is lost, duplicated or torn.
#[test]
fn two_pushers_one_popper() {
    bounded(3).check(|| {
        let ring = Ring::default();
        let pushers: Vec<_> = (1..=2)
            .map(|call| {
                let ring = ring.clone();
                loom::thread::spawn(move || push_all(&ring, &[request(call)]))
            })
            .collect();
        let mut seen = pop_all(&ring, 2);
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        for pusher in pushers {
            pusher.join().expect("a pusher does not panic");
        }
    });
}

/// A full ring wraps around: no entry is overwritten before it was read, whichever pusher has seen
/// the head, and a refused push changes nothing.
#[test]
fn entries_are_reused_only_after_they_were_read() {
    bounded(3).check(|| {
        let ring = Ring::default();
        push_all(&ring, &[request(1), request(2)]);
        let pushers: Vec<_> = [3, 4]
            .map(|call| {
                let ring = ring.clone();
                loom::thread::spawn(move || {
                    RequestRing::new(&ring.0, &ring.1).push(&[request(call)]).is_ok()
                })
            })
            .into();
        let mut seen = pop_all(&ring, 2);
        assert_eq!(seen[..2], [1, 2]);
        let pushed = pushers.into_iter().map(|pusher| pusher.join().expect("it does not panic"));
        let pushed = pushed.filter(|pushed| *pushed).count();
        seen.extend(pop_all(&ring, 2 + pushed - seen.len()));
        assert_eq!(seen.len(), 2 + pushed);
        assert!(RequestRing::new(&ring.0, &ring.1).is_empty());
    });
}

/// A batch beside another pusher stays whole, in order and contiguous.
#[test]
fn a_batch_stays_together_beside_another_pusher() {
    bounded(3).check(|| {
        let ring: Arc<(RingHeader, [RingEntry; 4])> = Arc::default();
        let batches: [&'static [u32]; 2] = [&[1, 2], &[3]];
        let pushers = batches.map(|calls| {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                let batch: Vec<Request> = calls.iter().map(|call| request(*call)).collect();
                RequestRing::new(&ring.0, &ring.1).push(&batch).expect("there is room");
            })
        });
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let taken = RequestRing::new(&ring.0, &ring.1).pop(4, |popped| {
                assert_eq!(popped, request(popped.call), "torn");
                seen.push(popped.call);
            });
            if taken == 0 {
                loom::thread::yield_now();
            }
        }
        assert!(seen == [1, 2, 3] || seen == [3, 1, 2], "{seen:?}");
        pushers.into_iter().for_each(|pusher| pusher.join().expect("it does not panic"));
    });
}

/// A block belongs to one thread at a time, and that thread sees the stores of the last owner.
#[test]
fn a_block_has_one_owner() {
    struct Shared {
        ring: DataRing,
        bytes: [AtomicU32; 2],
    }

    fn use_block(shared: &Shared, granules: u64) {
        let block = loop {
            match shared.ring.take(granules * GRANULE) {
                Some(block) => break block,
                None => loom::thread::yield_now(),
            }
        };
        let first = usize::try_from(block.offset() / GRANULE).expect("small");
        let count = usize::try_from(granules).expect("small");
        for bytes in &shared.bytes[first..first + count] {
            // Two steps: a second owner at the same time, or an unseen earlier one, would lose an
            // increment.
            let before = bytes.load(Ordering::Relaxed);
            bytes.store(before + 1, Ordering::Relaxed);
        }
        shared.ring.give_back(block);
    }

    bounded(2).check(|| {
        let bytes = [AtomicU32::new(0), AtomicU32::new(0)];
        let shared = Arc::new(Shared { ring: DataRing::new(2 * GRANULE), bytes });
        let other = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                use_block(&shared, 1);
                use_block(&shared, 2);
            })
        };
        use_block(&shared, 1);
        use_block(&shared, 1);
        other.join().expect("it does not panic");
        let used: u32 = shared.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        assert_eq!(used, 5);
    });
}

const fn answer(call: u32) -> Answer {
    Answer { status: call, values: [call as u64; VALUES] }
}

/// No wake-up is lost: either the daemon sees the sleeping thread, or the thread sees the answer
/// before it sleeps.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let cell = Arc::new(CallCell::default());
        let daemon = {
            let cell = cell.clone();
            loom::thread::spawn(move || {
                cell.finish(1, &answer(1));
                fence(Ordering::SeqCst);
                cell.rouse()
            })
        };
        let sleeps = cell.answer(1).is_none() && cell.will_sleep(1);
        let wakes = daemon.join().expect("the daemon does not panic");
        assert!(!sleeps || wakes, "the thread sleeps for ever");
        assert_eq!(cell.answer(1), Some(answer(1)));
    });
}

/// A cell is reused as soon as its answer was read: each call gets its own, complete answer.
#[test]
fn answers_of_one_cell_do_not_mix() {
    loom::model(|| {
        let shared = Arc::new((CallCell::default(), AtomicU32::new(1)));
        let daemon = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                for call in 1..=2 {
                    while shared.1.load(Ordering::Acquire) != call {
                        loom::thread::yield_now();
                    }
                    shared.0.finish(call, &answer(call));
                }
            })
        };
        for call in 1..=2 {
            shared.1.store(call, Ordering::Release);
            let found = loop {
                match shared.0.answer(call) {
                    Some(found) => break found,
                    None => loom::thread::yield_now(),
                }
            };
            assert_eq!(found, answer(call));
        }
        daemon.join().expect("the daemon does not panic");
    });
}
