//! How racks reach each other: the [`Fabric`] trait and its providers.
//!
//! A fabric moves bytes between the memories of two racks without the other daemon's CPU
//! (one-sided reads and writes, posted in lists) and carries messages between the daemons. It is
//! owned and polled by one thread. The caller brings the memory ([`MemoryRegion`]), so that no
//! unsafe code is needed here.
//!
//! The provider [`emulated`] connects racks on one host, [`tcp`] racks anywhere. Around either,
//! [`fault`] makes it worse and [`throttle`] slower.
#![forbid(unsafe_code)]

mod admission_limiter;
mod boxed;
mod error;
mod fabric;
mod held;
mod key;
mod keyring;
mod receive_room;
mod refusals;
mod region;
mod regions;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod emulated;
pub mod fault;
pub mod tcp;
pub mod throttle;

pub use admission_limiter::give_way;
pub use error::{DisconnectReason, ErrorClass, FabricError, OutOfRange, StartError, Unsent};
pub use fabric::{
    DeviceCounters, EndpointId, Event, Fabric, MAX_MESSAGE, Operation, RegionId, RemoteRegion,
    Transfer, WorkRequest,
};
pub use key::{PROOF_BYTES, Role, Transcript};
pub use keyring::Keyring;
pub use receive_room::{Portion, ReceiveRoom};
pub use refusals::Refusals;
pub use region::{BULK_BYTES, MemoryRegion};
