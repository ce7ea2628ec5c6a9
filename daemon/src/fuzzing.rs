//! The allocator and the data plane without sockets and without a metadata server, for
//! `rackpool-fuzz`: what other processes write is put in by hand, one step at a time.

mod fabric;
mod plane;
mod slab;

pub use plane::{ClientUnderTest, PlaneUnderTest};
pub use slab::SlabUnderTest;
