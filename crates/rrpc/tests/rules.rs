//! The rules of requests, one in each test.

#![allow(clippy::unwrap_used, reason = "a panic is a test's failure")]

mod world;

use std::time::Duration;

use rackpool_fabric::{MemoryRegion, Operation, RemoteRegion, Transfer};
use rackpool_rrpc::{
    Call, CallError, CallEvent, Data, Failure, Mode, Overdue, RemotePlace, Wants, message,
};
use world::net::lock;
use world::{World, frames_bytes};

const ARENA: u64 = 512 << 10;

fn answered(call_events: Vec<CallEvent>) -> (Vec<u8>, Data) {
    let mut answers = call_events.into_iter().filter_map(|call_events| match call_events {
        CallEvent::Answered { head, data, .. } => Some((head.to_vec(), data)),
        _ => None,
    });
    let answer = answers.next().expect("an answer");
    assert!(answers.next().is_none(), "one answer");
    answer
}

fn bytes_of(world: &World, data: &Data) -> Vec<u8> {
    match data {
        Data::None => Vec::new(),
        Data::Message(bytes) => bytes.to_vec(),
        Data::Arena { block, len } => {
            let mut bytes = vec![0; *len as usize];
            world.sides[0].rrpc.read(block, &mut bytes).unwrap();
            bytes
        }
        Data::Place(place) => {
            let mut bytes = vec![0; place.len as usize];
            world.sides[0].own.read(place.offset, &mut bytes).unwrap();
            bytes
        }
    }
}

fn failure(call_events: Vec<CallEvent>) -> Failure {
    match call_events.as_slice() {
        [CallEvent::Failed { failure, .. }] => failure.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_mode_brings_the_same_bytes() {
    for (mode, is_message) in
        [(Mode::Pure, true), (Mode::ThenOneSided, false), (Mode::ZeroCopy, false)]
    {
        for len in [1, 512, 60_000] {
            let mut world = World::new(ARENA, 16);
            let deadline = world.deadline();
            let call = Call {
                wants: Wants::Exactly(len),
                mode: Some(mode),
                ..Call::new(b"what?", deadline, Overdue::GiveUp)
            };
            world.call_with(&call).unwrap();
            world.run();
            let ask = world.asked()[0];
            world.answer_from_frames(ask, 77, len);
            world.run();
            let (head, data) = answered(world.call_events(0));
            assert_eq!(head, b"head");
            assert_eq!(matches!(data, Data::Message(_)), is_message, "{mode:?}");
            assert_eq!(bytes_of(&world, &data), frames_bytes(1)[77..][..len as usize]);
            if let Data::Arena { block, .. } = data {
                world.sides[0].rrpc.give_back(block);
            }
            for side in &world.sides {
                assert_eq!(side.rrpc.free_bytes(), ARENA, "{mode:?} {len} B");
            }
        }
    }
}

#[test]
fn an_answer_of_bytes_goes_through_the_arena_when_it_is_long() {
    let mut world = World::new(ARENA, 16);
    let bytes: Vec<u8> = (0..70_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    world.call(Wants::UpTo(100_000)).unwrap();
    world.run();
    let ask = world.asked()[0];
    world.sides[1].rrpc.answer(ask, b"", &bytes);
    assert!(world.sides[1].rrpc.free_bytes() < ARENA, "it is exposed");
    world.run();
    let (_, data) = answered(world.call_events(0));
    assert_eq!(bytes_of(&world, &data), bytes);
    assert_eq!(world.sides[1].rrpc.free_bytes(), ARENA, "it came back");
}

#[test]
fn more_than_was_asked_for_is_an_error_of_the_request() {
    let mut world = World::new(ARENA, 16);
    for (wants, len) in [(Wants::UpTo(100), 101), (Wants::UpTo(60_000), 70_000), (Wants::Head, 9)] {
        world.call(wants).unwrap();
        world.run();
        let ask = world.asked()[0];
        world.answer_from_frames(ask, 0, len);
        world.run();
        assert_eq!(failure(world.call_events(0)), Failure::TooLarge { len });
    }
    // The server knows the length of a place.
    let deadline = world.deadline();
    let known = Call {
        wants: Wants::Exactly(1000),
        mode: Some(Mode::ZeroCopy),
        ..Call::new(b"", deadline, Overdue::GiveUp)
    };
    world.call_with(&known).unwrap();
    world.run();
    let ask = world.asked()[0];
    world.answer_from_frames(ask, 0, 1001);
    world.run();
    assert_eq!(failure(world.call_events(0)), Failure::Refused(message::DOES_NOT_FIT));
    assert_eq!(world.sides[0].rrpc.free_bytes(), ARENA);
}

/// A zero-copy request that is given up while its data is on the wire.
fn with_a_write_on_the_wire(given_up: impl FnOnce(&mut World, rackpool_rrpc::CallId)) -> World {
    // Room for one buffer of 64 KiB and no second one.
    let mut world = World::new(64 << 10, 16);
    let deadline = world.now + Duration::from_millis(5);
    let call = Call {
        wants: Wants::Exactly(40_000),
        mode: Some(Mode::ZeroCopy),
        ..Call::new(b"", deadline, Overdue::GiveUp)
    };
    let id = world.call_with(&call).unwrap();
    world.run();
    let ask = world.asked()[0];
    world.answer_from_frames(ask, 0, 40_000);
    world.round(1);
    given_up(&mut world, id);
    world.round(0);
    world
}

#[test]
fn a_late_write_never_hits_a_reused_buffer() {
    let mut world = with_a_write_on_the_wire(|world, id| world.sides[0].rrpc.cancel(id));
    let next = Call {
        wants: Wants::Exactly(40_000),
        mode: Some(Mode::ZeroCopy),
        ..Call::new(b"", world.deadline(), Overdue::GiveUp)
    };
    let refused = world.call_with(&next);
    assert_eq!(refused, Err(CallError::NoRoom { len: 40_000 }), "the write has not landed");
    assert!(lock(&world.net).advance(1), "now it has");
    world.round(0);
    assert!(world.call_with(&next).is_err(), "nobody has said so");
    world.run();
    world.call_with(&next).unwrap();
    world.run();
    assert_eq!(world.call_events(0), [], "the first request is not heard of again");
    let ask = world.asked()[0];
    world.answer_from_frames(ask, 1, 40_000);
    world.run();
    let (_, data) = answered(world.call_events(0));
    assert_eq!(bytes_of(&world, &data), frames_bytes(1)[1..40_001]);
}

#[test]
fn a_deadline_is_told_at_once_and_keeps_the_buffer_until_the_write_has_landed() {
    let mut world = with_a_write_on_the_wire(|world, _| world.pass(Duration::from_millis(6)));
    assert_eq!(failure(world.call_events(0)), Failure::DeadlinePassed);
    assert!(world.sides[0].rrpc.free_bytes() < 40_000);
    world.run();
    assert_eq!(world.sides[0].rrpc.free_bytes(), 64 << 10);
    assert_eq!(world.call_events(0), []);
    assert_eq!(world.sides[0].rrpc.metrics().late, 1);
}

#[test]
fn a_request_that_is_not_answered_is_withdrawn() {
    let mut world = World::new(ARENA, 16);
    let deadline = world.deadline();
    let place = World::in_own(128, 5000);
    let call = Call {
        wants: Wants::Exactly(5000),
        into: Some(place),
        mode: Some(Mode::ZeroCopy),
        ..Call::new(b"", deadline, Overdue::GiveUp)
    };
    let id = world.call_with(&call).unwrap();
    world.run();
    let ask = world.asked()[0];
    world.sides[0].rrpc.cancel(id);
    world.round(0);
    assert_eq!(world.call_events(0), [], "the peer may still write there");
    world.run();
    assert_eq!(world.call_events(1), [CallEvent::Withdrawn { ask }]);
    assert_eq!(world.call_events(0), [CallEvent::Free { call: id, place }]);
    // A later answer has no effect.
    world.answer_from_frames(ask, 0, 5000);
    world.run();
    assert_eq!((world.call_events(0), lock(&world.net).ends[1].lists.last()), (Vec::new(), None));
}

#[test]
fn death_of_the_peer_ends_every_request_at_once() {
    let mut world = World::new(ARENA, 16);
    let mut calls = Vec::new();
    for wants in [Wants::Head, Wants::UpTo(70_000), Wants::Exactly(5000), Wants::Exactly(8)] {
        calls.push(world.call(wants).unwrap());
    }
    world.run();
    let asks = world.asked();
    // One is being read, one was cancelled, two wait.
    world.answer_from_frames(asks[1], 0, 70_000);
    world.round(1);
    while lock(&world.net).advance(1) {}
    world.round(0);
    world.sides[0].rrpc.cancel(calls[2]);
    lock(&world.net).cut();
    lock(&world.net).end(0);
    world.round(0);
    let mut failed: Vec<_> = world
        .call_events(0)
        .into_iter()
        .map(|call_events| match call_events {
            CallEvent::Failed { call, failure: Failure::Disconnected(_) } => call,
            other => panic!("{other:?}"),
        })
        .collect();
    failed.sort();
    assert_eq!(failed, [calls[0], calls[1], calls[3]]);
    assert_eq!(world.sides[0].rrpc.free_bytes(), ARENA);
    lock(&world.net).end(1);
    world.round(1);
    assert_eq!(world.sides[1].rrpc.free_bytes(), ARENA, "what was exposed is free as well");
}

/// Observed with leases of 20 s: a rack that stopped for 2 s was cut off although it was alive.
#[test]
fn who_stands_still_keeps_what_it_was_lent_for_as_long_as_the_owner_says() {
    let mut world = World::new(ARENA, 16);
    world.call(Wants::UpTo(100_000)).unwrap();
    world.run();
    let ask = world.asked()[0];
    let server = &mut world.sides[1];
    server.rrpc.expose_for(Duration::from_secs(20));
    server.rrpc.answer(ask, b"", &[7; 70_000]);
    server.rrpc.tick(world.now + Duration::from_secs(19));
    server.rrpc.flush(&mut server.wire);
    assert!(!lock(&world.net).is_cut(), "it may still read");
    server.rrpc.tick(world.now + Duration::from_secs(21));
    server.rrpc.flush(&mut server.wire);
    assert!(lock(&world.net).is_cut());
    lock(&world.net).end(1);
    world.round(1);
    assert_eq!(world.sides[1].rrpc.free_bytes(), ARENA);
}

#[test]
fn a_request_that_must_not_be_carried_out_later_ends_its_endpoint_first() {
    let mut world = World::new(ARENA, 16);
    let deadline = world.now + Duration::from_millis(3);
    world.call_with(&Call::new(b"add", deadline, Overdue::CutOff)).unwrap();
    world.run();
    world.pass(Duration::from_millis(4));
    assert_eq!(world.call_events(0), [], "not before the endpoint has ended");
    assert!(!lock(&world.net).advance(0), "nothing more is sent");
    lock(&world.net).end(0);
    world.round(0);
    assert!(matches!(failure(world.call_events(0)), Failure::Disconnected(_)));
}

#[test]
fn what_a_peer_does_not_give_back_ends_its_endpoint() {
    let mut world = World::new(ARENA, 16);
    let endpoint = world.endpoint(1);
    let ask = message::ask(1 << 32, 0, None, b"");
    lock(&world.net).inject(1, ask);
    world.round(1);
    let ask = world.asked()[0];
    world.sides[1].rrpc.answer(ask, b"", &[7; 5000]);
    world.pass(Duration::from_millis(1999));
    assert!(world.sides[1].rrpc.thresholds(endpoint).is_some());
    assert!(world.sides[1].rrpc.free_bytes() < ARENA);
    world.pass(Duration::from_millis(2));
    lock(&world.net).end(1);
    world.round(1);
    assert_eq!(world.sides[1].rrpc.thresholds(endpoint), None, "it has ended");
    assert_eq!(world.sides[1].rrpc.free_bytes(), ARENA);
}

#[test]
fn one_list_and_one_doorbell_for_all_that_a_round_has_for_a_peer() {
    let mut world = World::new(ARENA, 64);
    for _ in 0..10 {
        let deadline = world.deadline();
        let call = Call {
            wants: Wants::Exactly(4096),
            mode: Some(Mode::ZeroCopy),
            ..Call::new(b"", deadline, Overdue::GiveUp)
        };
        world.call_with(&call).unwrap();
    }
    world.run();
    let (endpoint, before) = (world.endpoint(1), world.sides[1].rrpc.metrics());
    lock(&world.net).ends[1].lists.clear();
    lock(&world.net).ends[1].doorbells.clear();
    for (at, ask) in (0..).zip(world.asked()) {
        world.answer_from_frames(ask, at * 4096, 4096);
    }
    for id in 0..5 {
        let transfer = Transfer {
            local: rackpool_fabric::RegionId(0),
            local_offset: 0,
            remote: RemoteRegion(2),
            remote_offset: id * 64,
            len: 64,
        };
        world.sides[1].rrpc.transfer(endpoint, id, Operation::Write(transfer)).unwrap();
    }
    world.run();
    assert_eq!(lock(&world.net).ends[1].lists, [15]);
    assert_eq!(
        lock(&world.net).ends[1].doorbells,
        [25],
        "the messages that tell of ten of them too"
    );
    let metrics = world.sides[1].rrpc.metrics();
    assert_eq!(metrics.operations - before.operations, 15);
    assert_eq!(metrics.messages - before.messages, 10);
    assert_eq!(metrics.doorbells - before.doorbells, 1);
    assert_eq!(world.call_events(0).len(), 10);
    assert_eq!(world.call_events(1).len(), 5);
}

#[test]
fn an_answer_waits_for_a_buffer() {
    let mut world = World::new(64 << 10, 16);
    world.call(Wants::UpTo(40_000)).unwrap();
    world.call(Wants::UpTo(40_000)).unwrap();
    world.run();
    for ask in world.asked() {
        world.answer_from_frames(ask, 5, 40_000);
    }
    world.run();
    let (_, first) = answered(world.call_events(0));
    let Data::Arena { block, .. } = first else { panic!("{first:?}") };
    world.sides[0].rrpc.give_back(block);
    world.run();
    let (_, second) = answered(world.call_events(0));
    assert_eq!(bytes_of(&world, &second), frames_bytes(1)[5..40_005]);
}

/// Found by the random histories: the answers of both racks filled the arenas into which both had
/// to read.
#[test]
fn racks_that_answer_each_other_can_always_read() {
    let mut world = World::new(96 << 10, 16);
    for side in [0, 1] {
        let endpoint = world.endpoint(side);
        let call = Call::new(b"", world.deadline(), Overdue::GiveUp);
        for _ in 0..4 {
            let call = Call { wants: Wants::UpTo(20_000), ..call };
            world.sides[side].rrpc.call(endpoint, &call).unwrap();
        }
    }
    world.run();
    for side in [0, 1] {
        for call_events in world.call_events(side) {
            let CallEvent::Asked { ask, .. } = call_events else { panic!("{call_events:?}") };
            world.sides[side].rrpc.answer(ask, b"", &[5; 20_000]);
        }
    }
    world.run();
    for side in [0, 1] {
        let answers = world.call_events(side);
        let is_whole = |call_events: &CallEvent| matches!(call_events, CallEvent::Answered { data, .. } if data.len() == 20_000);
        assert!(answers.len() == 4 && answers.iter().all(is_whole), "{answers:?}");
    }
}

/// Three requests for 40,000 B where one block fits: the first has its block, two wait.
fn two_wait_for_a_buffer() -> (World, [rackpool_rrpc::CallId; 2], rackpool_rrpc::Block) {
    let mut world = World::new(64 << 10, 16);
    let calls = [40_000, 40_000, 20_000].map(|len| world.call(Wants::UpTo(len)).unwrap());
    world.run();
    for (ask, len) in world.asked().into_iter().zip([40_000, 40_000, 20_000]) {
        world.answer_from_frames(ask, 5, len);
        world.run();
    }
    let (_, first) = answered(world.call_events(0));
    let Data::Arena { block, .. } = first else { panic!("{first:?}") };
    (world, [calls[1], calls[2]], block)
}

#[test]
fn who_waits_for_a_buffer_is_not_overtaken() {
    let (mut world, [second, third], block) = two_wait_for_a_buffer();
    assert_eq!(world.call_events(0), [], "a short answer would fit, and it waits for its turn");
    world.sides[0].rrpc.give_back(block);
    world.run();
    let ended: Vec<_> = world
        .call_events(0)
        .into_iter()
        .map(|call_events| match call_events {
            CallEvent::Answered { call, .. } => call,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ended, [second, third]);
}

#[test]
fn who_is_given_up_lets_the_next_one_have_the_buffer() {
    let (mut world, [second, third], _held) = two_wait_for_a_buffer();
    world.sides[0].rrpc.cancel(second);
    world.run();
    let call_events = world.call_events(0);
    assert!(
        matches!(&call_events[..], [CallEvent::Answered { call, .. }] if *call == third),
        "{call_events:?}"
    );
}

#[test]
fn a_server_without_a_buffer_says_so_and_short_answers_go_with_the_message() {
    let mut world = World::new(256 << 10, 16);
    world.call(Wants::UpTo(100_000)).unwrap();
    world.call(Wants::UpTo(100_000)).unwrap();
    world.run();
    let asks = world.asked();
    world.sides[1].rrpc.answer(asks[0], b"", &[1; 65_537]);
    world.run();
    assert_eq!(failure(world.call_events(0)), Failure::Refused(message::NO_ROOM));
    // Most of the part for answers is exposed, so the last answer travels in the message, above the
    // inline limit.
    lock(&world.net).inject(1, message::ask(9 << 32, 0, None, b""));
    world.round(1);
    let unauthenticated_peer = world.asked()[0];
    world.sides[1].rrpc.answer(unauthenticated_peer, b"", &[2; 40_000]);
    world.sides[1].rrpc.answer(asks[1], b"", &[3; 40_000]);
    world.run();
    let (_, data) = answered(world.call_events(0));
    assert_eq!(data.len(), 40_000);
    assert!(matches!(data, Data::Message(_)));
}

#[test]
fn peers_that_break_a_rule_are_cut_off() {
    let place = |offset| RemotePlace { region: RemoteRegion(1), offset, len: 64 };
    let outside = place(1 << 40);
    let number = 1 << 32;
    // Messages of the peer to a rack whose request `1 << 32 | 0` expects up to 100 B.
    let faults: [(&str, Vec<Vec<u8>>); 9] = [
        ("garbage", vec![b"hello".to_vec()]),
        (
            "a second answer",
            vec![message::lies(number, &place(0), b""), message::answer(number, b"", 0)],
        ),
        ("data outside", vec![message::lies(number, &outside, b"")]),
        ("a withdrawal", vec![message::withdrawn(number)]),
        ("a landing nowhere", vec![message::landed(number, 64, b"")]),
        ("a number twice", vec![message::ask(5, 0, None, b""), message::ask(5, 0, None, b"")]),
        ("a release of nothing", vec![message::ask(5, 0, None, b""), message::release(5)]),
        ("a place outside", vec![message::probe(5, 0, Some(&outside), 64)]),
        ("too many requests", (0..=4096).map(|n| message::ask(n, 0, None, b"")).collect()),
    ];
    for (what, messages) in faults {
        let mut world = World::new(ARENA, 16);
        let endpoint = world.endpoint(1);
        let call =
            Call { wants: Wants::UpTo(100), ..Call::new(b"", world.deadline(), Overdue::GiveUp) };
        let call = world.sides[1].rrpc.call(endpoint, &call).unwrap();
        assert_eq!(call.number, number, "the first number");
        world.round(1);
        for message in messages {
            lock(&world.net).inject(1, message);
        }
        world.round(1);
        world.round(1);
        lock(&world.net).end(1);
        world.round(1);
        assert_eq!(world.sides[1].rrpc.thresholds(endpoint), None, "{what}: it lives on");
        assert_eq!(world.sides[1].rrpc.free_bytes(), ARENA, "{what}");
    }
}

#[test]
fn answers_of_the_past_are_dropped() {
    let mut world = World::new(ARENA, 16);
    let endpoint = world.endpoint(0);
    for bytes in [
        message::answer(77, b"", 4),
        message::landed(1 << 40, 4, b""),
        message::withdrawn(3),
        message::refused(0, 1),
        message::release(9),
        message::cancel(9),
    ] {
        lock(&world.net).inject(0, bytes);
    }
    world.run();
    assert_eq!(world.call_events(0), []);
    assert!(world.sides[0].rrpc.thresholds(endpoint).is_some());
    assert_eq!(world.sides[0].rrpc.metrics().late, 3);
}

#[test]
fn what_can_not_be_sent_is_refused_before_it_is() {
    let mut world = World::new(ARENA, 16);
    let deadline = world.deadline();
    let call = Call::new(&[0; 65_536], deadline, Overdue::GiveUp);
    assert!(matches!(world.call_with(&call), Err(CallError::TooLong { .. })));
    let call = Call::new(b"", deadline, Overdue::GiveUp);
    let large = Call { wants: Wants::Exactly(70_000), mode: Some(Mode::Pure), ..call };
    assert!(matches!(world.call_with(&large), Err(CallError::TooLong { .. })));
    let small = Call { wants: Wants::UpTo(100), into: Some(World::in_own(0, 99)), ..call };
    assert!(matches!(world.call_with(&small), Err(CallError::TooLong { .. })));
    for wants in [Wants::Exactly(500_000), Wants::UpTo(500_000)] {
        let max = usize::try_from(ARENA / 4 * 3).unwrap();
        let huge = Call { wants, ..call };
        assert_eq!(world.call_with(&huge), Err(CallError::TooLong { len: 500_000, max }));
    }
    for _ in 0..4096 {
        world.call_with(&call).unwrap();
    }
    assert_eq!(world.call_with(&call), Err(CallError::TooManyOpen { open: 4096 }));
    lock(&world.net).cut();
    lock(&world.net).end(0);
    world.round(0);
    let gone = rackpool_fabric::EndpointId(1);
    assert_eq!(world.sides[0].rrpc.call(gone, &call), Err(CallError::NotConnected));
}

#[test]
fn the_side_that_connects_measures_the_modes() {
    let mut world = World::apart(ARENA, 16);
    lock(&world.net).connect(true);
    world.run();
    let calibrated = |call_events: &CallEvent| matches!(call_events, CallEvent::Calibrated { .. });
    assert_eq!(world.call_events(0).iter().filter(|n| calibrated(n)).count(), 1);
    assert_eq!(world.call_events(1), [], "whoever is measured is not asked");
    assert!(world.sides[0].rrpc.metrics().pure == 0, "probes are not counted");
}

/// A host that was busy while it connected must not keep unmeasured thresholds.
#[test]
fn modes_are_measured_again_where_probes_had_no_answer_in_time() {
    let mut world = World::apart(ARENA, 16);
    let calibrated = |call_events: &CallEvent| matches!(call_events, CallEvent::Calibrated { .. });
    lock(&world.net).connect(true);
    world.round(0);
    // Nothing on the wire moves in this time.
    for seconds in [1, 4, 2, 7] {
        assert!(world.sides[0].rrpc.deadline().is_some());
        world.pass(Duration::from_secs(seconds));
        assert!(!world.call_events(0).iter().any(calibrated));
    }
    world.run();
    assert!(
        !world.call_events(0).iter().any(calibrated),
        "8 s after the second time it did not begin"
    );
    world.pass(Duration::from_secs(1));
    world.run();
    assert_eq!(world.call_events(0).iter().filter(|n| calibrated(n)).count(), 1);
    assert_eq!(world.sides[0].rrpc.deadline(), None);
}

/// 100 ms for a request and its answer: all probes, sent once each, take longer than the first
/// calibration may.
#[test]
fn modes_are_measured_over_a_slow_network() {
    let mut world = World::apart(ARENA, 16);
    lock(&world.net).connect(true);
    world.round(0);
    while world.sides[0].rrpc.deadline().is_some() {
        world.pass(Duration::from_millis(50));
        for side in [0, 1] {
            while lock(&world.net).advance(side) {}
        }
    }
    let calibrated = |call_events: &CallEvent| matches!(call_events, CallEvent::Calibrated { .. });
    assert_eq!(world.call_events(0).iter().filter(|n| calibrated(n)).count(), 1);
}

#[test]
fn modes_are_not_measured_for_ever() {
    let mut world = World::apart(ARENA, 16);
    lock(&world.net).connect(true);
    world.round(0);
    let mut passed = 0;
    while world.sides[0].rrpc.deadline().is_some() {
        world.pass(Duration::from_secs(1));
        passed += 1;
        assert!(passed < 600, "it is still measured");
    }
    assert!(passed > 252, "4 + 8 + ... + 128 s of pauses, but {passed} s");
}

#[test]
fn what_is_to_be_measured_again_ends_with_its_endpoint() {
    let mut world = World::apart(ARENA, 16);
    lock(&world.net).connect(true);
    world.round(0);
    world.pass(Duration::from_secs(1));
    assert!(world.sides[0].rrpc.deadline().is_some());
    lock(&world.net).cut();
    lock(&world.net).end(0);
    world.round(0);
    assert_eq!(world.sides[0].rrpc.deadline(), None);
}

#[test]
fn everything_gets_through_when_there_is_often_no_room() {
    let mut world = World::new(ARENA, 2);
    for _ in 0..20 {
        world.call(Wants::UpTo(2000)).unwrap();
    }
    let mut answers = 0;
    for round in 0..400_u16 {
        for side in [0, 1] {
            lock(&world.net).ends[side].full = (round % 3) as u8;
            world.round(side);
            lock(&world.net).advance(side);
        }
        for ask in world.asked() {
            world.answer_from_frames(ask, 9, 2000);
        }
        for call_events in world.call_events(0) {
            let (_, data) = answered(vec![call_events]);
            assert_eq!(bytes_of(&world, &data), frames_bytes(1)[9..2009]);
            let Data::Arena { block, .. } = data else { panic!("{data:?}") };
            world.sides[0].rrpc.give_back(block);
            answers += 1;
        }
    }
    assert_eq!(answers, 20);
    assert_eq!(world.sides[0].rrpc.metrics().then_one_sided, 20);
    assert_eq!(world.sides[0].rrpc.free_bytes(), ARENA);
}
