//! Random steps of two clients.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

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
