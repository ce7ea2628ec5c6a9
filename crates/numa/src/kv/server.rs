//! The server of the key-value workload.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rackpool_fabric::{
    EndpointId, ErrorClass, Event, Fabric, Operation, RegionId, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_shm::Mapping;

use super::message::{Reply, Request};
use super::store::Store;
use super::{Key, VALUE_BYTES};
use crate::StudyError;

/// The modelled time of a request. A request waits until the one before it is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    each: Duration,
    busy_until: Instant,
}

impl Pace {
    /// A server that takes this long for each request.
    pub(crate) fn new(each: Duration) -> Self {
        Self { each, busy_until: Instant::now() }
    }

    /// Handles a request that arrived: returns when its time is over.
    fn take(&mut self) {
        self.busy_until = self.busy_until.max(Instant::now()) + self.each;
        while Instant::now() < self.busy_until {
            std::hint::spin_loop();
        }
    }
}

/// The server's state beside its fabric.
#[derive(Debug)]
pub(crate) struct KeyValueServer {
    store: Store,
    memory: Arc<Mapping>,
    region: RegionId,
    /// Sets whose value is being read: the client, by the read's id.
    reading: HashMap<u64, EndpointId>,
    next: u64,
    pace: Option<Pace>,
}

impl KeyValueServer {
    /// Bytes of registered memory for this many connections.
    pub(crate) fn bytes(connections: u32) -> u64 {
        Store::bytes(connections)
    }

    /// A server with a value for each key of the connections.
    pub(crate) fn new(
        memory: &Arc<Mapping>,
        region: RegionId,
        connections: u32,
        pace: Option<Pace>,
    ) -> Result<Self, StudyError> {
        Ok(Self {
            store: Store::fill(memory, connections)?,
            memory: Arc::clone(memory),
            region,
            reading: HashMap::new(),
            next: 0,
            pace,
        })
    }

    /// Handles an event of the fabric.
    pub(crate) fn take_in(
        &mut self,
        event: Event,
        fabric: &mut dyn Fabric,
    ) -> Result<(), StudyError> {
        match event {
            Event::Message { endpoint, bytes } => {
                if let Some(pace) = &mut self.pace {
                    pace.take();
                }
                match Request::decode(&bytes) {
                    Ok(Request::Get(key)) => {
                        let found = self.store.find(&self.memory, &key);
                        reply(fabric, endpoint, found.map_or(Reply::Missing, Reply::Found))
                    }
                    Ok(Request::Set(key, offset)) => self.fetch(fabric, endpoint, key, offset),
                    Err(_) => {
                        fabric.disconnect(endpoint);
                        Ok(())
                    }
                }
            }
            Event::Completed { id, result, .. } => match self.reading.remove(&id) {
                Some(endpoint) if result.is_ok() => reply(fabric, endpoint, Reply::Stored),
                // The client is gone, or named memory that it does not export.
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Starts to read the value of a set from the client's memory into the key's slot.
    fn fetch(
        &mut self,
        fabric: &mut dyn Fabric,
        endpoint: EndpointId,
        key: Key,
        offset: u64,
    ) -> Result<(), StudyError> {
        let Some(slot) = self.store.find(&self.memory, &key) else {
            return reply(fabric, endpoint, Reply::Missing);
        };
        let transfer = Transfer {
            local: self.region,
            local_offset: slot,
            remote: RemoteRegion::FRAMES,
            remote_offset: offset,
            len: VALUE_BYTES,
        };
        let id = self.next;
        self.next += 1;
        let posted =
            fabric.post(endpoint, &[WorkRequest { id, operation: Operation::Read(transfer) }]);
        if posted.is_err() {
            // The client named memory that it does not export.
            fabric.disconnect(endpoint);
            return Ok(());
        }
        self.reading.insert(id, endpoint);
        fabric.flush(endpoint);
        Ok(())
    }
}

/// Sends a reply. A client has one request outstanding, so there is room for it. A client that is
/// gone needs none.
fn reply(fabric: &mut dyn Fabric, endpoint: EndpointId, reply: Reply) -> Result<(), StudyError> {
    match fabric.send(endpoint, reply.encode()) {
        Ok(()) => fabric.flush(endpoint),
        Err(unsent) => match unsent.error.class() {
            ErrorClass::PeerGone | ErrorClass::Fenced => {}
            ErrorClass::Retry | ErrorClass::Fatal => return Err(unsent.into()),
        },
    }
    Ok(())
}
