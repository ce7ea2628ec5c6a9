mod events;
mod fabric;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::card::Card;
use super::endpoint::Endpoint;
use super::listener::SocketFile;
use super::model;
use super::transport::EmulatedTransport;
use super::{EmulatedOptions, NumaModel};
use crate::connector::{ConnectorHandle, Outcomes};
use crate::handshake::{Identity, MAX_EXPORTS};
use crate::regions::Regions;
use crate::{EndpointId, Event, FabricError, FabricStartError, Keyring};

const SCHEME: &str = "emulated:";

/// A fabric between racks on one host (see the [module](super)).
///
/// Dropping the fabric ends its endpoints as if the process were killed: the peers see `PeerGone`.
/// The drop does not wait for copies of a peer that are under way;
/// [`Fabric::disconnect`](crate::Fabric::disconnect) does.
pub struct EmulatedFabric {
    address: String,
    description: String,
    latency_ns: u64,
    card: Arc<Card>,
    regions: Regions,
    next_endpoint: u64,
    connecting: BTreeSet<EndpointId>,
    endpoints: BTreeMap<EndpointId, Open>,
    /// Events that occurred outside of `poll`.
    stash: Vec<Event>,
    outcomes: Outcomes<EmulatedTransport>,
    connector: ConnectorHandle<EmulatedTransport>,
    /// Wakes the thread that polls.
    wake: Arc<OwnedFd>,
}

struct Open {
    endpoint: Endpoint,
    watch: u64,
}

impl EmulatedFabric {
    /// Starts to listen. A connection counts as accepted when `poll` reports it.
    pub fn new(options: EmulatedOptions) -> Result<Self, FabricStartError> {
        let numa = options.numa.map(NumaModel::check).transpose()?;
        let dilation = numa.map_or(1, |numa| numa.dilation);
        let latency_ns = model::latency_ns(options.latency.saturating_mul(dilation))?;
        let ps_per_byte = model::ps_per_byte(options.bandwidth_gbps / f64::from(dilation))?;
        let path = std::path::absolute(&options.listen)
            .map_err(|source| system("find the path", &options.listen, source))?;
        let Some(text) = path.to_str() else {
            return Err(FabricStartError::Option {
                option: "listen",
                value: path.display().to_string(),
                expected: "a path in UTF-8",
            });
        };
        if options.exports.is_empty() || options.exports.len() > MAX_EXPORTS {
            return Err(FabricStartError::Option {
                option: "exports",
                value: format!("{} regions", options.exports.len()),
                expected: "1 to 16 regions",
            });
        }
        let wake = rackpool_sync::eventfd::new()
            .map_err(|error| system("create an eventfd", &path, error))?;
        let wake = Arc::new(wake);
        let (card_memory, card) = Card::create(&*options.mapper, ps_per_byte, numa)
            .map_err(|error| system("create the card's memory", &path, error))?;
        let (listener, socket_file) = SocketFile::bind(&path)?;
        let (outcomes, receiver) = channel();
        // Peers are authenticated by their user: there is no key.
        let (rack, incarnation, key) = (options.rack, options.incarnation, Keyring::unused());
        let transport = EmulatedTransport {
            identity: Identity { rack, incarnation, key },
            exports: options.exports,
            mapper: options.mapper,
            wake: Arc::clone(&wake),
            card: card_memory,
            outcomes,
            _socket_file: socket_file,
        };
        let connector = ConnectorHandle::start(transport, listener)
            .map_err(|source| system("start a thread", &path, source))?;
        Ok(Self {
            address: format!("{SCHEME}{text}"),
            description: format!(
                "emulated: racks on this host through shared memory, {:?} latency, {} Gbit/s{}",
                options.latency,
                options.bandwidth_gbps,
                numa.map_or_else(String::new, |numa| format!(", {numa}")),
            ),
            latency_ns,
            card: Arc::new(card),
            regions: Regions::default(),
            next_endpoint: 0,
            connecting: BTreeSet::new(),
            endpoints: BTreeMap::new(),
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
        // Before the connector ends.
        self.endpoints.clear();
    }
}

impl fmt::Debug for EmulatedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedFabric").field("address", &self.address).finish_non_exhaustive()
    }
}

fn system(step: &'static str, path: &Path, source: std::io::Error) -> FabricStartError {
    FabricStartError::System { step, path: path.display().to_string(), source }
}
