use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::protocol::NewObject;
use crate::protocol::reply::Place;
use crate::testing::TestMemory;

const FILE: usize = 4096;
const CAPACITY: u64 = 1000;
const ONE: ClientId = ClientId(1);
const TWO: ClientId = ClientId(2);

const fn id(byte: u8) -> ObjectId {
    ObjectId([byte; ObjectId::BYTES])
}

/// A service with two clients.
struct World {
    machine: Machine,
    memory: TestMemory,
    now: Now,
}

impl World {
    fn new() -> Self {
        Self::over(TestMemory::new(FILE))
    }

    fn over(mut memory: TestMemory) -> Self {
        let mut machine = Machine::new(CAPACITY, &mut memory);
        machine.connect(ONE);
        machine.connect(TWO);
        Self { machine, memory, now: Now { ms: 0, unix_s: 1_000_000 } }
    }

    fn request(&mut self, client: ClientId, request: Request<'_>) -> Progress {
        self.machine.request(client, request, self.now, &mut self.memory)
    }

    /// Executes a request that is replied to at once.
    #[track_caller]
    fn ask(&mut self, client: ClientId, request: Request<'_>) -> Reply {
        assert_eq!(self.request(client, request), Progress::Done);
        let mut replies = self.replies();
        assert_eq!(replies.len(), 1);
        replies.remove(0).1
    }

    /// The effects since the last call.
    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.machine.next_effect()).collect()
    }

    /// The replies since the last call; look-ups are answered.
    fn replies(&mut self) -> Vec<(ClientId, Reply)> {
        let mut replies = Vec::new();
        loop {
            let effects = self.effects();
            if effects.is_empty() {
                return replies;
            }
            for effect in effects {
                match effect {
                    Effect::Reply { client, reply, .. } => replies.push((client, reply)),
                    Effect::LookUp { ids } => ids.iter().for_each(|id| self.look_up(id)),
                    Effect::Notify { .. } => {}
                }
            }
        }
    }

    fn look_up(&mut self, id: &ObjectId) {
        let demoted = self.memory.demoted.as_ref().and_then(|all| all.get(id));
        let found = match demoted {
            _ if self.memory.sealed.contains_key(id) => LookedUp::Here,
            Some((size, _)) => LookedUp::Demoted(*size),
            None => LookedUp::Absent,
        };
        self.machine.looked_up(id, found, self.now, &mut self.memory);
    }

    #[track_caller]
    fn create(&mut self, client: ClientId, byte: u8, data: u64) -> Result<Place, PlasmaError> {
        let request = Request::Create { id: id(byte), evicts: true, data, metadata: 0, device: 0 };
        match self.ask(client, request) {
            Reply::Create { place, .. } => place,
            reply => panic!("{reply:?} replies to no create"),
        }
    }

    #[track_caller]
    fn seal(&mut self, client: ClientId, byte: u8) -> PlasmaError {
        match self.ask(client, Request::Seal { id: id(byte), digest: [byte; 8] }) {
            Reply::Seal { error, .. } => error,
            reply => panic!("{reply:?} replies to no seal"),
        }
    }

    fn release(&mut self, client: ClientId, byte: u8) {
        assert_eq!(self.request(client, Request::Release { id: id(byte) }), Progress::Done);
    }

    /// Creates, seals and releases an object.
    #[track_caller]
    fn put(&mut self, client: ClientId, byte: u8, data: u64) {
        self.create(client, byte, data).unwrap();
        assert_eq!(self.seal(client, byte), PlasmaError::Ok);
        self.release(client, byte);
    }

    #[track_caller]
    fn get(&mut self, client: ClientId, bytes: &[u8]) -> Vec<Option<Place>> {
        let ids = bytes.iter().map(|byte| id(*byte)).collect();
        match self.ask(client, Request::Get { ids, timeout_ms: 0 }) {
            Reply::Get { objects, .. } => objects.into_iter().map(|(_, place)| place).collect(),
            reply => panic!("{reply:?} replies to no get"),
        }
    }

    #[track_caller]
    fn evict(&mut self, bytes: u64) -> u64 {
        match self.ask(ONE, Request::Evict { bytes }) {
            Reply::Evict { bytes } => bytes,
            reply => panic!("{reply:?} replies to no evict"),
        }
    }

    #[track_caller]
    fn delete(&mut self, byte: u8) -> PlasmaError {
        match self.ask(ONE, Request::Delete { ids: vec![id(byte)] }) {
            Reply::Delete { errors } => errors[0].1,
            reply => panic!("{reply:?} replies to no delete"),
        }
    }

    fn disconnect(&mut self, client: ClientId) {
        self.machine.disconnect(client, &mut self.memory);
    }

    /// The ids and data sizes that a subscriber is told, -1 for deletions.
    fn told(&mut self) -> Vec<(ObjectId, i64)> {
        let told = self.effects().into_iter().filter_map(|effect| match effect {
            Effect::Notify { client: TWO, info } => Some((info.id, info.data)),
            _ => None,
        });
        told.collect()
    }
}

#[test]
fn the_descriptor_is_sent_once_to_each_client() {
    let mut world = World::new();
    let sends = |world: &mut World, client, byte| {
        let request =
            Request::Create { id: id(byte), evicts: true, data: 1, metadata: 0, device: 0 };
        world.request(client, request);
        match world.effects()[..] {
            [Effect::Reply { sends_descriptor, .. }] => sends_descriptor,
            ref effects => panic!("{effects:?} is not one reply"),
        }
    };
    assert!(sends(&mut world, ONE, 1));
    assert!(!sends(&mut world, ONE, 2));
    // It fails, so there is nothing to map.
    assert!(!sends(&mut world, TWO, 1));
    assert!(sends(&mut world, TWO, 3));
}

#[test]
fn an_object_is_absent_until_it_is_sealed() {
    let mut world = World::new();
    let place = world.create(ONE, 1, 10).unwrap();
    assert_eq!(world.get(ONE, &[1]), [None]);
    assert_eq!(world.get(TWO, &[1]), [None]);
    assert_eq!(world.seal(TWO, 1), PlasmaError::ObjectNonexistent);
    assert_eq!(world.seal(ONE, 1), PlasmaError::Ok);
    assert_eq!(world.seal(ONE, 1), PlasmaError::ObjectNonexistent);
    assert_eq!(world.get(TWO, &[1, 2, 1]), [Some(place), None, Some(place)]);
    assert_eq!(world.create(TWO, 1, 10), Err(PlasmaError::ObjectExists));
}

#[test]
fn objects_are_evicted_in_the_order_of_their_last_release() {
    let mut world = World::new();
    for byte in [1, 2, 3] {
        world.put(ONE, byte, u64::from(byte) + 10);
    }
    world.get(TWO, &[1]);
    world.release(TWO, 1);
    assert_eq!(world.ask(ONE, Request::RefreshLru { ids: vec![id(2)] }), Reply::RefreshLru);
    assert_eq!([world.evict(1), world.evict(1), world.evict(1), world.evict(1)], [13, 11, 12, 0]);
}

#[test]
fn making_room_evicts_a_fifth_of_the_capacity_and_nothing_that_is_used() {
    let mut world = World::new();
    for byte in 0..10 {
        world.put(ONE, byte, 100);
    }
    world.get(TWO, &[0]);
    world.create(ONE, 10, 1).unwrap();
    // The first one is used; a fifth of the capacity are the next two.
    let left: Vec<_> =
        (0..10).filter(|byte| world.memory.sealed.contains_key(&id(*byte))).collect();
    assert_eq!(left, [0, 3, 4, 5, 6, 7, 8, 9]);
    // Everything that can be evicted does not suffice, but is evicted.
    assert_eq!(world.create(ONE, 11, 900), Err(PlasmaError::OutOfMemory));
    assert_eq!(world.memory.sealed.len(), 1);
    assert_eq!(world.create(ONE, 11, CAPACITY + 1), Err(PlasmaError::OutOfMemory));
    world.create(ONE, 11, 899).unwrap();
}

#[test]
fn a_create_that_may_not_evict_evicts_nothing() {
    let mut world = World::new();
    world.put(ONE, 1, 600);
    let request = Request::Create { id: id(2), evicts: false, data: 600, metadata: 0, device: 0 };
    let reply = world.ask(ONE, request);
    assert!(matches!(reply, Reply::Create { place: Err(PlasmaError::OutOfMemory), .. }));
    assert_eq!(world.memory.sealed.len(), 1);
}

#[test]
fn an_eviction_that_is_refused_ends_the_eviction() {
    let mut world = World::new();
    world.put(ONE, 1, 10);
    world.put(ONE, 2, 20);
    world.memory.stuck.insert(id(1));
    assert_eq!(world.evict(30), 0);
    // The next eviction begins with another one.
    assert_eq!(world.evict(30), 20);
    assert!(world.memory.sealed.contains_key(&id(1)));
}

#[test]
fn delete_of_an_object_in_use_happens_with_its_last_release() {
    let mut world = World::new();
    world.create(ONE, 1, 10).unwrap();
    assert_eq!(world.delete(1), PlasmaError::ObjectNotSealed);
    world.seal(ONE, 1);
    world.get(TWO, &[1]);
    world.release(ONE, 1);
    assert!(world.memory.sealed.contains_key(&id(1)));
    world.disconnect(TWO);
    assert!(!world.memory.sealed.contains_key(&id(1)));
    world.put(ONE, 2, 10);
    assert_eq!(world.delete(2), PlasmaError::Ok);
    assert_eq!(world.delete(2), PlasmaError::ObjectNonexistent);
}

#[test]
fn only_the_creator_aborts() {
    let mut world = World::new();
    world.create(ONE, 1, 10).unwrap();
    let violation = world.request(TWO, Request::Abort { id: id(1) });
    assert!(matches!(violation, Progress::Violation(_)));
    assert_eq!(world.ask(ONE, Request::Abort { id: id(1) }), Reply::Abort { id: id(1) });
    assert!(world.memory.unsealed.is_empty());
    world.put(ONE, 2, 10);
    assert!(matches!(world.request(ONE, Request::Abort { id: id(2) }), Progress::Violation(_)));
}

#[test]
fn a_disconnect_frees_what_the_client_has_not_sealed_and_drops_its_references() {
    let mut world = World::new();
    world.create(ONE, 1, 600).unwrap();
    world.put(TWO, 2, 300);
    world.get(ONE, &[2]);
    assert_eq!(world.evict(1), 0);
    world.disconnect(ONE);
    assert!(world.memory.unsealed.is_empty());
    assert!(world.memory.pinned.is_empty());
    world.machine.connect(ONE);
    assert_eq!(world.evict(1), 300);
    world.create(TWO, 1, CAPACITY).unwrap();
}

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
fn a_subscriber_is_told_what_is_here_then_each_seal_and_deletion() {
    let mut world = World::new();
    world.put(ONE, 1, 10);
    world.create(ONE, 2, 20).unwrap();
    assert_eq!(world.request(TWO, Request::Subscribe), Progress::NeedsDescriptor);
    world.machine.subscribe(TWO, &mut world.memory);
    assert_eq!(world.told(), [(id(1), 10)]);
    world.request(ONE, Request::Seal { id: id(2), digest: [0; 8] });
    world.request(ONE, Request::Evict { bytes: 1 });
    assert_eq!(world.told(), [(id(2), 20), (id(1), -1)]);
    world.machine.unsubscribe(TWO);
    world.put(ONE, 3, 10);
    assert_eq!(world.told(), []);
}

#[test]
fn a_successor_takes_over_the_objects_in_the_order_of_their_use() {
    let mut world = World::new();
    for byte in [1, 2, 3] {
        world.put(ONE, byte, 100 + u64::from(byte));
    }
    world.get(TWO, &[1]);
    world.memory.seal_elsewhere(id(9), Size { data: 7, metadata: 0 });
    // The killed service's pins end, and its unsealed objects are freed.
    let mut memory = world.memory;
    memory.pinned.clear();
    memory.unsealed.clear();
    let mut world = World::over(memory);
    assert_eq!(world.create(ONE, 2, 10), Err(PlasmaError::ObjectExists));
    world.create(ONE, 4, CAPACITY - 306).unwrap();
    assert_eq!(world.memory.sealed.len(), 4, "the three of the predecessor and another program's");
    assert_eq!([world.evict(1), world.evict(1), world.evict(1)], [102, 103, 101]);
    assert_eq!(world.evict(1), 0);
}

#[test]
fn an_object_that_another_program_deleted_is_absent_and_its_room_free() {
    let mut world = World::new();
    world.put(ONE, 1, CAPACITY);
    world.memory.sealed.remove(&id(1));
    assert_eq!(world.get(ONE, &[1]), [None]);
    world.create(ONE, 2, CAPACITY).unwrap();
    assert!(world.memory.pinned.is_empty());
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

#[test]
fn a_batch_goes_on_where_it_waited_for_memory() {
    let mut world = World::over(TestMemory::new(100));
    let mut objects = Vec::new();
    for byte in 1..=3 {
        objects.push(NewObject { id: id(byte), data: &[7; 40], metadata: b"", digest: [0; 8] });
    }
    let batch = Request::CreateAndSealBatch { objects, evicts: false };
    let Progress::Again { at_ms } = world.request(ONE, batch.clone()) else {
        panic!("there is room for three")
    };
    assert_eq!(world.memory.sealed.len(), 2);
    world.now.ms = at_ms;
    world.memory.sealed.remove(&id(1));
    let reply = world.ask(ONE, batch.clone());
    assert_eq!(reply, Reply::CreateAndSealBatch { error: PlasmaError::Ok });
    // A batch of its own.
    let reply = world.ask(ONE, batch);
    assert_eq!(reply, Reply::CreateAndSealBatch { error: PlasmaError::ObjectExists });
}

#[test]
fn a_create_waits_a_second_for_freed_memory() {
    let mut world = World::over(TestMemory::new(100));
    world.create(ONE, 1, 60).unwrap();
    let request = Request::Create { id: id(2), evicts: true, data: 60, metadata: 0, device: 0 };
    let mut attempts = 0;
    while let Progress::Again { at_ms } = world.request(TWO, request.clone()) {
        assert!(at_ms > world.now.ms);
        world.now.ms = at_ms;
        attempts += 1;
    }
    assert_eq!((world.now.ms, attempts), (1000, 500));
    let replies = world.replies();
    assert!(matches!(
        replies[..],
        [(TWO, Reply::Create { place: Err(PlasmaError::OutOfMemory), .. })]
    ));
}

#[test]
fn lists_have_sealed_and_unsealed_objects() {
    let mut world = World::new();
    world.put(ONE, 1, 10);
    world.now.unix_s += 5;
    world.create(ONE, 2, 20).unwrap();
    world.get(TWO, &[1]);
    let Reply::List { objects } = world.ask(ONE, Request::List) else { panic!("no list") };
    let known: Vec<_> = objects.iter().map(|o| (o.id, o.data, o.users, o.construction_s)).collect();
    assert_eq!(known, [(id(1), 10, 1, 0), (id(2), 20, 1, -1)]);
    world.now.unix_s += 3;
    world.seal(ONE, 2);
    let Reply::List { objects } = world.ask(ONE, Request::List) else { panic!("no list") };
    assert_eq!((objects[1].construction_s, objects[1].created_s), (3, 1_000_005));
}

/// A step of a client.
#[derive(Clone, Debug)]
enum Step {
    Create(u8, u64),
    Put(u8, u8),
    Seal(u8),
    Abort(u8),
    Get(Vec<u8>, i64),
    Release(u8),
    Delete(u8),
    Evict(u64),
    Reconnect,
    Wait(u64),
    Elsewhere(u8),
    DeletedElsewhere(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let byte = 0_u8..6;
    prop_oneof![
        (byte.clone(), 0_u64..600).prop_map(|(byte, data)| Step::Create(byte, data)),
        (byte.clone(), any::<u8>()).prop_map(|(byte, bytes)| Step::Put(byte, bytes)),
        byte.clone().prop_map(Step::Seal),
        byte.clone().prop_map(Step::Abort),
        (prop::collection::vec(byte.clone(), 0..4), -1_i64..20).prop_map(|(b, t)| Step::Get(b, t)),
        byte.clone().prop_map(Step::Release),
        byte.clone().prop_map(Step::Delete),
        (0_u64..500).prop_map(Step::Evict),
        Just(Step::Reconnect),
        (0_u64..1200).prop_map(Step::Wait),
        byte.clone().prop_map(Step::Elsewhere),
        byte.prop_map(Step::DeletedElsewhere),
    ]
}

impl World {
    fn step(&mut self, client: ClientId, step: Step) {
        let data = [7; 256];
        let request = match step {
            Step::Create(byte, data) => {
                Request::Create { id: id(byte), evicts: true, data, metadata: 1, device: 0 }
            }
            Step::Put(byte, bytes) => {
                let data = &data[..usize::from(bytes)];
                let object = NewObject { id: id(byte), data, metadata: b"m", digest: [0; 8] };
                Request::CreateAndSeal { object, evicts: true }
            }
            Step::Seal(byte) => Request::Seal { id: id(byte), digest: [0; 8] },
            Step::Abort(byte) => Request::Abort { id: id(byte) },
            Step::Get(bytes, timeout_ms) => {
                Request::Get { ids: bytes.into_iter().map(id).collect(), timeout_ms }
            }
            Step::Release(byte) => Request::Release { id: id(byte) },
            Step::Delete(byte) => Request::Delete { ids: vec![id(byte)] },
            Step::Evict(bytes) => Request::Evict { bytes },
            Step::Reconnect => Request::Disconnect,
            Step::Wait(ms) => {
                self.now.ms += ms;
                self.machine.advance(self.now);
                return;
            }
            Step::Elsewhere(byte) => {
                let is_free = !self.memory.unsealed.contains_key(&id(byte))
                    && !self.memory.contains(&id(byte))
                    && !self.memory.pinned.contains_key(&id(byte));
                if is_free && self.memory.bytes.len() > 2000 {
                    self.memory.seal_elsewhere(id(byte), Size { data: 0, metadata: 0 });
                }
                return;
            }
            Step::DeletedElsewhere(byte) => {
                self.memory.delete(&id(byte));
                return;
            }
        };
        if self.machine.is_waiting(client) {
            return;
        }
        loop {
            match self.request(client, request.clone()) {
                Progress::Again { at_ms } => self.now.ms = at_ms,
                Progress::Violation(_) | Progress::Disconnect => {
                    self.disconnect(client);
                    self.machine.connect(client);
                    return;
                }
                Progress::Done | Progress::NeedsDescriptor => return,
            }
        }
    }
}

proptest! {
    /// Whatever clients and other programs do: each request is replied to once, what a client uses
    /// is pinned, and nothing stays of clients that have gone.
    #[test]
    fn nothing_is_left_of_clients_that_have_gone(
        steps in prop::collection::vec((any::<bool>(), step()), 0..60),
        demotes in any::<bool>(),
    ) {
        let mut world = World::new();
        world.memory.demoted = demotes.then(BTreeMap::new);
        for (is_one, step) in steps {
            world.step(if is_one { ONE } else { TWO }, step);
            world.replies();
            let used: BTreeSet<_> = world.machine.clients.values().flat_map(|s| &s.uses).collect();
            for id in used {
                let object = world.machine.table.get(id).expect("an object that is used");
                let users = world.machine.clients.values().filter(|s| s.uses.contains(id)).count();
                assert_eq!(object.users as usize, users);
                let holds =
                    if object.is_sealed() { &world.memory.pinned } else { &world.memory.unsealed };
                assert_eq!(holds[id].place, object.place);
            }
        }
        world.disconnect(ONE);
        world.disconnect(TWO);
        world.replies();
        assert!(world.memory.unsealed.is_empty(), "{:?}", world.memory.unsealed);
        assert!(world.memory.pinned.is_empty(), "{:?}", world.memory.pinned);
        assert!(world.machine.waiting.is_empty() && world.machine.looking.is_empty());
        let text = world.machine.table.debug_text(0);
        world.machine.connect(ONE);
        world.evict(u64::MAX);
        assert!(world.machine.table.debug_text(0).contains("\nused bytes: 0\nobjects: 0\n"), "{text}");
    }
}
