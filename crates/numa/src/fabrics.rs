use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rackpool_fabric::emulated::numa::{LATENCY_NS, LINK_GBPS};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion, NumaModel};
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_fabric::{Fabric, Keyring, MemoryRegion, ReceiveRoom};
use rackpool_fabric_verbs::{DeviceLimits, VerbsFabric, VerbsOptions};
use rackpool_model::{Incarnation, RackId};

use crate::memory::{Maps, Memory};

/// Bytes of messages that a fabric may receive: the study sends none.
const RECEIVE_BYTES: u64 = 64 << 10;

/// The fabric between clients and server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// The emulated fabric: a client's processor copies the bytes.
    #[default]
    Emulated,
    /// TCP on the loopback interface: threads of server and client copy them.
    Tcp,
    /// RDMA, from the card to itself.
    Verbs {
        /// The device; `None` takes the one of the address.
        device: Option<String>,
        /// An address of the card's network interface.
        address: IpAddr,
    },
}

impl Provider {
    /// Starts the fabric of a client or of the server.
    pub(crate) fn start(
        &self,
        rack: RackId,
        memory: &Arc<Memory>,
        model: Option<NumaModel>,
        folder: &Path,
    ) -> anyhow::Result<Box<dyn Fabric>> {
        let incarnation = Incarnation(1);
        let region: Arc<dyn MemoryRegion> = Arc::<Memory>::clone(memory);
        match self {
            Self::Emulated => {
                let listen = folder.join(format!("{}.sock", rack.0));
                let mut options = EmulatedOptions::new(rack, incarnation, listen, Arc::new(Maps));
                options.exports = vec![ExportedRegion { fd: memory.fd()?, len: region.len() }];
                if model.is_some() {
                    options.latency = Duration::from_nanos(LATENCY_NS);
                    options.bandwidth_gbps = LINK_GBPS;
                }
                options.numa = model;
                Ok(Box::new(EmulatedFabric::new(options)?))
            }
            Self::Tcp => {
                let mut options = TcpOptions::new(rack, incarnation);
                options.exports = vec![region];
                Ok(Box::new(TcpFabric::new(options)?))
            }
            Self::Verbs { device, address } => {
                let options = VerbsOptions {
                    rack,
                    incarnation,
                    listen: SocketAddr::new(*address, 0),
                    exports: vec![region],
                    device: device.clone(),
                    port: None,
                    gid_index: None,
                    key: Keyring::unused(),
                    receive_room: ReceiveRoom::new(RECEIVE_BYTES),
                    limits: DeviceLimits::ANY,
                };
                let fabric = VerbsFabric::new(options);
                Ok(Box::new(fabric.context("`rackpool doctor` says what RDMA needs")?))
            }
        }
    }
}
