//! A fabric between racks of one host, over shared memory, with modelled latency and bandwidth.
//!
//! `docs/design/fabric.md` describes the formats, the states and the crashes.

mod card;
mod copy;
mod endpoint;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod link;
mod listener;
mod memfd;
mod model;
pub mod numa;
mod peer;
mod provider;
mod ring;
mod sleep;
mod socket;
mod transport;
mod wire;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::MemoryRegion;

pub use model::MIN_BANDWIDTH_GBPS;
pub use numa::NumaModel;
pub use provider::EmulatedFabric;

/// Maps memory that a peer exports. The owner of the fabric implements it, because mapping needs
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
    /// Length of the exported part, from the start of the file, in bytes.
    pub len: u64,
}

/// Options of an [`EmulatedFabric`].
pub struct EmulatedOptions {
    /// The rack that owns the fabric.
    pub rack: RackId,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
    /// Path of the Unix socket on which peers connect. A stale socket file is replaced.
    pub listen: PathBuf,
    /// Time from the last byte on the wire to the arrival of a message or the completion of an
    /// operation, at most 10 s. The bytes of an operation are in place after half of it.
    pub latency: Duration,
    /// Bandwidth of each direction of the rack's card, in Gbit/s: [`MIN_BANDWIDTH_GBPS`] or more.
    /// All bytes that the rack exchanges with others share it, whichever side posts.
    pub bandwidth_gbps: f64,
    /// The memory that peers may access; the frames first.
    pub exports: Vec<ExportedRegion>,
    /// A model of the NUMA nodes and caches of the rack's host; `None` for no such effects.
    pub numa: Option<NumaModel>,
    /// Maps the memory that peers export.
    pub mapper: Arc<dyn Mapper>,
}

impl EmulatedOptions {
    /// Returns the defaults: 2 us, 100 Gbit/s, no exports and no NUMA effects.
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
            numa: None,
            mapper,
        }
    }
}
