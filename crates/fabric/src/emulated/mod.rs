//! Racks on one host, joined by shared memory and a model of latency and bandwidth.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use crate::MemoryRegion;

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
    /// Time from the last byte on the wire to its arrival: at most 10 s.
    pub latency: Duration,
    /// Bandwidth of each direction of a link, in Gbit/s: 0.001 or more.
    pub bandwidth_gbps: f64,
    /// What peers may access; the frames first.
    pub exports: Vec<ExportedRegion>,
    /// Maps what peers export.
    pub mapper: Arc<dyn Mapper>,
}
