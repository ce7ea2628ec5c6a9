//! How connections fail and end.

use rackpool_model::{Incarnation, RackId};

use super::pair::{End, FRAMES_LEN, Pair, bytes_of, memory_of, ok, pattern, transfer, write};
use super::{Factory, Hardware};
use crate::{DisconnectReason, ErrorClass, Event, FabricError, WorkRequest};

pub(super) fn ended(end: &mut End) -> DisconnectReason {
    match end.wait("the end", |event| matches!(event, Event::Disconnected { .. })) {
        Event::Disconnected { endpoint, reason } => {
            assert_eq!(endpoint, end.endpoint);
            // Some providers report the fence first.
            end.events.retain(|event| *event != Event::Fenced { endpoint });
            reason
        }
        other => panic!("{other:?} is no end"),
    }
}

/// Checks that exactly `count` requests have completed, in order. Only the first ones may have
/// succeeded, and none if time is modelled; the others failed with an error of `class`.
pub(super) fn all_completed(factory: &impl Factory, end: &mut End, count: u64, class: ErrorClass) {
    let completed = std::mem::take(&mut end.events);
    assert_eq!(completed.len() as u64, count);
    let mut may_be_done = !factory.models_time();
    for (expected, event) in (0..count).zip(completed) {
        let Event::Completed { id, result, .. } = event else { panic!("{event:?}") };
        assert_eq!(id, expected);
        may_be_done &= result.is_ok();
        if !may_be_done {
            assert_eq!(result.map_err(|error| error.class()), Err(class));
        }
    }
}

pub(super) fn ten_writes(factory: &impl Factory, end: &mut End) -> Vec<WorkRequest> {
    let region = end.register(&memory_of(factory, &pattern(4096, 1)));
    (0..10).map(|id| write(id, transfer(region, 0, id * 4096, 4096))).collect()
}

/// When the peer dies, every request fails exactly once, and then the endpoint ends.
pub fn death_of_the_peer_ends_everything(factory: &impl Factory) {
    let Pair { mut a, b } = Pair::new(factory, Hardware::STUCK);
    let list = ten_writes(factory, &mut a);
    ok(a.post(&list));
    drop(b);
    assert_eq!(ended(&mut a), DisconnectReason::PeerGone);
    all_completed(factory, &mut a, 10, ErrorClass::PeerGone);
    a.poll();
    assert_eq!(a.events, []);
}

/// Each side learns once that the endpoint has ended, and which side ended it.
pub fn disconnect_tells_both_sides(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::STUCK);
    let list = ten_writes(factory, &mut b);
    ok(b.post(&list));
    let endpoint = a.endpoint;
    a.fabric().disconnect(endpoint);
    a.fabric().disconnect(endpoint);
    assert_eq!(ended(&mut a), DisconnectReason::Local);
    assert_eq!(ended(&mut b), DisconnectReason::Peer);
    all_completed(factory, &mut b, 10, ErrorClass::Fenced);
    for end in [&mut a, &mut b] {
        let endpoint = end.endpoint;
        end.fabric().disconnect(endpoint);
        end.poll();
        assert_eq!(end.events, []);
    }
}

/// After `Disconnected`, no write of the peer lands, even if the peer has not noticed the end.
pub fn disconnect_fences_the_peer(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    let list = ten_writes(factory, &mut a);
    // The first write is done; the others are due and wait for the next poll.
    ok(a.post(&list[..1]));
    ok(a.completed(0));
    ok(a.post(&list[1..]));
    let endpoint = b.endpoint;
    b.fabric().disconnect(endpoint);
    assert_eq!(ended(&mut b), DisconnectReason::Local);
    let zeroes = vec![0; 10 * 4096];
    ok(b.node.frames.write(0, &zeroes));
    assert_eq!(ended(&mut a), DisconnectReason::Peer);
    assert_eq!(a.events.len(), 9);
    assert!(bytes_of(&b.node.frames, 0, zeroes.len()) == zeroes, "a late write landed");
}

/// An endpoint that has ended refuses every request with an error.
pub fn an_ended_endpoint_is_refused(factory: &impl Factory) {
    let Pair { mut a, mut b } = Pair::new(factory, Hardware::FAST);
    let list = ten_writes(factory, &mut a);
    let endpoint = a.endpoint;
    a.fabric().disconnect(endpoint);
    for _ in 0..2 {
        assert_eq!(a.post(&list), Err(FabricError::Closed));
        assert_eq!(a.send(b"hello"), Err(FabricError::Closed));
        ended(&mut a);
        b.poll();
        a.events.push(Event::Disconnected { endpoint, reason: DisconnectReason::Local });
    }
    a.endpoint.0 += 1000;
    assert_eq!(a.post(&list), Err(FabricError::UnknownEndpoint));
    assert_eq!(a.send(b"hello"), Err(FabricError::UnknownEndpoint));
}

/// Connecting to an address without a listener is reported by an event; the fabric continues.
pub fn connecting_to_nowhere_fails(factory: &impl Factory) {
    let mut a = End::alone(factory.start(RackId(1), 4096, Hardware::FAST));
    let address = factory.nowhere();
    let connecting = ok(a.fabric().connect(&address));
    let failed = |event: &Event| matches!(event, Event::ConnectFailed { .. });
    let Event::ConnectFailed { endpoint, error } = a.wait("the failure", failed) else { panic!() };
    assert_eq!((endpoint, error.class()), (connecting, ErrorClass::PeerGone));
    let text = error.to_string();
    assert!(text.contains("no rack daemon answers at"), "{text}");
    assert_eq!(a.events, []);
}

/// `connect` refuses an address of another provider at once.
pub fn addresses_of_others_are_refused(factory: &impl Factory) {
    let mut a = End::alone(factory.start(RackId(1), 4096, Hardware::FAST));
    for address in ["", "carrier-pigeon:7", "\0", "🕊"] {
        let Err(error) = a.fabric().connect(address) else { panic!("{address:?} was taken") };
        assert_eq!(error.class(), ErrorClass::Fatal);
    }
}

/// A connection that the owner gives up ends with `Disconnected`, whether it succeeded or not.
pub fn a_connect_can_be_given_up(factory: &impl Factory) {
    let mut a = End::alone(factory.start(RackId(1), 4096, Hardware::FAST));
    let mut b = End::alone(factory.start(RackId(2), 4096, Hardware::FAST));
    let address = b.fabric().address();
    for _ in 0..20 {
        a.endpoint = ok(a.fabric().connect(&address));
        let endpoint = a.endpoint;
        assert_eq!(a.send(b"early"), Err(FabricError::NotConnected));
        a.fabric().disconnect(endpoint);
        assert_eq!(ended(&mut a), DisconnectReason::Local);
        assert_eq!(a.events, []);
    }
    a.endpoint = ok(a.fabric().connect(&address));
    a.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    // The other side sees each attempt as an `Accepted` followed by a `Disconnected`.
    let open = |events: &[Event]| {
        let count = |fits: fn(&Event) -> bool| events.iter().filter(|event| fits(event)).count();
        count(|event| matches!(event, Event::Accepted { .. }))
            - count(|event| matches!(event, Event::Disconnected { .. }))
    };
    ok(a.send(b"hello"));
    b.wait("the message", |event| matches!(event, Event::Message { .. }));
    while open(&b.events) > 1 {
        b.poll();
    }
}

/// Two racks that connect to each other simultaneously get two endpoints, and both work.
pub fn both_sides_may_connect(factory: &impl Factory) {
    let mut a = End::alone(factory.start(RackId(1), 4096, Hardware::FAST));
    let mut b = End::alone(factory.start(RackId(2), 4096, Hardware::FAST));
    let (to_a, to_b) = (a.fabric().address(), b.fabric().address());
    a.endpoint = ok(a.fabric().connect(&to_b));
    b.endpoint = ok(b.fabric().connect(&to_a));
    for end in [&mut a, &mut b] {
        end.wait("the own connection", |event| matches!(event, Event::Connected { .. }));
        end.wait("the other's connection", |event| matches!(event, Event::Accepted { .. }));
    }
    for round in 0..2 {
        ok(a.send(&[round]));
        ok(b.send(&[round]));
        for end in [&mut a, &mut b] {
            let event = end.wait("a message", |event| matches!(event, Event::Message { .. }));
            let Event::Message { endpoint, bytes } = event else { panic!() };
            assert_eq!(bytes, [round]);
            assert_ne!(endpoint, end.endpoint, "it came through the other's connection");
        }
    }
}

/// An endpoint of a rack's other incarnation ends before a new incarnation is connected: no write
/// of the replaced daemon, which may be stopped, lands after one of the new daemon.
pub fn another_incarnation_of_the_peer_ends_the_endpoint(factory: &impl Factory) {
    let life = |incarnation| {
        let rack = (RackId(1), Incarnation(incarnation));
        End::alone(factory.start_incarnation(rack, 4096, Hardware::FAST))
    };
    let is_connected = |event: &Event| matches!(event, Event::Connected { .. });
    let mut b = End::alone(factory.start(RackId(2), FRAMES_LEN, Hardware::FAST));
    let address = b.fabric().address();
    // One endpoint that the earlier incarnation connected, one that it accepted.
    let mut earlier = life(1);
    earlier.endpoint = ok(earlier.fabric().connect(&address));
    earlier.wait("the connection", is_connected);
    b.wait("the earlier incarnation", |event| matches!(event, Event::Accepted { .. }));
    let to_earlier = earlier.fabric().address();
    let own = ok(b.fabric().connect(&to_earlier));
    b.wait("the own connection", is_connected);
    let list = ten_writes(factory, &mut earlier);
    ok(earlier.post(&list[..1]));
    ok(earlier.completed(0));
    // These wait for a poll.
    ok(earlier.post_only(&list[1..]));

    let mut later = life(2);
    later.endpoint = ok(later.fabric().connect(&address));
    let endpoint = later.endpoint;
    let is_later =
        |event: &Event| matches!(event, Event::Connected { endpoint: id, .. } if *id == endpoint);
    while !later.events.iter().any(is_later) {
        later.poll();
        b.poll();
    }
    let twos = vec![2; 10 * 4096];
    let region = later.register(&memory_of(factory, &twos));
    ok(later.post(&[write(20, transfer(region, 0, 0, 10 * 4096))]));
    ok(later.completed(20));

    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    // Over TCP an idle channel of the earlier incarnation ends when the other side polls.
    while earlier.events.iter().filter(|event| is_end(event)).count() < 2 {
        earlier.poll();
        b.poll();
    }
    assert!(bytes_of(&b.node.frames, 0, twos.len()) == twos, "a write of the earlier landed");
    let mut ends = [0; 2].map(|_| match b.wait("the end", is_end) {
        Event::Disconnected { endpoint, reason } => (endpoint, reason),
        other => panic!("{other:?}"),
    });
    ends.sort_by_key(|(endpoint, _)| *endpoint != own);
    assert_eq!(ends[0].0, own);
    assert_ne!(ends[1].0, own);
    assert!(ends.iter().all(|(_, reason)| *reason == DisconnectReason::PeerGone));
    // The later incarnation is still served.
    ok(later.post(&[write(21, transfer(region, 0, 0, 4096))]));
    ok(later.completed(21));
}
