mod events;
mod fabric;
mod start;

pub use start::check_port;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rackpool_fabric::{DeviceCounters, EndpointId, Event, FabricError};
use rackpool_sync::eventfd::{self, signal};
use rustix::event::epoll;

use crate::connector::{Command, Connector, Outcome};
use crate::endpoint::Endpoint;
use crate::error::{explain_memory, local};
use crate::link::{Shared, VerbsLink};
use crate::regions::{Regions, register};
use crate::verbs::{Channel, Domain, Registration};
use crate::{StartError, VerbsOptions, socket};

/// The number of polls between two checks for reports of the connector. Connections change rarely,
/// whereas completions are frequent.
const CONNECTOR_EVERY: u32 = 16;
const SCHEME: &str = "verbs:";

/// A fabric between racks with RDMA (see the [crate](crate)).
///
/// Dropping the fabric ends its endpoints as if the process were killed: the peers see `PeerGone`.
pub struct VerbsFabric {
    address: SocketAddr,
    description: String,
    shared: Arc<Shared>,
    regions: Regions,
    next_endpoint: u64,
    connecting: BTreeMap<EndpointId, Wanted>,
    endpoints: BTreeMap<EndpointId, Open>,
    /// Counts of the endpoints that have ended.
    past: DeviceCounters,
    /// Events that occurred outside of `poll`.
    stash: Vec<Event>,
    polls: u32,
    /// An outcome that `arm` found.
    found: Option<Outcome>,
    outcomes: Receiver<Outcome>,
    commands: Sender<Command>,
    /// Wakes the connector.
    control: Arc<OwnedFd>,
    /// An epoll: readable when the completion channel or the connector has an event.
    wake: OwnedFd,
    connector: Option<JoinHandle<()>>,
}

struct Open {
    endpoint: Endpoint,
    watch: u64,
}

/// The owner's interest in a connection that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// The owner waits for `Connected` or `ConnectFailed`.
    Yes,
    /// The owner called `disconnect`. `Disconnected` follows when the connector has dropped the
    /// connection.
    GivenUp,
}

impl VerbsFabric {
    /// Loads libibverbs, chooses the port, registers the exports and starts to listen. A connection
    /// counts as accepted when `poll` reports it.
    pub fn new(options: VerbsOptions) -> Result<Self, StartError> {
        start::check(&options)?;
        let forced = start::forced(&options);
        let (context, port, limits) =
            start::open_port(options.listen.ip(), forced, options.limits)?;
        let device = |step, cause: String| StartError::Device {
            step,
            device: port.device_name.clone(),
            cause,
        };
        let failed = |step| move |error: std::io::Error| device(step, explain_memory(&error, 0));
        let domain = Domain::new(&context).map_err(failed("make a protection domain"))?;
        let channel = Channel::new(&context).map_err(failed("make a completion channel"))?;
        let (domain, completions) = (Arc::new(domain), Arc::new(channel));
        let exports = options.exports.into_iter().map(|region| {
            register(&domain, region, limits, true)
                .map(Arc::new)
                .map_err(|cause| device("register the rack's memory", cause))
        });
        let exports: Vec<Arc<Registration>> = exports.collect::<Result<_, _>>()?;
        let system =
            |step| move |source| StartError::System { step, address: options.listen, source };
        let wake_up = eventfd::new().map_err(system("create an eventfd"))?;
        let control = eventfd::new().map_err(system("create an eventfd"))?;
        let control = Arc::new(control);
        let wake = watch(&wake_up, &completions)
            .map_err(|errno| system("create an epoll")(errno.into()))?;
        let (listener, address) = socket::listen(&options.listen).map_err(system("listen"))?;
        let shared = Arc::new(Shared {
            rack: options.rack,
            incarnation: options.incarnation,
            key: options.key,
            exports,
            domain: Arc::clone(&domain),
            channel: completions,
            limits,
            receive_room: options.receive_room,
            wake: wake_up,
            port,
        });
        let (commands, commands_out) = mpsc::channel();
        let (outcomes_in, outcomes) = mpsc::channel();
        let (share, wakes) = (Arc::clone(&shared), Arc::clone(&control));
        let connector = Connector::new(share, listener, wakes, commands_out, outcomes_in);
        let connector = std::thread::Builder::new()
            .name("fabric-connector".into())
            .spawn(|| connector.run())
            .map_err(system("start a thread"))?;
        Ok(Self {
            address,
            description: format!("verbs: RDMA through {}", shared.port),
            regions: Regions::new(domain, limits, shared.exports.clone()),
            shared,
            next_endpoint: 0,
            connecting: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            past: DeviceCounters::default(),
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
        signal(&self.control);
        sent.map_err(|_| local("reach the connector", "its thread has ended"))
    }

    fn new_endpoint(&mut self) -> EndpointId {
        let id = EndpointId(self.next_endpoint);
        self.next_endpoint += 1;
        id
    }

    /// The error for an endpoint that is not open.
    fn missing(&self, endpoint: EndpointId) -> FabricError {
        match self.connecting.get(&endpoint) {
            Some(Wanted::Yes) => FabricError::NotConnected,
            Some(Wanted::GivenUp) => FabricError::Closed,
            None if endpoint.0 < self.next_endpoint => FabricError::Closed,
            None => FabricError::UnknownEndpoint,
        }
    }

    /// Hands the link of an endpoint that has ended to the connector, which destroys the link.
    fn bury(&self, endpoint: EndpointId, watch: u64, link: VerbsLink) {
        // If the connector has ended, the failed send drops the link, which destroys it as well.
        let _ = self.command(Command::Bury { endpoint, watch, link: Box::new(link) });
    }
}

impl Drop for VerbsFabric {
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

impl fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsFabric").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Creates an epoll that is readable when either descriptor is.
fn watch(wake_up: &OwnedFd, completions: &Channel) -> rustix::io::Result<OwnedFd> {
    let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&both, wake_up, data, epoll::EventFlags::IN)?;
    epoll::add(&both, completions, data, epoll::EventFlags::IN)?;
    Ok(both)
}

/// Returns true if the address is a loopback address, which only this host can have.
fn is_this_host(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
