//! Models of the request ring and of the call cell: run with `cargo x loom`.
#![cfg(loom)]

use loom::sync::Arc;
use rackpool_ring::call::{Answer, CallCell, VALUES};
use rackpool_ring::request::{ARGUMENTS, Entry, Request, RequestRing, RingHeader};

fn request(call: u32) -> Request {
    Request { code: 1, cell: 0, thread: 0, call, arguments: [u64::from(call); ARGUMENTS] }
}

/// Two pushers and a popper: nothing is lost, doubled or torn.
#[test]
fn two_pushers_one_popper() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let ring = Arc::new((RingHeader::default(), [Entry::default(), Entry::default()]));
        RequestRing::new(&ring.0, &ring.1).format();
        let pushers: Vec<_> = (1..=2)
            .map(|call| {
                let ring = ring.clone();
                loom::thread::spawn(move || {
                    RequestRing::new(&ring.0, &ring.1).push(&request(call)).expect("there is room");
                })
            })
            .collect();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match RequestRing::new(&ring.0, &ring.1).pop() {
                Some(popped) => {
                    assert_eq!(popped, request(popped.call), "torn");
                    seen.push(popped.call);
                }
                None => loom::thread::yield_now(),
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        for pusher in pushers {
            pusher.join().expect("a pusher does not panic");
        }
    });
}

const fn answer(call: u32) -> Answer {
    Answer { status: call, values: [call as u64; VALUES] }
}

/// The wake-up is never lost: a thread that decided to sleep is told to be woken and finds the word
/// it sleeps on changed, or sees the answer before it sleeps.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let cell = Arc::new(CallCell::default());
        let call = cell.begin();
        let daemon = {
            let cell = cell.clone();
            loom::thread::spawn(move || cell.finish(call, &answer(call)))
        };
        let (_, seen) = cell.sleep_word();
        let sleeps = cell.answer().is_none() && cell.will_sleep();
        let wakes = daemon.join().expect("the daemon does not panic");
        assert!(!sleeps || (wakes && cell.sleep_word().1 != seen), "the thread sleeps for ever");
        assert_eq!(cell.answer(), Some(answer(call)));
    });
}

/// A client gives its first call up and begins the second in the same cell while the daemon
/// finishes the first: the second is completed by its own answer or not at all.
#[test]
fn an_answer_to_an_old_call_completes_no_new_one() {
    loom::model(|| {
        let cell = Arc::new(CallCell::default());
        let first = cell.begin();
        let daemon = {
            let cell = cell.clone();
            loom::thread::spawn(move || {
                let _ = cell.finish(first, &answer(first));
                let second = first + 1;
                if cell.is_waiting_for(second) {
                    let _ = cell.finish(second, &answer(second));
                }
            })
        };
        let second = cell.begin();
        let early = cell.answer();
        assert!(early.is_none_or(|found| found == answer(second)), "{early:?}");
        daemon.join().expect("the daemon does not panic");
        let late = cell.answer();
        assert!(late.is_none_or(|found| found == answer(second)), "{late:?}");
        assert!(late.is_some() || cell.is_waiting_for(second));
    });
}

/// A call is declared lost while a daemon finishes it: it is either, for good, and a sleeper hears
/// of it once.
#[test]
fn a_call_is_answered_or_lost() {
    loom::model(|| {
        let cell = Arc::new(CallCell::default());
        let call = cell.begin();
        assert!(cell.will_sleep());
        let daemon = {
            let cell = cell.clone();
            loom::thread::spawn(move || cell.finish(call, &answer(call)))
        };
        let told = cell.lose();
        let lost = cell.is_lost();
        let woken = daemon.join().expect("the daemon does not panic");
        assert!(told != woken, "the sleeper is woken by one of them");
        assert_eq!(lost, told);
        assert_eq!(cell.answer(), (!lost).then_some(answer(call)));
    });
}
