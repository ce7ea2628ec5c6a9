use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;

use super::EmulatedOptions;
use super::connector::{Command, Connector, Outcome};
use super::endpoint::{Endpoint, QUEUE_DEPTH};
use super::handshake::{Established, Local};
use super::hello::MAX_EXPORTS;
use super::listener::Listener;
use super::model::{Clock, Speed, now_ns};
use super::sleep::{drain, signal};
use crate::regions::Regions;
use crate::{
    DisconnectReason, EndpointId, Event, Fabric, FabricError, MemoryRegion, RegionId, StartError,
    WorkRequest,
};

const SCHEME: &str = "emulated:";

/// A fabric between racks on one host (see the [module](super)).
///
/// Dropping it ends its endpoints as a killed process would: the peers see `PeerGone`. It does not
/// wait for copies of a peer that are under way; [`Fabric::disconnect`] does.
pub struct EmulatedFabric {
    address: String,
    description: String,
    speed: Speed,
    regions: Regions,
    next_endpoint: u64,
    connecting: BTreeSet<EndpointId>,
    endpoints: BTreeMap<EndpointId, Open>,
    /// Events that happened outside of `poll`.
    stash: Vec<Event>,
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
    /// Starts to listen. Nothing is accepted before the first `poll` reports it.
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
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map(Arc::new)
                .map_err(|errno| system("create an eventfd", &path, errno.into()))
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

    /// The error for an endpoint that is not there.
    fn missing(&self, endpoint: EndpointId) -> FabricError {
        if self.connecting.contains(&endpoint) {
            FabricError::NotConnected
        } else if endpoint.0 < self.next_endpoint {
            FabricError::Closed
        } else {
            FabricError::UnknownEndpoint
        }
    }

    fn next_outcome(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.found.take() {
            return Some(outcome);
        }
        match self.outcomes.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                // The connector has ended, which only a bug of its own can bring about.
                let endpoint = self.connecting.first().copied()?;
                let error = FabricError::local("reach the connector", "its thread has ended");
                Some(Outcome::Failed { endpoint, error })
            }
        }
    }

    fn learn(&mut self, outcome: Outcome, events: &mut Vec<Event>) {
        match outcome {
            Outcome::Ready { endpoint, watch, established } => {
                self.open(endpoint, watch, *established, events);
            }
            Outcome::Failed { endpoint, error } => {
                if self.connecting.remove(&endpoint) {
                    events.push(Event::ConnectFailed { endpoint, error });
                }
            }
            Outcome::Gone { watch } => {
                if let Some(open) = self.endpoints.values_mut().find(|open| open.watch == watch) {
                    open.endpoint.peer_gone(&mut self.regions, events);
                }
            }
            Outcome::Broken { watch } => {
                if let Some(open) = self.endpoints.values_mut().find(|open| open.watch == watch) {
                    let error = FabricError::misbehaved("it wrote to the socket of the link");
                    let reason = DisconnectReason::Failed(error);
                    open.endpoint.close(reason, &mut self.regions, events);
                }
            }
        }
    }

    fn open(
        &mut self,
        connecting: Option<EndpointId>,
        watch: u64,
        established: Established,
        events: &mut Vec<Event>,
    ) {
        let (peer, incarnation) = (established.peer, established.incarnation);
        let endpoint = match connecting {
            Some(endpoint) if self.connecting.remove(&endpoint) => {
                events.push(Event::Connected { endpoint, peer, incarnation });
                endpoint
            }
            Some(_) => {
                // Given up meanwhile. Dropping the link tells the peer. A connector that has ended
                // watches nothing.
                let _ = self.command(Command::Forget { watch });
                return;
            }
            None => {
                let endpoint = self.new_endpoint();
                events.push(Event::Accepted { endpoint, peer, incarnation });
                endpoint
            }
        };
        let open = Open { endpoint: Endpoint::new(endpoint, self.speed, established), watch };
        self.endpoints.insert(endpoint, open);
    }
}

impl Fabric for EmulatedFabric {
    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> RegionId {
        self.regions.register(region)
    }

    fn unregister(&mut self, region: RegionId) {
        self.regions.unregister(region, &mut self.stash);
    }

    fn connect(&mut self, address: &str) -> Result<EndpointId, FabricError> {
        let path = address.strip_prefix(SCHEME).filter(|path| path.starts_with('/'));
        let Some(path) = path else {
            return Err(FabricError::BadAddress {
                address: address.into(),
                provider: "emulated",
                expected: "emulated: and the absolute path of a socket",
            });
        };
        let endpoint = self.new_endpoint();
        self.command(Command::Connect { endpoint, path: path.into() })?;
        self.connecting.insert(endpoint);
        Ok(endpoint)
    }

    fn post(&mut self, endpoint: EndpointId, list: &[WorkRequest]) -> Result<(), FabricError> {
        match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.post(list, &mut self.regions, &mut Clock::default()),
            None => Err(self.missing(endpoint)),
        }
    }

    fn send(&mut self, endpoint: EndpointId, message: &[u8]) -> Result<(), FabricError> {
        match self.endpoints.get_mut(&endpoint) {
            Some(open) => open.endpoint.send(message, &mut Clock::default()),
            None => Err(self.missing(endpoint)),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.stash);
        while let Some(outcome) = self.next_outcome() {
            self.learn(outcome, events);
        }
        let mut clock = Clock::default();
        let Self { endpoints, regions, commands, control, .. } = self;
        endpoints.retain(|_, open| {
            let ended = open.endpoint.poll(regions, &mut clock, events);
            if ended {
                // A connector that has ended watches nothing.
                let _ = commands.send(Command::Forget { watch: open.watch });
                signal(&**control);
            }
            !ended
        });
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        let reason = DisconnectReason::Local;
        if let Some(open) = self.endpoints.get_mut(&endpoint) {
            open.endpoint.close(reason, &mut self.regions, &mut self.stash);
        } else if self.connecting.remove(&endpoint) {
            // A connector that has ended connects nothing.
            let _ = self.command(Command::Abandon { endpoint });
            self.stash.push(Event::Disconnected { endpoint, reason });
        }
    }

    fn arm(&mut self) -> bool {
        // Every endpoint is armed, also after the first that has something to do: disarm() then
        // finds them all alike.
        let mut quiet = self.stash.is_empty();
        for open in self.endpoints.values_mut() {
            quiet &= open.endpoint.arm();
        }
        if self.found.is_none() {
            self.found = self.next_outcome();
        }
        quiet && self.found.is_none()
    }

    fn disarm(&mut self) {
        drain(&*self.wake);
        for open in self.endpoints.values_mut() {
            open.endpoint.disarm();
        }
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn next_completion(&self) -> Option<Duration> {
        let due_ns =
            self.endpoints.values().filter_map(|open| open.endpoint.next_due_ns()).min()?;
        Some(Duration::from_nanos(due_ns.saturating_sub(now_ns())))
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn description(&self) -> String {
        self.description.clone()
    }
}

impl Drop for EmulatedFabric {
    fn drop(&mut self) {
        self.endpoints.clear();
        // Fails only when the connector has ended already.
        let _ = self.command(Command::Stop);
        if let Some(connector) = self.connector.take() {
            // A panic of the connector has been printed; there is nothing left to save here.
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
