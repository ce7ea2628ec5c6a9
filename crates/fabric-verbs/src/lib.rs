//! RDMA between racks: the verbs provider of the `Fabric` trait.
//!
//! libibverbs is loaded when a fabric is started, so that programs with this provider also run on
//! machines without it. Formats, states and what happens at each crash: `docs/design/verbs.md`.
#![expect(unsafe_code, reason = "calls libibverbs and gives memory to the hardware")]

#[forbid(unsafe_code)]
mod connector;
#[forbid(unsafe_code)]
mod cut;
mod endpoint;
#[forbid(unsafe_code)]
mod error;
#[cfg(feature = "fuzzing")]
#[forbid(unsafe_code)]
pub mod fuzzing;
#[forbid(unsafe_code)]
mod intake;
#[forbid(unsafe_code)]
mod limits;
mod link;
#[forbid(unsafe_code)]
mod packet;
#[forbid(unsafe_code)]
mod port;
#[forbid(unsafe_code)]
mod provider;
#[forbid(unsafe_code)]
mod regions;
#[forbid(unsafe_code)]
mod socket;
mod verbs;

use std::net::SocketAddr;
use std::sync::Arc;

use rackpool_fabric::{Keyring, MemoryRegion, ReceiveRoom};
use rackpool_model::{Incarnation, RackId};

pub use error::StartError;
pub use limits::DeviceLimits;
pub use provider::{VerbsFabric, check_port};
pub use verbs::LoadError;

/// How a [`VerbsFabric`] is set up.
pub struct VerbsOptions {
    /// The rack whose fabric it is.
    pub rack: RackId,
    /// This life of its daemon.
    pub incarnation: Incarnation,
    /// Where peers connect by TCP: an address of the network that the RDMA port is in; port 0: any.
    pub listen: SocketAddr,
    /// What peers may access; the frames first.
    pub exports: Vec<Arc<dyn MemoryRegion>>,
    /// Use this RDMA device and no other.
    pub device: Option<String>,
    /// Use the port of this number, counted from 1, and no other.
    pub port: Option<u8>,
    /// Use this GID, whatever its address.
    pub gid_index: Option<u8>,
    /// The secret of the pool. When none is used, only addresses of this host are listened on and
    /// connected to.
    pub key: Keyring,
    /// For the buffers into which the device writes what all peers send.
    pub receive_room: ReceiveRoom,
    /// How much of the device may be used.
    pub limits: DeviceLimits,
}
