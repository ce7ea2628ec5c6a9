//! The allocator and the data plane without sockets and without a metadata server, for tests and
//! fuzz targets, which supply the input of other processes, one step at a time.

mod fabric;
mod plane;
mod slab;

pub use crate::data_plane::MemoryMetrics;
pub use plane::{ClientUnderTest, PlaneUnderTest};
pub use slab::SlabUnderTest;
