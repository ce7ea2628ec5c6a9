//! Messages of clients that speak Plasma's protocol.

use std::collections::BTreeMap;

use rackpool_plasma::machine::{ClientId, Effect, LookedUp, Machine, Now, Progress};
use rackpool_plasma::protocol::{Frame, FrameBuffer, FrameLimits, ObjectId, Reply, Request};
use rackpool_plasma::testing::TestMemory;

const FILE: usize = 4096;
const CAPACITY: u64 = 2000;
const LIMITS: FrameLimits = FrameLimits { bytes: 1 << 16, data_bytes: 1 << 16 };

/// The service and its two clients.
struct World {
    machine: Machine,
    memory: TestMemory,
    now: Now,
}

/// A byte before each frame says who sends it, and what happens before. A request is written and
/// read again as it was, and keeps no more than has arrived; so is a reply. Nothing stays of
/// clients that have gone.
pub fn plasma(bytes: &[u8]) {
    let mut memory = TestMemory::new(FILE);
    memory.demoted = Some(BTreeMap::new());
    let machine = Machine::new(CAPACITY, &mut memory);
    let mut world = World { machine, memory, now: Now { ms: 0, unix_s: 1 } };
    let clients = [ClientId(0), ClientId(1)];
    clients.iter().for_each(|client| world.machine.connect(*client));
    let mut rest = bytes;
    while let Some((step, after)) = rest.split_first() {
        let client = clients[usize::from(step & 1)];
        world.now.ms += u64::from(step >> 2 & 0x1f) * 8;
        world.machine.advance(world.now);
        world.execute_effects();
        if step & 2 == 2 {
            world.reconnect(client);
        }
        let mut input = FrameBuffer::default();
        input.push(after);
        let Ok(Some(frame)) = input.first(&LIMITS) else { break };
        rest = &after[after.len() - (input.unconsumed().len() - 24 - frame.body.len())..];
        let Ok(request) = read(frame) else {
            world.reconnect(client);
            continue;
        };
        if !world.machine.is_waiting(client) {
            world.request(client, &request);
        }
    }
    for client in clients {
        world.machine.disconnect(client, &mut world.memory);
    }
    world.execute_effects();
    assert!(world.memory.unsealed.is_empty() && world.memory.pinned.is_empty());
}

fn read(frame: Frame<'_>) -> Result<Request<'_>, rackpool_plasma::protocol::Malformed> {
    let request = Request::read(frame)?;
    let ids = match &request {
        Request::Get { ids, .. } | Request::Delete { ids } | Request::RefreshLru { ids } => {
            ids.len()
        }
        Request::CreateAndSealBatch { objects, .. } => objects.len(),
        _ => 0,
    };
    assert!(ids * ObjectId::BYTES <= frame.body.len());
    let written = request.encode().unwrap();
    let mut again = FrameBuffer::default();
    again.push(&written);
    let limits = FrameLimits { bytes: u64::MAX, data_bytes: u64::MAX };
    let frame = again.first(&limits).unwrap().unwrap();
    assert_eq!(Request::read(frame).as_ref(), Ok(&request));
    Ok(request)
}

impl World {
    fn reconnect(&mut self, client: ClientId) {
        self.machine.disconnect(client, &mut self.memory);
        self.machine.connect(client);
        self.execute_effects();
    }

    fn request(&mut self, client: ClientId, request: &Request<'_>) {
        loop {
            match self.machine.request(client, request.clone(), self.now, &mut self.memory) {
                Progress::Again { at_ms } => {
                    assert!(at_ms > self.now.ms);
                    // Half of its timeout at once: a second are 500 attempts.
                    self.now.ms = at_ms.max(self.now.ms + 500);
                }
                Progress::Done => break,
                Progress::NeedsDescriptor => {
                    self.machine.subscribe(client, &mut self.memory);
                    break;
                }
                Progress::Violation(_) | Progress::Disconnect => {
                    self.reconnect(client);
                    break;
                }
            }
        }
        self.execute_effects();
    }

    fn execute_effects(&mut self) {
        while let Some(effect) = self.machine.next_effect() {
            match effect {
                Effect::Reply { reply, .. } => check(&reply),
                Effect::Notify { info, .. } => assert!(info.notification().len() > 8),
                Effect::LookUp { ids } => ids.iter().for_each(|id| self.look_up(id)),
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
        assert!(self.memory.pinned.keys().all(|id| self.memory.sealed.contains_key(id)));
    }
}

/// A reply that is written is read again as it was.
fn check(reply: &Reply) {
    let mut written = FrameBuffer::default();
    written.push(&reply.encode().unwrap());
    let limits = FrameLimits { bytes: u64::MAX, data_bytes: u64::MAX };
    let again = Reply::read(written.first(&limits).unwrap().unwrap()).unwrap();
    match (&again, reply) {
        // Without a place there is no file.
        (Reply::Get { objects, .. }, Reply::Get { objects: sent, .. }) => assert_eq!(objects, sent),
        _ => assert_eq!(again, *reply),
    }
}
