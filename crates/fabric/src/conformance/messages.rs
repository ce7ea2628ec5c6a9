//! Messages.

use std::time::{Duration, Instant};

use super::pair::{Pair, bytes_of, memory_of, ok, pattern, transfer, write};
use super::{Factory, Hardware};
use crate::{ErrorClass, Event, FabricError, MAX_MESSAGE};

fn message(pair: &mut Pair) -> Vec<u8> {
    match pair.b.wait("a message", |event| matches!(event, Event::Message { .. })) {
        Event::Message { endpoint, bytes } => {
            assert_eq!(endpoint, pair.b.endpoint);
            bytes
        }
        other => panic!("{other:?} is no message"),
    }
}

/// Sends as soon as the peer has room. This side may learn of the room with a delay.
fn send(pair: &mut Pair, message: &[u8]) {
    let start = Instant::now();
    while let Err(error) = pair.a.send(message) {
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "there is never room again");
        pair.a.poll();
    }
}

/// Messages of all sizes arrive unchanged and in order, in both directions.
pub fn order_and_content(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let sizes = [1, 2, 7, 8, 9, 511, 512, 4096, 65_535, MAX_MESSAGE, 3];
    // Enough bytes to wrap around any ring several times.
    for round in 0..40 {
        for len in sizes {
            send(&mut pair, &pattern(len, round));
        }
        for len in sizes {
            assert!(message(&mut pair) == pattern(len, round), "{len} B in round {round}");
        }
    }
    ok(pair.b.send(b"back"));
    let fits = |event: &Event| matches!(event, Event::Message { bytes, .. } if bytes == b"back");
    pair.a.wait("the answer", fits);
}

/// Empty and too large messages are refused, and the endpoint stays open.
pub fn sizes_that_cannot_be(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    for len in [0, MAX_MESSAGE + 1, 1 << 24] {
        let refused = FabricError::MessageSize { len, max: MAX_MESSAGE };
        assert_eq!(pair.a.send(&vec![0; len]), Err(refused));
    }
    ok(pair.a.send(b"fine"));
    assert_eq!(message(&mut pair), b"fine");
}

/// A peer that takes no messages neither blocks the sender nor loses a message.
pub fn a_full_ring_says_retry_and_recovers(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    let mut sent = 0;
    let error = loop {
        match pair.a.send(&pattern(MAX_MESSAGE, sent)) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 250, "a peer that takes nothing can be sent everything");
    };
    assert_eq!(error.class(), ErrorClass::Retry);
    for seed in 0..sent {
        assert!(message(&mut pair) == pattern(MAX_MESSAGE, seed));
    }
    send(&mut pair, b"again");
    assert_eq!(message(&mut pair), b"again");
}

/// A message arrives after the writes posted before it have landed.
pub fn a_message_follows_the_writes_before_it(factory: &impl Factory) {
    let mut pair = Pair::new(factory, Hardware::FAST);
    for round in 1..50 {
        let content = pattern(300_000, round);
        let region = pair.a.register(&memory_of(factory, &content));
        ok(pair.a.post(&[write(u64::from(round), transfer(region, 0, 8, 300_000))]));
        ok(pair.a.send(&[round]));
        ok(pair.a.send(&[round, 2]));
        // The writer polls rarely: the receiver must not see the message before the bytes.
        for _ in 0..3 {
            pair.b.poll();
        }
        while pair.b.events.is_empty() {
            pair.a.poll();
            pair.b.poll();
        }
        assert_eq!(message(&mut pair), [round]);
        assert!(bytes_of(&pair.b.node.frames, 8, 300_000) == content, "round {round}");
        ok(pair.a.completed(u64::from(round)));
        assert_eq!(message(&mut pair), [round, 2]);
        pair.a.fabric().unregister(region);
        pair.a.wait("the region", |event| *event == Event::Unregistered { region });
    }
}
