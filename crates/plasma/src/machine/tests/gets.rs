//! Gets that wait, and objects that are brought back.

use std::collections::BTreeMap;

use super::*;

#[test]
fn a_get_waits_for_the_seals_of_all_its_objects() {
    let mut world = World::new();
    let ids = vec![id(1), id(2), id(1)];
    assert_eq!(world.request(TWO, Request::Get { ids, timeout_ms: -1 }), Progress::Done);
    assert_eq!(world.replies(), []);
    assert!(world.machine.is_waiting(TWO));
    world.put(ONE, 1, 10);
    assert!(world.machine.is_waiting(TWO));
    world.create(ONE, 2, 20).unwrap();
    world.request(ONE, Request::Seal { id: id(2), digest: [0; 8] });
    let replies = world.replies();
    let [(TWO, Reply::Get { objects, .. }), (ONE, Reply::Seal { .. })] = &replies[..] else {
        panic!("{replies:?} is not the get's reply and the seal's")
    };
    let data: Vec<_> = objects.iter().map(|(_, place)| place.map(|p| p.size.data)).collect();
    assert_eq!(data, [Some(10), Some(20), Some(10)]);
    // The client uses both.
    assert_eq!(world.evict(100), 0);
}

#[test]
fn a_get_ends_at_its_timeout_with_what_there_is() {
    let mut world = World::new();
    world.put(ONE, 1, 10);
    world.request(TWO, Request::Get { ids: vec![id(2), id(1)], timeout_ms: 10 });
    assert_eq!(world.replies(), []);
    let wakes = world.machine.wakes_ms().unwrap();
    assert!(wakes <= 10, "{wakes}");
    world.now.ms = 9;
    world.machine.advance(world.now);
    assert_eq!(world.replies(), []);
    world.now.ms = 10;
    world.machine.advance(world.now);
    let replies = world.replies();
    let [(TWO, Reply::Get { objects, .. })] = &replies[..] else {
        panic!("{replies:?} is not the get's reply")
    };
    assert_eq!(objects[0], (id(2), None));
    assert!(objects[1].1.is_some());
    assert_eq!(world.machine.wakes_ms(), None);
}

#[test]
fn a_get_without_time_waits_for_the_pool_s_answer_but_not_for_ever() {
    let mut world = World::new();
    world.memory.seal_elsewhere(id(7), Size { data: 5, metadata: 0 });
    assert!(world.get(ONE, &[7])[0].is_some());
    // A guest is not evicted, and does not count.
    world.release(ONE, 7);
    assert_eq!(world.evict(1), 0);
    assert!(world.memory.pinned.is_empty());

    world.request(ONE, Request::Get { ids: vec![id(8)], timeout_ms: 0 });
    assert_eq!(world.effects(), [Effect::LookUp { ids: vec![id(8)] }]);
    world.now.ms = session::LOOK_GRACE_MS;
    world.machine.advance(world.now);
    assert_eq!(world.effects().len(), 1, "a reply");
    // The answer comes too late, and pins nothing.
    world.memory.seal_elsewhere(id(8), Size { data: 5, metadata: 0 });
    world.look_up(&id(8));
    assert!(world.memory.pinned.is_empty() && world.effects().is_empty());
}

#[test]
fn a_waiting_get_finds_what_another_program_seals() {
    let mut world = World::new();
    world.request(ONE, Request::Get { ids: vec![id(7)], timeout_ms: -1 });
    assert_eq!(world.replies(), []);
    world.memory.seal_elsewhere(id(7), Size { data: 5, metadata: 0 });
    let mut looks = 0;
    while world.machine.is_waiting(ONE) {
        world.now.ms = world.machine.wakes_ms().unwrap();
        world.machine.advance(world.now);
        looks += 1;
        if world.replies().len() == 1 {
            break;
        }
    }
    assert_eq!(looks, 1);
}

#[test]
fn a_demoted_object_comes_back_with_a_get() {
    let mut world = World::new();
    world.memory.demoted = Some(BTreeMap::new());
    let object = NewObject { id: id(1), data: b"data", metadata: b"meta", digest: [1; 8] };
    let reply = world.ask(ONE, Request::CreateAndSeal { object, evicts: true });
    assert_eq!(reply, Reply::CreateAndSeal { error: PlasmaError::Ok });
    assert_eq!(world.evict(1), 8);
    assert!(world.memory.sealed.is_empty());
    assert_eq!(world.create(ONE, 1, 10), Err(PlasmaError::ObjectExists));
    let place = world.get(TWO, &[1])[0].unwrap();
    assert_eq!(world.memory.contents(place), b"datameta");
    world.release(TWO, 1);
    assert_eq!((world.evict(1), world.delete(1)), (8, PlasmaError::Ok));
    assert_eq!(world.get(TWO, &[1]), [None]);
}
