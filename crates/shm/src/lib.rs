//! Rack memory: its files, how they are mapped, what lies where, and the local access path.
//!
//! | module | holds |
//! |---|---|
//! | [`access`] | access slots: how a client enters a page without a lock, how the daemon drains it |
//! | [`directory`] | where a rack's files are |
//! | [`mod@file`] | creating, opening and locking them |
//! | [`mapping`] | memory shared with other processes, as atomics and checked copies |
//! | [`metadata`] | page words, slab headers, object bitmaps, peer records |
//! | [`superblock`] | what the first page of a file says |
//! | [`window`] | a thread's way into the frames: the hot path |
//!
//! `docs/design/rack-memory.md` has the byte diagrams.
#![cfg_attr(not(loom), expect(unsafe_code, reason = "maps memory that other processes write"))]

pub mod access;
#[cfg(not(loom))]
pub mod directory;
#[cfg(not(loom))]
pub mod file;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod metadata;
#[cfg(not(loom))]
pub mod superblock;
#[cfg(not(loom))]
pub mod window;

#[cfg(not(loom))]
pub use mapping::{Mapping, OutOfBounds, ReadOnlyMapping, Shared};
