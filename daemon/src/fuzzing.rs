//! The allocator and the data plane without sockets and without a metadata server, for
//! `rackpool-fuzz`. The fuzz target supplies the input of other processes, one step at a time.

mod fabric;
mod plane;
mod slab;

pub use crate::data_plane::MemoryMetrics;
pub use plane::{ClientUnderTest, PlaneUnderTest};
pub use slab::SlabUnderTest;
