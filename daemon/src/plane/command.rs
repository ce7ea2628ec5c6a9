//! What the control plane and the data plane tell each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dashmap::DashMap;
use rackpool_fabric::DeviceCounters;
use rackpool_metrics::Histogram;
use rackpool_model::{ClientId, FrameId, PageId, RackId, StorePosition};
use rackpool_ring::client_file::ClientFile;
use rackpool_rrpc::Thresholds;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::history::{PageHeat, PageHistory};
use rackpool_wire::metadata::Member;
use rackpool_wire::swap::{FromServer, ToServer};
use tokio::sync::oneshot;

use super::share::ShareMetrics;
use super::swap::SwapMetrics;

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
    /// The metadata server's last commit: noted before anything is done because of it.
    Committed(StorePosition),
    /// What the metadata server says about a swap.
    ServerSent(FromServer),
    /// What is known of a page?
    PageHistory { page: PageId, answer: oneshot::Sender<PageHistory> },
    /// Which pages are the hottest?
    TopPages { limit: u16, answer: oneshot::Sender<Vec<PageHeat>> },
    /// The reserver has got memory for a frame, or there is none.
    Reserved { frame: FrameId, is_there: bool },
    /// The reserver has given a frame's memory back.
    Released { frame: FrameId },
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
pub(crate) enum ControlNotification {
    /// Ask the metadata server who the members are.
    Meet,
    /// Ask the metadata server where the page is.
    Locate(PageId),
    /// Everything of the client has been taken back: its file can go.
    Reclaimed(ClientId),
    /// Tell the metadata server this about a swap. It may get lost.
    TellServer(ToServer),
}

/// Counts for people, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct PlaneMetrics {
    pub(crate) free_frames: AtomicU64,
    /// Of the other racks that can be reached: all frames, and free ones.
    pub(crate) other_frames: AtomicU64,
    pub(crate) other_free_frames: AtomicU64,
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) clients: AtomicU64,
    /// 1 while the daemon is registered and the metadata server answers, else 0. The link's.
    pub(crate) is_member: AtomicU64,
    pub(crate) remote_operations: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    /// Requests to other racks that were answered, by how their data travelled.
    pub(crate) pure_requests: AtomicU64,
    pub(crate) then_one_sided_requests: AtomicU64,
    pub(crate) zero_copy_requests: AtomicU64,
    /// One-sided operations posted, messages sent, and the doorbells for both.
    pub(crate) posted: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    /// Accesses in the rack that clients have noted, each for as many as it stands for.
    pub(crate) local_accesses: AtomicU64,
    /// How long one-sided operations of clients took, of a sample.
    pub(crate) remote_times: Histogram,
    pub(crate) swaps: SwapMetrics,
    pub(crate) sharing: ShareMetrics,
    /// What the fabric asked of its device.
    pub(crate) device_requests: AtomicU64,
    pub(crate) device_doorbells: AtomicU64,
    pub(crate) device_completions: AtomicU64,
    pub(crate) device_signalled: AtomicU64,
    pub(crate) device_inlined: AtomicU64,
    /// For each rack this one is connected to. The data plane writes it while connections of the
    /// control plane read it: it waits at most until one of them has copied a few entries.
    thresholds: DashMap<RackId, Thresholds>,
}

impl PlaneMetrics {
    /// What has been asked of other racks so far.
    pub(crate) fn set_requests(&self, metrics: &rackpool_rrpc::RpcMetrics) {
        set(&self.pure_requests, metrics.pure);
        set(&self.then_one_sided_requests, metrics.then_one_sided);
        set(&self.zero_copy_requests, metrics.zero_copy);
        set(&self.posted, metrics.operations);
        set(&self.messages, metrics.messages);
        set(&self.doorbells, metrics.doorbells);
    }

    /// What has been asked of the fabric's device so far.
    pub(crate) fn set_device(&self, metrics: DeviceCounters) {
        set(&self.device_requests, metrics.requests);
        set(&self.device_doorbells, metrics.doorbells);
        set(&self.device_completions, metrics.completions);
        set(&self.device_signalled, metrics.signalled);
        set(&self.device_inlined, metrics.inlined);
    }

    /// How requests to a rack are done from now on.
    pub(crate) fn note_thresholds(&self, rack: RackId, thresholds: Thresholds) {
        self.thresholds.insert(rack, thresholds);
    }

    /// There is no connection to the rack any more.
    pub(crate) fn forget_thresholds(&self, rack: RackId) {
        self.thresholds.remove(&rack);
    }

    /// For each connected rack, for people.
    pub(crate) fn thresholds(&self) -> Vec<(RackId, String)> {
        let entries = self.thresholds.iter();
        let mut all: Vec<_> = entries.map(|entry| (*entry.key(), *entry.value())).collect();
        all.sort_unstable_by_key(|(rack, _)| *rack);
        all.into_iter().map(|(rack, thresholds)| (rack, thresholds.to_string())).collect()
    }
}

/// Sets a metric.
pub(crate) fn set(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

/// Counts one more; only the data plane counts, so this needs no atomic addition.
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Reads a metric.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
