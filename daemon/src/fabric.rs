//! Starts the fabric that connects this rack to the others.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use rackpool_access::{Credentials, require_loopback};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::tcp::{self, TcpFabric};
use rackpool_fabric::{Fabric, Keyring, MemoryRegion, ReceiveRoom};
use rackpool_fabric_verbs::{DeviceLimits, VerbsFabric, VerbsOptions, check_port};
use rackpool_model::FabricKind;
use rackpool_output::UsageError;
use rackpool_rrpc::{Arena, InFlightLimits};
use rackpool_shm::Mapping;
use rackpool_shm::metadata::MetadataLayout;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::DaemonOptions;
use crate::placement::Placement;
use crate::rack::Rack;
use crate::region::{PeerMapper, Region};

/// Refuses a fabric that can't be used here, before the rack's memory is created.
pub(crate) fn check(
    options: &DaemonOptions,
    credentials: Option<&Credentials>,
) -> anyhow::Result<()> {
    let of_verbs =
        options.rdma_device.is_some() || options.rdma_port.is_some() || options.gid_index.is_some();
    if of_verbs && options.fabric != FabricKind::Verbs {
        bail!(UsageError::new(format!(
            "--rdma-device, --rdma-port and --gid-index are for --fabric verbs, not for {}",
            options.fabric
        )));
    }
    match (options.fabric, options.fabric_listen) {
        (FabricKind::Emulated, Some(address)) => bail!(UsageError::new(format!(
            "--fabric-listen {address}: the emulated fabric has no address; --fabric tcp and verbs have one"
        ))),
        (_, Some(address)) => {
            require_loopback("--fabric-listen", address, credentials).map_err(UsageError::new)?;
        }
        (_, None) => {}
    }
    if options.fabric == FabricKind::Verbs {
        let address = verbs_address(options).ip();
        let device = options.rdma_device.as_deref();
        check_port(address, device, options.rdma_port, options.gid_index)?;
    }
    Ok(())
}

/// Returns the address at which the verbs fabric listens.
fn verbs_address(options: &DaemonOptions) -> SocketAddr {
    options.fabric_listen.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))
}

/// Starts the fabric that the options name; [`check`] must have accepted them. The fabric exports
/// the frames and the buffers. The tcp and verbs fabrics make no handshake before they have the
/// pool's key, and use a network only with credentials.
pub(crate) fn start(
    options: &DaemonOptions,
    rack: &Rack,
    buffers: &Buffers,
    key: Keyring,
) -> anyhow::Result<Box<dyn Fabric>> {
    match options.fabric {
        FabricKind::Emulated => Ok(Box::new(emulated(options, rack, buffers)?)),
        FabricKind::Tcp => {
            let mut tcp = tcp::TcpOptions::new(rack.geometry.rack, rack.incarnation);
            tcp.listen = options.fabric_listen.unwrap_or(tcp.listen);
            tcp.key = key;
            tcp.exports = exports(rack, buffers);
            tcp.receive_room = ReceiveRoom::new(buffers.part);
            Ok(Box::new(TcpFabric::new(tcp)?))
        }
        FabricKind::Verbs => Ok(Box::new(VerbsFabric::new(VerbsOptions {
            rack: rack.geometry.rack,
            incarnation: rack.incarnation,
            listen: verbs_address(options),
            exports: exports(rack, buffers),
            device: options.rdma_device.clone(),
            port: options.rdma_port,
            gid_index: options.gid_index,
            key,
            receive_room: ReceiveRoom::new(buffers.part),
            limits: DeviceLimits::ANY,
        })?)),
    }
}

/// Returns the regions that peers may access: the frames first, then the buffers.
fn exports(rack: &Rack, buffers: &Buffers) -> Vec<Arc<dyn MemoryRegion>> {
    vec![Arc::new(Region(Arc::clone(&rack.frames))), Arc::clone(&buffers.memory)]
}

/// The least bytes for one kind of what arrives.
const LEAST_PART: u64 = 256 << 10;
/// The same if nobody says how much of the cache devices may fill.
const USUAL_PART: u64 = 1 << 20;

/// Buffers for requests to and from other racks. They lie on the card's node and take a quarter of
/// its cache's share for devices, at least as much as the bitmap of a page. The other quarters are
/// for the other bytes that arrive: docs/design/in-flight.md.
pub(crate) struct Buffers {
    file: OwnedFd,
    pub(crate) memory: Arc<dyn MemoryRegion>,
    /// Bytes for each kind of what arrives.
    part: u64,
}

impl Buffers {
    pub(crate) fn new(placement: &Placement, layout: &MetadataLayout) -> anyhow::Result<Self> {
        let part = match placement.device_share() {
            0 => USUAL_PART,
            share => (share / 4).max(LEAST_PART),
        };
        let bytes = Arena::bytes_for(part, layout.bitmap_bytes());
        let file = memfd_create("rackpool-buffers", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes)?;
        let mapping = Mapping::new(&file, bytes)?;
        placement.bind_memory("the buffers of requests", &mapping)?;
        Ok(Self { file, memory: Arc::new(Region(mapping)), part })
    }

    /// The most bytes in flight to this rack, outside the buffers.
    pub(crate) const fn in_flight(&self) -> InFlightLimits {
        InFlightLimits { reads: self.part, peer_writes: self.part }
    }
}

fn emulated(
    options: &DaemonOptions,
    rack: &Rack,
    buffers: &Buffers,
) -> anyhow::Result<EmulatedFabric> {
    let listen = rack.directory.fabric_socket();
    let mapper = Arc::new(PeerMapper);
    let mut emulated = EmulatedOptions::new(rack.geometry.rack, rack.incarnation, listen, mapper);
    emulated.latency = Duration::from_secs_f64(options.latency_us / 1e6);
    emulated.bandwidth_gbps = options.bandwidth_gbps;
    let len = rack.frames.len();
    emulated.exports = vec![
        ExportedRegion { fd: rack.frames_file.try_clone()?.into(), len },
        ExportedRegion { fd: buffers.file.try_clone()?, len: buffers.memory.len() },
    ];
    Ok(EmulatedFabric::new(emulated)?)
}
