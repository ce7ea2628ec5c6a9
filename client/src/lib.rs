//! The client library of rackpool: a pool of memory that spans racks.
//!
//! Open a [`Pool`] through the daemon of your rack, allocate an object, and use its [`GlobalAddr`]
//! from any thread, any process and any rack. The client loads and stores memory of its own rack
//! directly; it reaches memory of other racks through its daemon.
//!
//! ```no_run
//! use rackpool_client::{ClientOptions, Pool, RackId};
//!
//! let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
//! let addr = pool.alloc(64)?;
//! pool.write(addr, b"hello, racks")?;
//! let mut bytes = [0; 12];
//! pool.read(addr, &mut bytes)?;
//! assert_eq!(&bytes, b"hello, racks");
//! pool.free(addr)?;
//! pool.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//! Aligned accesses of 1, 2, 4 and 8 bytes are atomic; larger ones are not. A thread sees its own
//! operations in program order. [`Pool::compare_and_swap`] and [`Pool::fetch_and_add`] are
//! linearizable across racks. `docs/SEMANTICS.md` and `docs/semantics/memory.md` list every
//! guarantee with the test that checks it.
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod atomic_batch;
mod atomics;
mod cache;
mod calls;
mod cells;
mod client_options;
mod connection;
mod control;
mod deadline;
mod error;
mod extents;
mod fixed;
mod fixed_read;
mod free;
mod in_place;
mod keeper;
mod line_cache;
mod locks;
mod object;
mod outbox;
mod pin;
mod pinned_words;
mod pool;
mod remote;
mod reservation;
mod siblings;
mod slots;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod thread;
mod transfer;
mod translation;
mod value;

pub use client_options::ClientOptions;
pub use deadline::within;
pub use error::{
    AccessError, AllocError, DaemonError, FreeError, LockError, NoCell, OpenError, OutOfMemory,
    RootError,
};
pub use extents::Extent;
pub use fixed_read::PinnedChunkMut;
pub use in_place::{MapError, PinnedBytes, PinnedBytesMut};
pub use object::Object;
pub use pin::{Pin, PinError};
pub use pinned_words::PinnedWords;
pub use pool::{CompareAndSwap, Pool, ReadGuard, ReadRequest, WriteGuard, WriteRequest};
pub use rackpool_model::{GlobalAddr, PageSize, RackId, RootUpdate};
pub use rackpool_wire::bounds::OutOfBounds;
pub use rackpool_wire::control::RackStatus;
pub use reservation::{PublishCas, PublishMode, Reservation};
pub use zerocopy;
