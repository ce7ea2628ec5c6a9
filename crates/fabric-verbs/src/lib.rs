//! RDMA between racks: the verbs provider of the `Fabric` trait.
//!
//! libibverbs is loaded when a fabric is started, so programs with this provider also run on hosts
//! without it. `docs/design/verbs.md` describes the formats, the states and the crashes.
#![expect(unsafe_code, reason = "calls libibverbs and gives memory to the hardware")]

mod endpoint;
#[forbid(unsafe_code)]
mod error;
#[cfg(feature = "fuzzing")]
#[forbid(unsafe_code)]
pub mod fuzzing;
#[forbid(unsafe_code)]
mod intake;
#[cfg(any(test, feature = "layout"))]
#[forbid(unsafe_code)]
pub mod layout;
#[forbid(unsafe_code)]
mod limits;
mod link;
#[forbid(unsafe_code)]
mod pair;
#[forbid(unsafe_code)]
mod port;
#[forbid(unsafe_code)]
mod provider;
#[forbid(unsafe_code)]
mod regions;
#[forbid(unsafe_code)]
mod split;
#[forbid(unsafe_code)]
mod transport;
mod verbs;

use std::net::SocketAddr;
use std::sync::Arc;

use rackpool_fabric::{Keyring, MemoryRegion, ReceiveRoom};
use rackpool_model::{Incarnation, RackId};

pub use error::VerbsStartError;
pub use limits::DeviceLimits;
pub use provider::{VerbsFabric, check_port};
pub use verbs::LoadError;

/// Options of a [`VerbsFabric`].
pub struct VerbsOptions {
    /// The rack that owns the fabric.
    pub rack: RackId,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
    /// The address to which peers connect by TCP. It must belong to the network of the RDMA port.
    /// Port 0 takes a free port.
    pub listen: SocketAddr,
    /// The memory that peers may access; the frames first.
    pub exports: Vec<Arc<dyn MemoryRegion>>,
    /// Restricts the choice to this RDMA device.
    pub device: Option<String>,
    /// Restricts the choice to this port number, counted from 1.
    pub port: Option<u8>,
    /// Uses the GID with this index, whatever address it has.
    pub gid_index: Option<u8>,
    /// The pool's key. Without a key, the fabric listens on and connects to loopback addresses
    /// only.
    pub key: Keyring,
    /// Room for the buffers into which the device writes the data of all peers.
    pub receive_room: ReceiveRoom,
    /// Upper limits on the use of the device.
    pub limits: DeviceLimits,
}
