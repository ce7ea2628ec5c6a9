//! What the control plane and the data plane tell each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rackpool_model::{ClientId, PageId, RackId};
use rackpool_ring::client_file::ClientFile;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::metadata::Member;
use tokio::sync::oneshot;

/// From the control plane.
#[derive(Debug)]
pub(crate) enum Command {
    /// A client has connected, or come back.
    Admit {
        client: ClientId,
        /// Its file; `None` when it comes back to a daemon that has adopted it.
        file: Option<Arc<ClientFile>>,
        /// The event that it rings.
        doorbell: OwnedFd,
        /// Told whether the client is served now.
        admitted: oneshot::Sender<bool>,
    },
    /// A client has gone, in whatever way.
    Gone { client: ClientId },
    /// The members of the pool.
    Members(Vec<Member>),
    /// What the metadata server says of a page.
    Located { page: PageId, home: Located },
    /// The daemon shall end.
    Stop,
}

/// What the metadata server says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    Home(RackId),
    NoSuchPage,
    Lost,
    Unreachable,
}

/// To the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Ask the metadata server who the members are.
    Meet,
    /// Ask the metadata server where the page is.
    Locate(PageId),
    /// Everything of the client has been taken back: its file can go.
    Reclaimed(ClientId),
}

/// Counts for people, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) free_frames: AtomicU64,
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) clients: AtomicU64,
    pub(crate) remote_operations: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

/// Sets a figure.
pub(crate) fn set(figure: &AtomicU64, value: u64) {
    figure.store(value, Ordering::Relaxed);
}

/// Counts one more; only the data plane counts, so this needs no atomic addition.
pub(crate) fn count(figure: &AtomicU64) {
    figure.store(figure.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Reads a figure.
pub(crate) fn get(figure: &AtomicU64) -> u64 {
    figure.load(Ordering::Relaxed)
}
