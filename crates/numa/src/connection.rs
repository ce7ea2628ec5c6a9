//! A connection of the client: a fabric of its own with one endpoint and one buffer.

use std::time::Instant;

use rackpool_fabric::emulated::NumaModel;
use rackpool_fabric::{
    EndpointId, Event, Fabric, Operation, RegionId, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_model::RackId;

use crate::StudyError;
use crate::fabrics::FabricChoice;
use crate::memory::Buffer;
use crate::threads::{GLANCE, TIMEOUT};

/// What a poll of a connection found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The operation with this id is complete.
    Completed(u64),
    /// The server sent a message.
    Message(Vec<u8>),
}

/// A connection of the client.
pub(crate) struct Connection {
    fabric: Box<dyn Fabric>,
    endpoint: EndpointId,
    region: RegionId,
    pub(crate) memory: Buffer,
    events: Vec<Event>,
    is_connected: bool,
}

impl Connection {
    /// Starts a fabric and begins to connect to the server.
    pub(crate) fn start(
        choice: &FabricChoice<'_>,
        rack: RackId,
        memory: Buffer,
        modelled: Option<NumaModel>,
        server: &str,
    ) -> Result<Self, StudyError> {
        let mut fabric = choice.start(rack, &memory, modelled)?;
        let region = fabric.register(memory.region());
        let endpoint = fabric.connect(server)?;
        Ok(Self { fabric, endpoint, region, memory, events: Vec::new(), is_connected: false })
    }

    /// Waits until the connection is there.
    pub(crate) fn wait_until_connected(&mut self) -> Result<(), StudyError> {
        let start = Instant::now();
        let mut arrivals = Vec::new();
        while !self.is_connected {
            self.poll(&mut arrivals)?;
            if start.elapsed() > TIMEOUT {
                let seconds = TIMEOUT.as_secs();
                return Err(StudyError::Timeout { what: "connecting", seconds });
            }
            std::thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Polls the fabric once and appends what arrived.
    pub(crate) fn poll(&mut self, arrivals: &mut Vec<Arrival>) -> Result<(), StudyError> {
        self.fabric.poll(&mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Completed { id, result, .. } => {
                    result?;
                    arrivals.push(Arrival::Completed(id));
                }
                Event::Message { bytes, .. } => arrivals.push(Arrival::Message(bytes)),
                Event::Connected { .. } => self.is_connected = true,
                Event::ConnectFailed { error, .. } => return Err(error.into()),
                Event::Disconnected { reason, .. } => return Err(StudyError::Disconnected(reason)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The transfer between an offset of this side's buffer and one of the server's memory.
    pub(crate) const fn transfer(
        &self,
        local_offset: u64,
        remote_offset: u64,
        len: u32,
    ) -> Transfer {
        let (local, remote) = (self.region, RemoteRegion::FRAMES);
        Transfer { local, local_offset, remote, remote_offset, len }
    }

    /// Posts a list of operations and rings the doorbell.
    pub(crate) fn post(&mut self, list: &[WorkRequest]) -> Result<(), StudyError> {
        self.fabric.post(self.endpoint, list)?;
        self.fabric.flush(self.endpoint);
        Ok(())
    }

    /// Posts one operation.
    pub(crate) fn post_one(&mut self, id: u64, operation: Operation) -> Result<(), StudyError> {
        self.post(&[WorkRequest { id, operation }])
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> Result<(), StudyError> {
        self.fabric.send(self.endpoint, message)?;
        self.fabric.flush(self.endpoint);
        Ok(())
    }

    /// The number of operations that can be outstanding.
    pub(crate) fn queue_depth(&self) -> usize {
        self.fabric.queue_depth()
    }
}
