//! Fabrics of the study's two ends: a fabric, hence a rack of its own, for each connection.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rackpool_fabric::emulated::numa::{LATENCY_NS, LINK_GBPS};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion, NumaModel};
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_fabric::{Fabric, Keyring, ReceiveRoom};
use rackpool_fabric_verbs::{DeviceLimits, VerbsFabric, VerbsOptions};
use rackpool_model::{FabricKind, Incarnation, RackId};

use crate::StudyError;
use crate::memory::{Buffer, PageMapper};

/// The rack of the server; connection `n` belongs to rack `n + 1`.
pub(crate) const SERVER: RackId = RackId(0);

/// What all fabrics of a measurement share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FabricChoice<'a> {
    pub(crate) kind: FabricKind,
    pub(crate) rdma_device: Option<&'a str>,
    /// The folder of the emulated fabric's sockets.
    pub(crate) folder: &'a Path,
}

impl FabricChoice<'_> {
    /// Starts the fabric of a rack that exports one buffer.
    pub(crate) fn start(
        &self,
        rack: RackId,
        memory: &Buffer,
        modelled: Option<NumaModel>,
    ) -> Result<Box<dyn Fabric>, StudyError> {
        let incarnation = Incarnation(1);
        match self.kind {
            FabricKind::Emulated => {
                let options = self.emulated_options(rack, memory.export()?, modelled);
                Ok(Box::new(EmulatedFabric::new(options)?))
            }
            FabricKind::Tcp => {
                let mut options = TcpOptions::new(rack, incarnation);
                options.exports = vec![memory.region()];
                Ok(Box::new(TcpFabric::new(options)?))
            }
            FabricKind::Verbs => Ok(Box::new(VerbsFabric::new(VerbsOptions {
                rack,
                incarnation,
                listen: ([127, 0, 0, 1], 0).into(),
                exports: vec![memory.region()],
                device: self.rdma_device.map(str::to_owned),
                port: None,
                gid_index: None,
                key: Keyring::unused(),
                receive_room: ReceiveRoom::new(0),
                limits: DeviceLimits::ANY,
            })?)),
        }
    }

    /// Options of the emulated fabric. A modelled rack has the latency and the bandwidth of the
    /// published testbed; the fabric dilates both.
    fn emulated_options(
        &self,
        rack: RackId,
        export: ExportedRegion,
        modelled: Option<NumaModel>,
    ) -> EmulatedOptions {
        let listen = self.folder.join(format!("{}.sock", rack.0));
        let mut options = EmulatedOptions::new(rack, Incarnation(1), listen, Arc::new(PageMapper));
        options.exports = vec![export];
        options.numa = modelled;
        if modelled.is_some() {
            options.latency = Duration::from_nanos(LATENCY_NS);
            options.bandwidth_gbps = LINK_GBPS;
        }
        options
    }
}
