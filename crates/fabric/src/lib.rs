//! How racks reach each other: the [`Fabric`] trait and its providers.
//!
//! A fabric moves bytes between the memories of two racks without the other daemon's CPU
//! (one-sided reads and writes, posted in lists) and carries messages between the daemons. It is
//! owned and polled by one thread. The caller brings the memory ([`MemoryRegion`]), so that no
//! unsafe code is needed here.
//!
//! The provider [`emulated`] connects racks on one host.
#![forbid(unsafe_code)]

mod error;
mod fabric;
mod region;
mod regions;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod emulated;

pub use error::{DisconnectReason, ErrorClass, FabricError, OutOfRange, StartError};
pub use fabric::{
    EndpointId, Event, Fabric, MAX_MESSAGE, Operation, RegionId, RemoteRegion, Transfer,
    WorkRequest,
};
pub use region::MemoryRegion;
