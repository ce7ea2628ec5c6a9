//! The machine over a memory in memory.

mod gets;
mod random_steps;

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
