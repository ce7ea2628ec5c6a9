//! All requests of a poll round for one peer share one doorbell.

use std::time::{Duration, Instant};

use super::endings::{all_completed, ended, ten_writes};
use super::pair::{End, Pair, bytes_of, memory_of, ok, pattern, transfer, write};
use super::{Factory, Hardware};
use crate::{DisconnectReason, ErrorClass, Event, MAX_MESSAGE};

/// Sizes of ten messages, small and large. With the writes, they fit into any socket at once.
const SIZES: [usize; 10] = [1, 64, 100, 2048, 2049, 24, 3000, 512, 24, 3];
const WRITTEN: u32 = 256;

fn message(end: &mut End) -> Vec<u8> {
    match end.wait("a message", |event| matches!(event, Event::Message { .. })) {
        Event::Message { bytes, .. } => bytes,
        other => panic!("{other:?} is no message"),
    }
}

/// Polls both racks until the second has received `count` messages. A message that waits for writes
/// is sent by a poll of its sender.
fn messages(pair: &mut Pair, count: usize) -> Vec<Vec<u8>> {
    let (start, mut all) = (Instant::now(), Vec::new());
    while all.len() < count {
        pair.a.poll();
        pair.b.poll();
        for event in pair.b.events.drain(..) {
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            all.push(bytes);
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{} of {count} came", all.len());
    }
    all
}

/// Ten writes and ten messages of a round cause one doorbell, or one write to a socket. The
/// messages arrive in order, after the writes have landed.
pub fn a_round_rings_once(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    for round in 0..20 {
        let content = pattern(10 * WRITTEN as usize, round);
        let region = pair.a.register(&memory_of(factory, &content));
        let part = |id, at| write(id, transfer(region, at, at, WRITTEN));
        let list: Vec<_> = (0..10).map(|id| part(id, id * u64::from(WRITTEN))).collect();
        let before = pair.a.fabric().device_counters();
        ok(pair.a.post_only(&list));
        for len in SIZES {
            ok(pair.a.send_only(&pattern(len, round)));
        }
        assert_eq!(pair.a.fabric().device_counters().doorbells, before.doorbells, "too early");
        pair.a.flush();
        pair.a.flush();
        ok(pair.a.completed(9));
        assert!(messages(&mut pair, 10) == SIZES.map(|len| pattern(len, round)), "round {round}");
        assert!(bytes_of(&pair.b.node.frames, 0, content.len()) == content, "round {round}");
        let after = pair.a.fabric().device_counters();
        if after.requests > 0 {
            assert_eq!(after.requests - before.requests, 20);
            assert_eq!(after.doorbells - before.doorbells, 1);
            let completions = after.completions - before.completions;
            assert!((1..=20).contains(&completions), "{completions} completions");
            if after.signalled > 0 {
                // The last request of the list, and perhaps a 32nd request; the last may still be
                // in flight.
                let signalled = after.signalled - before.signalled;
                assert!((1..=2).contains(&signalled), "{signalled} signalled");
                assert!(after.completions <= after.signalled, "{after:?}");
            }
        }
        pair.a.fabric().unregister(region);
        pair.a.wait("the region", |event| *event == Event::Unregistered { region });
        pair.a.events.clear();
    }
}

/// An owner that polls needs no flush.
pub fn what_nobody_flushes_goes_with_the_next_poll(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let region = pair.a.register(&memory_of(factory, &pattern(4096, 9)));
    for round in 0..50 {
        ok(pair.a.post_only(&[write(round, transfer(region, 0, round * 64, 4096))]));
        ok(pair.a.send_only(&round.to_le_bytes()));
        ok(pair.a.completed(round));
        assert_eq!(messages(&mut pair, 1), [round.to_le_bytes()]);
        ok(pair.b.send_only(b"back"));
        pair.b.poll();
        assert_eq!(message(&mut pair.a), b"back");
    }
}

/// Unflushed messages count as sent: a full ring refuses more, and no message is lost or
/// duplicated.
pub fn what_waits_for_a_flush_takes_room(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    for len in [3, 3000, MAX_MESSAGE] {
        let mut sent = 0_u32;
        let bytes = |number: u32| {
            let mut bytes = pattern(len, 5);
            bytes[..3].copy_from_slice(&number.to_le_bytes()[..3]);
            bytes
        };
        let error = loop {
            match pair.a.send_only(&bytes(sent)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            assert!(sent < 1 << 20, "a peer that takes nothing can be sent everything");
        };
        assert_eq!(error.class(), ErrorClass::Retry);
        pair.a.flush();
        let came = messages(&mut pair, sent as usize);
        let in_order = (0..).zip(&came).all(|(number, message)| *message == bytes(number));
        assert!(in_order && came.len() == sent as usize, "{} of {sent}, {len} B", came.len());
        // Until this side learns that there is room again.
        let start = Instant::now();
        while pair.a.send(b"end").is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "there is never room again");
            pair.a.poll();
            pair.b.poll();
        }
        assert_eq!(message(&mut pair.b), b"end");
    }
}

/// An endpoint that is closed before its flush ends like any other: both sides learn which side
/// ended it, and each request fails once.
pub fn an_end_before_the_flush_is_an_end(factory: &impl Factory) {
    for writes in [true, false] {
        let Pair { mut a, mut b } = Pair::new(factory, Hardware::STUCK);
        if writes {
            let list = ten_writes(factory, &mut a);
            ok(a.post_only(&list));
        }
        for len in SIZES {
            ok(a.send_only(&pattern(len, 1)));
        }
        let endpoint = a.endpoint;
        a.fabric().disconnect(endpoint);
        a.flush();
        assert_eq!(ended(&mut a), DisconnectReason::Local);
        assert_eq!(ended(&mut b), DisconnectReason::Peer);
        all_completed(factory, &mut a, if writes { 10 } else { 0 }, ErrorClass::Fenced);
        // Some messages may have arrived: the first ones, in order.
        for (event, len) in b.events.iter().zip(SIZES) {
            let Event::Message { bytes, .. } = event else { panic!("{event:?}") };
            assert!(*bytes == pattern(len, 1));
        }
    }
}

/// The same if the peer dies while requests wait for a flush.
pub fn death_before_the_flush_fails_every_request(factory: &impl Factory) {
    for flushes in [true, false] {
        let Pair { mut a, b } = Pair::new(factory, Hardware::STUCK);
        let list = ten_writes(factory, &mut a);
        ok(a.post_only(&list));
        for len in SIZES {
            ok(a.send_only(&pattern(len, 1)));
        }
        drop(b);
        if flushes {
            a.flush();
        }
        assert_eq!(ended(&mut a), DisconnectReason::PeerGone);
        all_completed(factory, &mut a, 10, ErrorClass::PeerGone);
        a.flush();
        a.poll();
        assert_eq!(a.events, []);
    }
}
