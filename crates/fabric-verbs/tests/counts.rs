//! The requests to an RDMA device for posted work, by the fabric's counters, on hosts with an RDMA
//! port.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::time::{Duration, Instant};

use common::{Verbs, is_there};
use rackpool_fabric::conformance::Hardware;
use rackpool_fabric::conformance::pair::{
    End, Pair, memory_of, ok, pattern, read, transfer, write,
};
use rackpool_fabric::{DeviceCounters, Event, WorkRequest};
use rackpool_testing::skipped;

/// One in this number of requests is signalled, besides the last of each list.
const SIGNAL_EVERY: u64 = 32;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The counts since `before`, once everything is done. Checks that exactly the signalled requests
/// have produced completions.
fn asked_since(end: &mut End, before: DeviceCounters) -> DeviceCounters {
    let start = Instant::now();
    loop {
        end.poll();
        let now = end.fabric().device_counters();
        let since = DeviceCounters {
            requests: now.requests - before.requests,
            doorbells: now.doorbells - before.doorbells,
            completions: now.completions - before.completions,
            signalled: now.signalled - before.signalled,
            inlined: now.inlined - before.inlined,
        };
        if since.completions == since.signalled {
            return since;
        }
        assert!(start.elapsed() < TIMEOUT, "{since:?}");
    }
}

/// Waits for the completions of `count` requests and checks their order, from 0 on.
fn completed(end: &mut End, count: u64) {
    ok(end.completed(count - 1));
    let ids: Vec<u64> = end
        .events
        .drain(..)
        .map(|event| match event {
            Event::Completed { id, result: Ok(()), .. } => id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, (0..count - 1).collect::<Vec<_>>());
}

#[test]
fn a_list_rings_once_and_few_of_it_complete_by_themselves() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::new(&Verbs, Hardware::FAST);
    let region = pair.a.register(&memory_of(&Verbs, &pattern(4096, 3)));
    // Includes lists whose last request is signalled by its number, and the request after it.
    for count in [1, 30, 1, 1, 100, 31, 64, 33] {
        let before = pair.a.fabric().device_counters();
        let list: Vec<_> = (0..count).map(|id| write(id, transfer(region, 0, id * 8, 8))).collect();
        ok(pair.a.post(&list));
        completed(&mut pair.a, count);
        let asked = asked_since(&mut pair.a, before);
        // All requests of this side have gone through this endpoint.
        let (first, last) = (before.requests, before.requests + count - 1);
        let signalled = (first..=last)
            .filter(|number| *number == last || number % SIGNAL_EVERY == SIGNAL_EVERY - 1)
            .count();
        assert_eq!((asked.requests, asked.doorbells), (count, 1), "{asked:?}");
        assert_eq!(asked.signalled, signalled as u64, "requests {first} to {last}");
    }
}

#[test]
fn a_list_beyond_the_send_queue_rings_again_for_the_rest() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::new(&Verbs, Hardware::FAST);
    let depth = pair.a.fabric().queue_depth() as u64;
    let region = pair.a.register(&memory_of(&Verbs, &pattern(4096, 4)));
    let before = pair.a.fabric().device_counters();
    // Over soft-RoCE each write is three requests: its whole words, and the bytes before and after
    // them.
    let list: Vec<_> =
        (0..depth).map(|id| write(id, transfer(region, 3, id * 64 + 3, 40))).collect();
    ok(pair.a.post(&list));
    completed(&mut pair.a, depth);
    let asked = asked_since(&mut pair.a, before);
    let parts = asked.requests / depth;
    assert!(asked.requests == parts * depth && (parts == 1 || parts == 3), "{asked:?}");
    assert!(asked.doorbells >= parts, "more than the send queue holds: {asked:?}");
    // Each 32nd request, and the last of each doorbell's list.
    let least = asked.requests / SIGNAL_EVERY;
    assert!((least..=least + asked.doorbells).contains(&asked.signalled), "{asked:?}");
}

#[test]
fn what_is_short_goes_within_its_request() {
    if !is_there() {
        return;
    }
    let mut pair = Pair::new(&Verbs, Hardware::FAST);
    let region = pair.a.register(&memory_of(&Verbs, &pattern(8192, 5)));
    let inlined = |pair: &mut Pair, request: WorkRequest| {
        let before = pair.a.fabric().device_counters();
        ok(pair.a.post(&[request]));
        ok(pair.a.completed(0));
        let asked = asked_since(&mut pair.a, before);
        assert_eq!((asked.requests, asked.signalled), (1, 1), "{asked:?}");
        asked.inlined
    };
    if inlined(&mut pair, write(0, transfer(region, 0, 0, 8))) == 0 {
        skipped("the device carries no bytes within its requests");
        return;
    }
    assert_eq!(inlined(&mut pair, write(0, transfer(region, 8, 64, 200))), 1);
    assert_eq!(inlined(&mut pair, write(0, transfer(region, 0, 0, 4096))), 0, "too long");
    assert_eq!(inlined(&mut pair, read(0, transfer(region, 0, 0, 8))), 0, "a read carries nothing");
    for (len, expected) in [(1, 1), (24, 1), (2048, 0), (3000, 0)] {
        let before = pair.a.fabric().device_counters();
        ok(pair.a.send(&pattern(len, 1)));
        pair.b.wait("the message", |event| matches!(event, Event::Message { .. }));
        let asked = asked_since(&mut pair.a, before);
        assert_eq!((asked.requests, asked.doorbells), (1, 1), "{len} B: {asked:?}");
        assert_eq!(asked.inlined, expected, "{len} B");
    }
}
