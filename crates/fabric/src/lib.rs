//! Communication between racks: the [`Fabric`] trait and its providers.
//!
//! A fabric moves bytes between the memories of two racks by one-sided reads and writes, posted in
//! lists, without the CPU of the peer's daemon. It also carries messages between the daemons. One
//! thread owns and polls a fabric. The caller supplies the memory ([`MemoryRegion`]), so this crate
//! needs no unsafe code.
//!
//! The provider [`emulated`] connects racks on one host; [`tcp`] connects racks on any hosts. All
//! providers share the [`handshake`] and the [`connector`]. The feature `conformance` adds a suite
//! that every provider passes, and decorators for tests: `conformance::fault` injects delays,
//! reordering and connection losses into a fabric; `conformance::throttle` limits its latency and
//! bandwidth.
#![forbid(unsafe_code)]

mod boxed;
mod error;
mod fabric;
mod key;
mod keyring;
mod receive_room;
mod refusals;
mod region;
mod regions;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod connector;
pub mod emulated;
pub mod handshake;
pub mod ip_socket;
pub mod tcp;

pub use error::{DisconnectReason, ErrorClass, FabricError, FabricStartError, OutOfRange, Unsent};
pub use fabric::{
    DeviceCounters, EndpointId, Event, Fabric, MAX_MESSAGE, Operation, RegionId, RemoteRegion,
    Transfer, WorkRequest,
};
pub use key::{PROOF_BYTES, Role, Transcript};
pub use keyring::Keyring;
pub use receive_room::{Portion, ReceiveRoom};
pub use region::MemoryRegion;
