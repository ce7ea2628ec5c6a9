//! How the daemon learns of its clients' processes and reaches them.
//!
//! A client on another host that maps the same CXL device has no process id, futex word or
//! processor here. Such clients need an implementation of [`ClientHost`] of their own.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use rackpool_shm::superblock::OwnerProcess;
use rackpool_sync::atomic::AtomicU32;
use rackpool_sync::{barrier, futex};

use crate::process;

/// The host on which clients run.
pub(crate) trait ClientHost: Debug + Send + Sync {
    /// Returns the identity of the process with this id.
    fn identify(&self, pid: u64) -> OwnerProcess;

    /// Returns true while the process lives.
    fn is_alive(&self, process: OwnerProcess) -> bool;

    /// Returns a descriptor that becomes readable when the process ends.
    fn watch(&self, process: OwnerProcess) -> Option<OwnedFd>;

    /// Wakes the threads that sleep on a word of a client's file.
    fn wake(&self, word: &AtomicU32);

    /// Makes every earlier store of the clients' threads visible to this thread. After it, a client
    /// that stores its access slot loads page words no older than those stored before it.
    fn barrier(&self);
}

/// The host of the daemon.
#[derive(Debug)]
pub(crate) struct SameHost;

impl ClientHost for SameHost {
    fn identify(&self, pid: u64) -> OwnerProcess {
        OwnerProcess { pid, started: process::started(pid).unwrap_or(0) }
    }

    fn is_alive(&self, OwnerProcess { pid, started }: OwnerProcess) -> bool {
        process::is_alive(pid, started)
    }

    fn watch(&self, process: OwnerProcess) -> Option<OwnedFd> {
        process::watch(process.pid)
    }

    fn wake(&self, word: &AtomicU32) {
        futex::wake_all(word);
    }

    fn barrier(&self) {
        barrier::heavy();
    }
}
