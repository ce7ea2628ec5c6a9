use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use rackpool_fabric::emulated::NumaModel;
use rackpool_fabric::{
    EndpointId, Event, Fabric, Operation, RegionId, RemoteRegion, Transfer, WorkRequest,
};
use rackpool_model::RackId;

use crate::experiment::{Experiment, Kind};
use crate::fabrics::Provider;
use crate::memory::Memory;
use crate::server::Server;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A client with its queue pair to the server.
pub(crate) struct Connection {
    fabric: Box<dyn Fabric>,
    endpoint: EndpointId,
    operation: Operation,
    window: usize,
    /// When each operation in flight was posted, in order.
    posted: VecDeque<Instant>,
    events: Vec<Event>,
}

/// What clients share.
pub(crate) struct Clients<'a> {
    pub(crate) provider: &'a Provider,
    pub(crate) model: Option<NumaModel>,
    /// The node of the clients' memory.
    pub(crate) node: Option<u32>,
    pub(crate) folder: &'a Path,
}

impl Connection {
    /// Connects client number `client`.
    pub(crate) fn open(
        clients: &Clients<'_>,
        server: &Server,
        experiment: &Experiment,
        client: u16,
    ) -> anyhow::Result<Self> {
        let memory = Memory::new(experiment.bytes.into(), clients.node)?;
        let rack = RackId(client + 1);
        let mut fabric = clients.provider.start(rack, &memory, clients.model, clients.folder)?;
        let local = fabric.register(memory);
        let endpoint = fabric.connect(&server.address)?;
        let mut connection = Self {
            fabric,
            endpoint,
            operation: operation(experiment, client, local),
            window: experiment.window().into(),
            posted: VecDeque::new(),
            events: Vec::new(),
        };
        connection.wait_until_connected()?;
        connection.window = connection.window.min(connection.fabric.queue_depth());
        Ok(connection)
    }

    fn wait_until_connected(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            self.fabric.poll(&mut self.events);
            for event in self.events.drain(..) {
                match event {
                    Event::Connected { .. } => return Ok(()),
                    Event::ConnectFailed { error, .. } => return Err(error.into()),
                    _ => {}
                }
            }
            ensure!(start.elapsed() < TIMEOUT, "the server of the study does not answer");
            std::thread::yield_now();
        }
    }

    /// Posts operations until the window is full.
    pub(crate) fn fill(&mut self) -> anyhow::Result<()> {
        if self.posted.len() == self.window {
            return Ok(());
        }
        while self.posted.len() < self.window {
            let request = WorkRequest { id: 0, operation: self.operation };
            self.posted.push_back(Instant::now());
            self.fabric.post(self.endpoint, &[request])?;
        }
        self.fabric.flush(self.endpoint);
        Ok(())
    }

    /// Takes completions in, and calls `completed` with the time that each operation took.
    pub(crate) fn poll(&mut self, mut completed: impl FnMut(Duration)) -> anyhow::Result<()> {
        self.fabric.poll(&mut self.events);
        if self.events.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        for event in self.events.drain(..) {
            match event {
                Event::Completed { result, .. } => {
                    result?;
                    if let Some(posted) = self.posted.pop_front() {
                        completed(now - posted);
                    }
                }
                Event::Disconnected { reason, .. } => bail!("the connection ended: {reason}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.posted.len()
    }
}

fn operation(experiment: &Experiment, client: u16, local: RegionId) -> Operation {
    let transfer = Transfer {
        local,
        local_offset: 0,
        remote: RemoteRegion::FRAMES,
        remote_offset: experiment.part(client),
        len: experiment.bytes,
    };
    match experiment.kind {
        Kind::Read => Operation::Read(transfer),
        Kind::Write => Operation::Write(transfer),
    }
}
