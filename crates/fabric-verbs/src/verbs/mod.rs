//! libibverbs as safe types: everything unsafe of this crate.
//!
//! The types own what the library made and give it back when they are dropped, dependants first:
//! each holds on to what it was made from. Why the operations that the hardware carries out later
//! are safe: it reaches only memory that is registered at that moment, a registration keeps its
//! memory mapped, and all registered memory is memory that others may write at any time.

mod abi;
mod device;
mod library;
mod memory;
mod queue;
mod sends;

pub(crate) use device::{Context, Devices, Domain, GidEntry, PortState, open_devices};
pub use library::LoadError;
pub(crate) use memory::{Buffers, Registration, Slice};
pub(crate) use queue::{Channel, Completion, CompletionQueue, Depth, Path, QueuePair, Status};
pub(crate) use sends::{Action, Remote, Request};

/// The error that the last call of the library left behind.
fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// The result of a call that returns an error number.
fn check(code: std::ffi::c_int) -> std::io::Result<()> {
    match code {
        0 => Ok(()),
        // Some providers leave the number in errno.
        ..0 => Err(last_error()),
        number => Err(std::io::Error::from_raw_os_error(number)),
    }
}
