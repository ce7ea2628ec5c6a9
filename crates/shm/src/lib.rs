//! Rack memory: its files and mappings, the layouts in them, and the local access path.
//!
//! | module | holds |
//! |---|---|
//! | [`access`] | access slots: lock-free access to a page by a client, quiescing by the daemon |
//! | [`child_process`] | a forked child of this process, for tests |
//! | `copy` | copying of bytes, by size |
//! | [`delay`] | the extra latency of emulated CXL memory |
//! | [`directory`] | the paths of a rack's files |
//! | [`dirty_log`] | the lines that a thread writes in dirty-logged pages |
//! | [`mod@file`] | creating, opening and locking files |
//! | [`extent_owner`] | the head that an extent belongs to |
//! | [`folder`] | checks whether other users can replace the contents of a folder |
//! | [`Front`] | the object of a kind that a thread used last |
//! | [`HeldView`] | a checked view that keeps its mapping |
//! | [`host`] | what this computer has: NUMA nodes, caches, huge pages, mounts, RDMA cards; where to place what |
//! | [`lock_words`] | locks that clients take without their daemon |
//! | [`mapping`] | memory shared with other processes, as atomics and checked copies |
//! | [`marks`] | which small objects programs have |
//! | [`memory`] | the kinds of memory for frames |
//! | [`metadata`] | page words, slab headers, object bitmaps, peer records |
//! | [`numa`] | binding memory to NUMA nodes |
//! | [`page_map`] | a table that caches what is known of pages |
//! | [`permit`] | whether this process may still use a pool |
//! | [`published`] | published copies of other racks' pages |
//! | [`frame_bytes`] | bytes of frames as slices, for objects that are read in place |
//! | [`free_space`] | whether the files fit on their file system |
//! | [`access_samples`] | access samples of a thread |
//! | [`superblock`] | the first page of a file, which describes the rest |
//! | [`window`] | a thread's window into the frames: the fast path |
//!
//! `docs/design/rack-memory.md` has the byte diagrams.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "maps memory that other processes write"))]

pub mod access;
#[cfg(not(loom))]
pub mod access_samples;
#[cfg(not(loom))]
#[cfg(not(loom))]
pub mod child_process;
#[cfg(not(loom))]
mod copy;
#[cfg(not(loom))]
pub mod delay;
#[cfg(not(loom))]
pub mod directory;
pub mod dirty_log;
#[cfg(not(loom))]
pub mod extent_owner;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod folder;
#[cfg(not(loom))]
pub mod frame_bytes;
#[cfg(not(loom))]
pub mod free_space;
#[cfg(not(loom))]
mod front;
#[cfg(not(loom))]
mod held_file;
pub mod host;
pub mod line_cache;
pub mod lock_words;
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
pub mod superblock;
#[cfg(not(loom))]
pub mod window;

#[cfg(not(loom))]
pub use copy::Stores;
#[cfg(not(loom))]
pub use front::Front;
#[cfg(not(loom))]
pub use held_file::HeldView;
#[cfg(not(loom))]
pub use mapping::{Mapping, OutsideMapping, PopulateError, ReadOnlyMapping, Shared};
