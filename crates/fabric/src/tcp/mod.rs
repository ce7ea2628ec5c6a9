//! Racks on any hosts, joined by TCP. One-sided operations are executed by a thread of the
//! target's fabric, whatever the target's daemon does.
//!
//! The frames, the states and what happens at each crash: `docs/design/tcp.md`.

mod address;
mod buffer;
mod connector;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod hello;
mod inbox;
mod poster;
mod provider;
mod receive_spin;
mod server;
mod socket;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::{Keyring, MemoryRegion, ReceiveRoom};

pub use provider::TcpFabric;

/// How a [`TcpFabric`] is set up.
pub struct Options {
    /// The rack whose fabric it is.
    pub rack: RackId,
    /// This life of its daemon.
    pub incarnation: Incarnation,
    /// Where peers connect to: an address that they can reach; port 0 takes a free one. Without a
    /// key it has to be a loopback address.
    pub listen: SocketAddr,
    /// The secret of the pool. Racks with different keys, or only one with a key, refuse each
    /// other.
    pub key: Keyring,
    /// After what time of silence a connection counts as dead: 1 s to 10 min. An idle one is
    /// noticed at most 2 s later.
    pub dead_after: Duration,
    /// What peers may access; the frames first.
    pub exports: Vec<Arc<dyn MemoryRegion>>,
    /// For the buffers into which the sockets of all peers are read.
    pub receive_room: ReceiveRoom,
}

impl Options {
    /// The defaults: a free port of 127.0.0.1, no key, 5 s, nothing exported yet.
    #[must_use]
    pub fn new(rack: RackId, incarnation: Incarnation) -> Self {
        Self {
            rack,
            incarnation,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            key: Keyring::unused(),
            dead_after: Duration::from_secs(5),
            exports: Vec::new(),
            receive_room: ReceiveRoom::new(0),
        }
    }
}
