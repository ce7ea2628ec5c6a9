//! Safe types for libibverbs, with all unsafe code of this crate.
//!
//! Each type owns an object of the library and destroys it when dropped. Dependent objects are
//! dropped first: each type keeps a reference to the objects on which its own depends. Operations
//! that the hardware executes later are safe for these reasons: the hardware reaches only memory
//! that is registered at that time, a registration keeps its memory mapped, and all registered
//! memory is memory that others may write at any time.

mod abi;
mod device;
mod library;
mod memory;
mod queue;
mod sends;

#[cfg(any(test, feature = "layout"))]
pub use abi::table::{constants, functions, slots, structs};
pub(crate) use device::{Context, Devices, Domain, GidEntry, PortState, open_devices};
pub use library::LoadError;
pub(crate) use memory::{Buffers, Registration, Slice};
pub(crate) use queue::{Channel, Completion, CompletionQueue, Depth, Path, QueuePair, Status};
pub(crate) use sends::{Action, Remote, Request};

/// The error of the library's last call, from errno.
fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// The result of a call that returns an error number.
fn check(code: std::ffi::c_int) -> std::io::Result<()> {
    match code {
        0 => Ok(()),
        // Some providers return a negative value and leave the error number in errno.
        ..0 => Err(last_error()),
        number => Err(std::io::Error::from_raw_os_error(number)),
    }
}
