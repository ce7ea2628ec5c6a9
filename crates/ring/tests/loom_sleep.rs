//! Models of sleeping: the daemon on its flag and its event, a thread on its call cell. A lost
//! wake-up is a deadlock, which loom reports. Run with `cargo x loom`.
#![cfg(loom)]

#[path = "../../sync/tests/eventfd/mod.rs"]
mod eventfd;

use eventfd::EventFd;
use loom::sync::{Arc, Condvar, Mutex};
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::request::{ARGUMENTS, Request, RequestRing, RingEntry, RingHeader};
use rackpool_sync::SleepFlag;
use rackpool_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

fn request(call: u32) -> Request {
    let arguments = [u64::from(call); ARGUMENTS];
    Request { code: 1, cell: 0, thread: 0, call, life: 1, arguments }
}

/// A daemon that sleeps whenever its ring is empty, and clients that ring its event when they find
/// it asleep: the daemon gets every request.
fn every_request_is_served(pushers: &'static [&'static [u32]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ring = Arc::new((RingHeader::default(), [RingEntry::default(), RingEntry::default()]));
        let (flag, event) = (Arc::new(SleepFlag::default()), Arc::new(EventFd::default()));
        let threads: Vec<_> = pushers
            .iter()
            .map(|calls| {
                let (ring, flag, event) = (ring.clone(), flag.clone(), event.clone());
                loom::thread::spawn(move || {
                    for call in *calls {
                        let ring = RequestRing::new(&ring.0, &ring.1);
                        ring.push(&[request(*call)]).expect("there is room");
                        if SleepFlag::must_ring(|| flag.is_set()) {
                            event.ring();
                        }
                    }
                })
            })
            .collect();
        let ring = RequestRing::new(&ring.0, &ring.1);
        let mut left = pushers.iter().map(|calls| calls.len()).sum::<usize>();
        loop {
            left -= ring.pop(2, |_| ());
            if left == 0 {
                break;
            }
            flag.set();
            let is_quiet = ring.is_empty();
            if is_quiet {
                event.wait();
            }
            flag.clear();
            if is_quiet {
                event.drain();
            }
        }
        for thread in threads {
            thread.join().expect("a client does not panic");
        }
    });
}

#[test]
fn two_requests_of_one_client_wake_the_daemon() {
    every_request_is_served(&[&[1, 2]]);
}

#[test]
fn requests_of_two_clients_wake_the_daemon() {
    every_request_is_served(&[&[1], &[2]]);
}

/// The kernel's futex: for the waker, checking the word and going to sleep are one step.
#[derive(Default)]
struct Futex {
    bucket: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        let bucket = self.bucket.lock().expect("nobody panics with it");
        if word.load(Ordering::Relaxed) == expected {
            drop(self.woken.wait(bucket).expect("nobody panics with it"));
        }
    }

    fn wake_all(&self) {
        let _bucket = self.bucket.lock().expect("nobody panics with it");
        self.woken.notify_all();
    }
}

/// A thread that waits for its answer as the client library does, but sleeps without a timeout.
/// Returns `None` once another incarnation of the daemon runs.
fn wait(cell: &CallCell, futex: &Futex, call: u32, life: &AtomicU64) -> Option<Answer> {
    loop {
        if cell.will_sleep(call) && life.load(Ordering::Acquire) == 0 {
            futex.wait(cell.sleep_word(), CallCell::ASLEEP);
        }
        cell.woke();
        if let Some(answer) = cell.answer(call) {
            return Some(answer);
        }
        if life.load(Ordering::Acquire) != 0 {
            return None;
        }
    }
}

/// Wakes the sleeping thread, as the daemon and the keeper do.
fn rouse(cell: &CallCell, futex: &Futex) {
    fence(Ordering::SeqCst);
    if cell.rouse() {
        futex.wake_all();
    }
}

const fn answer(call: u32) -> Answer {
    Answer { status: call, values: [call as u64; VALUES] }
}

#[test]
fn a_waiting_thread_always_gets_its_answer() {
    loom::model(|| {
        let shared = Arc::new((CallCell::default(), Futex::default()));
        let daemon = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                shared.0.finish(1, &answer(1));
                rouse(&shared.0, &shared.1);
            })
        };
        let life = AtomicU64::new(0);
        assert_eq!(wait(&shared.0, &shared.1, 1, &life), Some(answer(1)));
        daemon.join().expect("the daemon does not panic");
    });
}

/// The keeper finds another daemon while a dying one may still answer: the thread learns of one of
/// the two, and its next call in the same cell gets its own answer.
#[test]
fn a_waiting_thread_always_hears_of_the_loss() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new((CallCell::default(), Futex::default()));
        let life = Arc::new(AtomicU64::new(0));
        let dying = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                shared.0.finish(1, &answer(1));
                rouse(&shared.0, &shared.1);
            })
        };
        let keeper = {
            let (shared, life) = (shared.clone(), life.clone());
            loom::thread::spawn(move || {
                life.store(1, Ordering::Release);
                rouse(&shared.0, &shared.1);
            })
        };
        let outcome = wait(&shared.0, &shared.1, 1, &life);
        assert!(outcome.is_none_or(|found| found == answer(1)));
        keeper.join().expect("the keeper does not panic");
        // The next daemon serves this client only after the earlier one is dead.
        dying.join().expect("the daemon does not panic");
        assert_eq!(shared.0.answer(2), None);
        shared.0.finish(2, &answer(2));
        assert_eq!(shared.0.answer(2), Some(answer(2)));
    });
}
