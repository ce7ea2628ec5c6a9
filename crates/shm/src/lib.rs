//! Rack memory: its files, how they are mapped, what lies where, and the local access path.
//!
//! | module | holds |
//! |---|---|
//! | [`access`] | access slots: how a client enters a page without a lock, how the daemon drains it |
//! | [`cache`] | the last-level cache and the part of it that devices use |
//! | [`child`] | a forked child of this process, for tests |
//! | `copy` | how bytes are copied, by size |
//! | [`delay`] | the extra latency of emulated CXL memory |
//! | [`directory`] | where a rack's files are |
//! | [`folder`] | whether other users can replace what lies in a folder |
//! | [`mod@file`] | creating, opening and locking them |
//! | [`Front`] | what a thread used last |
//! | [`machine`] | what this computer has: NUMA nodes, huge pages, mounts, RDMA cards |
//! | [`mapping`] | memory shared with other processes, as atomics and checked copies |
//! | [`metadata`] | page words, slab headers, object bitmaps, peer records |
//! | [`permit`] | whether this process may still use a pool |
//! | [`page_map`] | what is remembered of pages |
//! | [`memory`] | the kinds of memory the frames can lie in |
//! | [`numa`] | which node memory lies on |
//! | [`room`] | whether the files fit on their file system |
//! | [`marks`] | which small objects programs have |
//! | [`lines`] | what a thread writes in pages that move |
//! | [`samples`] | which pages a thread uses |
//! | [`published`] | copies of other racks' pages |
//! | [`superblock`] | what the first page of a file says |
//! | [`window`] | a thread's way into the frames: the hot path |
//!
//! `docs/design/rack-memory.md` has the byte diagrams.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "maps memory that other processes write"))]

pub mod access;
#[cfg(not(loom))]
pub mod cache;
#[cfg(not(loom))]
pub mod child;
#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
pub mod delay;
#[cfg(not(loom))]
pub mod directory;
pub mod dirty_log;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod folder;
#[cfg(not(loom))]
mod front;
#[cfg(not(loom))]
mod held;
pub mod host;
#[cfg(not(loom))]
pub mod mapping;
pub mod marks;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod metadata;
#[cfg(not(loom))]
pub mod numa;
#[cfg(not(loom))]
pub mod page_map;
#[cfg(not(loom))]
pub mod permit;
pub mod published;
#[cfg(not(loom))]
pub mod room;
#[cfg(not(loom))]
pub mod samples;
#[cfg(not(loom))]
pub mod superblock;
#[cfg(not(loom))]
pub mod window;

#[cfg(not(loom))]
pub use copy::Stores;
#[cfg(not(loom))]
pub use front::Front;
#[cfg(not(loom))]
pub use held::Held;
#[cfg(not(loom))]
pub use mapping::{Mapping, OutOfBounds, PopulateError, ReadOnlyMapping, Shared};
