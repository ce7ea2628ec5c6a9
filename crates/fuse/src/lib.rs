//! Mounts a file system of the pool. `docs/design/mount.md` describes what the kernel may cache,
//! and recovery after kills.
//!
//! | module | holds |
//! |---|---|
//! | `options` | the command line |
//! | `run` | the life of a mount, from the command line to the unmount |
//! | `mount_point` | the folder: what is mounted there, detaching it, reading ahead |
//! | `watcher` | the process that detaches a mount whose process was killed |
//! | `session` | what is negotiated with the kernel |
//! | `device` | the kernel's requests, as bytes, and the answers |
//! | `handlers` | requests of the kernel, as calls of the volume |
//! | `waiting` | requests for locks that wait |
//! | `kernel_cached` | what the kernel may cache of a file's contents from open to open |
//! | `metrics` | counters for Prometheus |
//! | `reply` | attributes to set, and errors, in the kernel's terms |
#![forbid(unsafe_code)]

mod device;
mod handlers;
mod kernel_cached;
mod metrics;
mod mount_lifecycle;
mod mount_options;
mod mount_point;
mod reply;
pub mod session;
mod waiting;
mod watcher;

pub use mount_lifecycle::run;
pub use mount_options::MountOptions;
