//! Racks on one host, joined by shared memory and a model of latency and bandwidth.
//!
//! The formats, the states and what happens at each crash: `docs/design/fabric.md`.

mod connector;
mod copy;
mod endpoint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod hello;
mod link;
mod listener;
mod model;
mod provider;
mod ring;
mod sleep;
mod socket;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::MemoryRegion;

pub use model::MIN_BANDWIDTH_GBPS;
pub use provider::EmulatedFabric;

/// Maps memory that a peer exports. The owner of the fabric provides it, because mapping is
/// unsafe code.
pub trait Mapper: Send + Sync {
    /// Maps the first `len` bytes of the file for reading and writing.
    fn map(&self, fd: OwnedFd, len: u64) -> io::Result<Arc<dyn MemoryRegion>>;
}

/// Memory that peers may read and write with one-sided operations.
#[derive(Debug)]
pub struct ExportedRegion {
    /// The file, opened for reading and writing.
    pub fd: OwnedFd,
    /// How many bytes of it.
    pub len: u64,
}

/// How an [`EmulatedFabric`] is set up.
pub struct EmulatedOptions {
    /// The rack whose fabric it is.
    pub rack: RackId,
    /// This life of its daemon.
    pub incarnation: Incarnation,
    /// Path of the Unix socket on which peers connect. A stale socket there is replaced.
    pub listen: PathBuf,
    /// Time from the last byte on the wire to the arrival of a message, and until the poster of an
    /// operation is told that it is done; its bytes are there after half of it. At most 10 s.
    pub latency: Duration,
    /// Bandwidth of each direction of a link, in Gbit/s: [`MIN_BANDWIDTH_GBPS`] or more.
    pub bandwidth_gbps: f64,
    /// What peers may access; the frames first.
    pub exports: Vec<ExportedRegion>,
    /// Maps what peers export.
    pub mapper: Arc<dyn Mapper>,
}

impl EmulatedOptions {
    /// The defaults: 2 us and 100 Gbit/s, nothing exported yet.
    #[must_use]
    pub fn new(
        rack: RackId,
        incarnation: Incarnation,
        listen: PathBuf,
        mapper: Arc<dyn Mapper>,
    ) -> Self {
        Self {
            rack,
            incarnation,
            listen,
            latency: Duration::from_micros(2),
            bandwidth_gbps: 100.0,
            exports: Vec::new(),
            mapper,
        }
    }
}
