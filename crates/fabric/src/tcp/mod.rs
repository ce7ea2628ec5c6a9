//! A fabric between racks on any hosts, over TCP. A thread of the target's fabric executes
//! one-sided operations, independently of the target's daemon.
//!
//! `docs/design/tcp.md` describes the frames, the states and the crashes.

mod buffer;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inbox;
mod offer;
mod poster;
mod provider;
mod receive_spin;
mod server;
mod transport;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::{Keyring, MemoryRegion, ReceiveRoom};

pub use provider::TcpFabric;

/// Options of a [`TcpFabric`].
pub struct TcpOptions {
    /// The rack that owns the fabric.
    pub rack: RackId,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
    /// The address to which peers connect; they must be able to reach it. Port 0 takes a free port.
    /// Without a key, it must be a loopback address.
    pub listen: SocketAddr,
    /// The pool's key. Racks with different keys refuse each other, and so do a rack with a key and
    /// one without.
    pub key: Keyring,
    /// Time without an answer after which a connection counts as dead: 1 s to 10 min. On an idle
    /// connection, detection takes up to 2 s longer.
    pub dead_after: Duration,
    /// The memory that peers may access; the frames first.
    pub exports: Vec<Arc<dyn MemoryRegion>>,
    /// Room for the buffers into which the sockets of all peers are read.
    pub receive_room: ReceiveRoom,
}

impl TcpOptions {
    /// Returns the defaults: a free port of 127.0.0.1, no key, 5 s and no exports.
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
