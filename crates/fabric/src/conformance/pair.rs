//! Two connected racks in one thread, and shorthands for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_model::RackId;

use super::{Factory, Hardware, Node};
use crate::{
    EndpointId, Event, Fabric, FabricError, MemoryRegion, Operation, RegionId, RemoteRegion,
    Transfer, WorkRequest,
};

/// The time that a test waits for an expected event: far more than a busy host needs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Bytes that each rack of a pair exports.
pub const FRAMES_LEN: u64 = 4 << 20;

/// One rack, its end of the connection, and the events not yet consumed.
pub struct End {
    /// The rack.
    pub node: Node,
    /// Its endpoint to the other rack.
    pub endpoint: EndpointId,
    /// Events that were polled and not yet consumed.
    pub events: Vec<Event>,
}

/// Two racks, the first connected to the second.
pub struct Pair {
    /// Rack 1, which connected.
    pub a: End,
    /// Rack 2, which accepted.
    pub b: End,
}

impl End {
    /// A rack without a connection.
    pub fn alone(node: Node) -> Self {
        Self { node, endpoint: EndpointId(u64::MAX), events: Vec::new() }
    }

    /// The fabric.
    pub fn fabric(&mut self) -> &mut dyn Fabric {
        &mut *self.node.fabric
    }

    /// Polls once.
    pub fn poll(&mut self) {
        self.node.fabric.poll(&mut self.events);
    }

    /// Polls until an event satisfies `fits`, and consumes it.
    pub fn wait(&mut self, what: &str, fits: impl Fn(&Event) -> bool) -> Event {
        let start = Instant::now();
        loop {
            self.poll();
            if let Some(at) = self.events.iter().position(&fits) {
                return self.events.remove(at);
            }
            assert!(start.elapsed() < TIMEOUT, "waited in vain for {what}: {:?}", self.events);
        }
    }

    /// Waits for the completion of a request.
    pub fn completed(&mut self, id: u64) -> Result<(), FabricError> {
        let fits =
            |event: &Event| matches!(event, Event::Completed { id: done, .. } if *done == id);
        match self.wait("a completion", fits) {
            Event::Completed { result, endpoint, .. } => {
                assert_eq!(endpoint, self.endpoint);
                result
            }
            other => panic!("{other:?} is no completion"),
        }
    }

    /// Registers memory with this content.
    pub fn register(&mut self, memory: &Arc<dyn MemoryRegion>) -> RegionId {
        self.fabric().register(Arc::clone(memory))
    }

    /// Posts one list and flushes it.
    pub fn post(&mut self, list: &[WorkRequest]) -> Result<(), FabricError> {
        let posted = self.post_only(list);
        self.flush();
        posted
    }

    /// Sends one message and flushes it.
    pub fn send(&mut self, message: &[u8]) -> Result<(), FabricError> {
        let sent = self.send_only(message);
        self.flush();
        sent
    }

    /// Posts one list without a flush.
    pub fn post_only(&mut self, list: &[WorkRequest]) -> Result<(), FabricError> {
        let endpoint = self.endpoint;
        self.fabric().post(endpoint, list)
    }

    /// Sends one message without a flush. Checks that a refused message is returned unchanged.
    pub fn send_only(&mut self, message: &[u8]) -> Result<(), FabricError> {
        let endpoint = self.endpoint;
        self.fabric().send(endpoint, message.to_vec()).map_err(|unsent| {
            assert!(unsent.message == message, "another message came back");
            unsent.error
        })
    }

    /// Flushes the posted operations and messages.
    pub fn flush(&mut self) {
        let endpoint = self.endpoint;
        self.fabric().flush(endpoint);
    }
}

impl Pair {
    /// Creates two connected racks.
    pub fn new(factory: &impl Factory, hardware: Hardware) -> Self {
        let mut a = End::alone(factory.start(RackId(1), FRAMES_LEN, hardware));
        let mut b = End::alone(factory.start(RackId(2), FRAMES_LEN, hardware));
        let address = b.fabric().address();
        a.endpoint = ok(a.fabric().connect(&address));
        let (mut connected, mut accepted) = (false, false);
        let start = Instant::now();
        while !(connected && accepted) {
            assert!(start.elapsed() < TIMEOUT, "the racks do not connect");
            a.poll();
            b.poll();
            for event in a.events.drain(..) {
                let Event::Connected { endpoint, peer, .. } = event else { panic!("{event:?}") };
                assert_eq!((endpoint, peer), (a.endpoint, RackId(2)));
                connected = true;
            }
            for event in b.events.drain(..) {
                let Event::Accepted { endpoint, peer, .. } = event else { panic!("{event:?}") };
                assert_eq!(peer, RackId(1));
                b.endpoint = endpoint;
                accepted = true;
            }
        }
        Self { a, b }
    }
}

/// Returns the value, or panics with the error.
#[track_caller]
pub fn ok<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("failed: {error:?}"),
    }
}

/// Memory with this content.
pub fn memory_of(factory: &impl Factory, bytes: &[u8]) -> Arc<dyn MemoryRegion> {
    let memory = factory.memory(bytes.len() as u64);
    ok(memory.write(0, bytes));
    memory
}

/// Reads bytes of a region.
pub fn bytes_of(memory: &Arc<dyn MemoryRegion>, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ok(memory.read(offset, &mut bytes));
    bytes
}

/// Bytes that differ by position and by seed.
#[must_use]
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..=250).map(|byte: u8| byte.wrapping_mul(7).wrapping_add(seed)).cycle().take(len).collect()
}

/// A transfer between a local region and the peer's frames.
#[must_use]
pub const fn transfer(local: RegionId, at: u64, remote_at: u64, len: u32) -> Transfer {
    Transfer {
        local,
        local_offset: at,
        remote: RemoteRegion::FRAMES,
        remote_offset: remote_at,
        len,
    }
}

/// A request to write.
#[must_use]
pub const fn write(id: u64, transfer: Transfer) -> WorkRequest {
    WorkRequest { id, operation: Operation::Write(transfer) }
}

/// A request to read.
#[must_use]
pub const fn read(id: u64, transfer: Transfer) -> WorkRequest {
    WorkRequest { id, operation: Operation::Read(transfer) }
}
