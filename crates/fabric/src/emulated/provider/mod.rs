mod events;
mod fabric;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::EmulatedOptions;
use super::connector::{Command, Connector, Outcome};
use super::endpoint::Endpoint;
use super::handshake::Local;
use super::hello::MAX_EXPORTS;
use super::listener::Listener;
use super::model::Speed;
use crate::regions::Regions;
use crate::{EndpointId, Event, FabricError, StartError};
use rackpool_sync::eventfd::signal;

/// The number of polls between two checks for reports of the connector. Connections change rarely,
/// whereas completions are frequent.
const CONNECTOR_EVERY: u32 = 16;
const SCHEME: &str = "emulated:";

/// A fabric between racks on one host (see the [module](super)).
///
/// Dropping the fabric ends its endpoints as if the process were killed: the peers see `PeerGone`.
/// The drop does not wait for copies of a peer that are under way;
/// [`Fabric::disconnect`](crate::Fabric::disconnect) does.
pub struct EmulatedFabric {
    address: String,
    description: String,
    speed: Speed,
    regions: Regions,
    next_endpoint: u64,
    connecting: BTreeSet<EndpointId>,
    endpoints: BTreeMap<EndpointId, Open>,
    /// Events that occurred outside of `poll`.
    stash: Vec<Event>,
    polls: u32,
    /// An outcome that `arm` found.
    found: Option<Outcome>,
    outcomes: Receiver<Outcome>,
    commands: Sender<Command>,
    /// Wakes the connector.
    control: Arc<OwnedFd>,
    /// Wakes the thread that polls.
    wake: Arc<OwnedFd>,
    connector: Option<JoinHandle<()>>,
}

struct Open {
    endpoint: Endpoint,
    watch: u64,
}

impl EmulatedFabric {
    /// Starts to listen. A connection counts as accepted when `poll` reports it.
    pub fn new(options: EmulatedOptions) -> Result<Self, StartError> {
        let speed = Speed::new(options.latency, options.bandwidth_gbps)?;
        let path = std::path::absolute(&options.listen)
            .map_err(|source| system("find the path", &options.listen, source))?;
        let Some(text) = path.to_str() else {
            return Err(StartError::Option {
                option: "listen",
                value: path.display().to_string(),
                expected: "a path in UTF-8",
            });
        };
        if options.exports.is_empty() || options.exports.len() > MAX_EXPORTS {
            return Err(StartError::Option {
                option: "exports",
                value: format!("{} regions", options.exports.len()),
                expected: "1 to 16 regions",
            });
        }
        let eventfd = || {
            rackpool_sync::eventfd::new()
                .map(Arc::new)
                .map_err(|error| system("create an eventfd", &path, error))
        };
        let (control, wake) = (eventfd()?, eventfd()?);
        let (commands, commands_out) = channel();
        let (outcomes_in, outcomes) = channel();
        let local = Local {
            rack: options.rack,
            incarnation: options.incarnation,
            exports: options.exports,
            mapper: options.mapper,
            wake: Arc::clone(&wake),
        };
        let listener = Listener::bind(&path)?;
        let connector =
            Connector::new(local, listener, Arc::clone(&control), commands_out, outcomes_in);
        let connector = std::thread::Builder::new()
            .name("fabric-connector".into())
            .spawn(|| connector.run())
            .map_err(|source| system("start a thread", &path, source))?;
        Ok(Self {
            address: format!("{SCHEME}{text}"),
            description: format!(
                "emulated: racks on this host through shared memory, {:?} latency, {} Gbit/s",
                options.latency, options.bandwidth_gbps
            ),
            speed,
            regions: Regions::default(),
            next_endpoint: 0,
            connecting: BTreeSet::new(),
            endpoints: BTreeMap::new(),
            stash: Vec::new(),
            polls: 0,
            found: None,
            outcomes,
            commands,
            control,
            wake,
            connector: Some(connector),
        })
    }

    fn command(&self, command: Command) -> Result<(), FabricError> {
        let sent = self.commands.send(command);
        signal(&*self.control);
        sent.map_err(|_| FabricError::local("reach the connector", "its thread has ended"))
    }

    fn new_endpoint(&mut self) -> EndpointId {
        let id = EndpointId(self.next_endpoint);
        self.next_endpoint += 1;
        id
    }

    /// The error for an endpoint that is not open.
    fn missing(&self, endpoint: EndpointId) -> FabricError {
        if self.connecting.contains(&endpoint) {
            FabricError::NotConnected
        } else if endpoint.0 < self.next_endpoint {
            FabricError::Closed
        } else {
            FabricError::UnknownEndpoint
        }
    }
}

impl Drop for EmulatedFabric {
    fn drop(&mut self) {
        self.endpoints.clear();
        // Fails only if the connector has already ended.
        let _ = self.command(Command::Stop);
        if let Some(connector) = self.connector.take() {
            // A panic of the connector has been printed; nothing else is to be done here.
            let _ = connector.join();
        }
    }
}

impl fmt::Debug for EmulatedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedFabric").field("address", &self.address).finish_non_exhaustive()
    }
}

fn system(step: &'static str, path: &Path, source: std::io::Error) -> StartError {
    StartError::System { step, path: path.display().to_string(), source }
}
