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

/// The wake-up is never lost: a thread that decided to sleep is told to be woken, or sees the
/// answer before it sleeps.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let cell = Arc::new(CallCell::default());
        let call = cell.begin();
        let daemon = {
            let cell = cell.clone();
            loom::thread::spawn(move || {
                cell.finish(call, &Answer { status: 2, values: [7; VALUES] })
            })
        };
        let sleeps = cell.answer().is_none() && cell.will_sleep();
        let wakes = daemon.join().expect("the daemon does not panic");
        assert!(!sleeps || wakes, "the thread sleeps for ever");
        assert_eq!(cell.answer(), Some(Answer { status: 2, values: [7; VALUES] }));
    });
}
