mod events;
mod fabric;
mod start;

pub use start::check_port;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc;

use rackpool_fabric::connector::{Command, ConnectorHandle, Outcomes};
use rackpool_fabric::handshake::Identity;
use rackpool_fabric::{DeviceCounters, EndpointId, Event, FabricError, ip_socket};
use rackpool_sync::eventfd;
use rustix::event::epoll;

use crate::endpoint::Endpoint;
use crate::error::explain_memory;
use crate::link::{Shared, VerbsLink};
use crate::regions::{Regions, register};
use crate::transport::VerbsTransport;
use crate::verbs::{Channel, Domain, Registration};
use crate::{VerbsOptions, VerbsStartError};

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
    connecting: BTreeMap<EndpointId, ConnectAttempt>,
    endpoints: BTreeMap<EndpointId, Open>,
    /// Counts of the endpoints that have ended.
    past: DeviceCounters,
    /// Events that occurred outside of `poll`.
    stash: Vec<Event>,
    outcomes: Outcomes<VerbsTransport>,
    connector: ConnectorHandle<VerbsTransport>,
    /// An epoll: readable when the completion channel or the connector has an event.
    wake: OwnedFd,
}

struct Open {
    endpoint: Endpoint,
    watch: u64,
}

/// The owner's interest in a connection that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectAttempt {
    /// The owner waits for `Connected` or `ConnectFailed`.
    Awaited,
    /// The owner called `disconnect`. `Disconnected` follows when the connector has dropped the
    /// connection.
    GivenUp,
}

impl VerbsFabric {
    /// Loads libibverbs, chooses the port, registers the exports and starts to listen. A connection
    /// counts as accepted when `poll` reports it.
    pub fn new(options: VerbsOptions) -> Result<Self, VerbsStartError> {
        start::check(&options)?;
        let forced = start::forced(&options);
        let (context, port, limits) =
            start::open_port(options.listen.ip(), forced, options.limits)?;
        let device = |step, cause: String| VerbsStartError::Device {
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
            |step| move |source| VerbsStartError::System { step, address: options.listen, source };
        let wake_up = eventfd::new().map_err(system("create an eventfd"))?;
        let wake = watch(&wake_up, &completions)
            .map_err(|errno| system("create an epoll")(errno.into()))?;
        let (listener, address) = ip_socket::listen(&options.listen).map_err(system("listen"))?;
        let shared = Arc::new(Shared {
            identity: Identity {
                rack: options.rack,
                incarnation: options.incarnation,
                key: options.key,
            },
            exports,
            domain: Arc::clone(&domain),
            channel: completions,
            limits,
            receive_room: options.receive_room,
            wake: wake_up,
            port,
        });
        let (outcomes, receiver) = mpsc::channel();
        let transport = VerbsTransport { shared: Arc::clone(&shared), outcomes };
        let connector =
            ConnectorHandle::start(transport, listener).map_err(system("start a thread"))?;
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
            outcomes: Outcomes::new(receiver),
            connector,
            wake,
        })
    }

    fn new_endpoint(&mut self) -> EndpointId {
        let id = EndpointId(self.next_endpoint);
        self.next_endpoint += 1;
        id
    }

    /// The error for an endpoint that is not open.
    fn missing(&self, endpoint: EndpointId) -> FabricError {
        match self.connecting.get(&endpoint) {
            Some(ConnectAttempt::Awaited) => FabricError::NotConnected,
            Some(ConnectAttempt::GivenUp) => FabricError::Closed,
            None if endpoint.0 < self.next_endpoint => FabricError::Closed,
            None => FabricError::UnknownEndpoint,
        }
    }

    /// Hands the link of an endpoint that has ended to the connector, which destroys the link.
    fn bury(&self, endpoint: EndpointId, watch: u64, link: VerbsLink) {
        // If the connector has ended, the failed send drops the link, which destroys it as well.
        let remains = Box::new(link);
        let _ = self.connector.command(Command::Forget { endpoint, watch, remains });
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        // Before the connector ends.
        self.endpoints.clear();
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
