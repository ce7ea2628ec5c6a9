//! Messages between the control plane and the data plane, and the metrics that they share.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use rackpool_fabric::DeviceCounters;
use rackpool_metrics::Histogram;
use rackpool_model::{ClientId, FrameId, PageId, RackId, StorePosition};
pub(crate) use rackpool_proto::Located;
use rackpool_ring::client_file::ClientFile;
use rackpool_rrpc::Thresholds;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_wire::control::FixedStatus;
use rackpool_wire::history::{PageHeat, PageHistory};
use rackpool_wire::metadata::Member;
use rackpool_wire::swap::{FromServer, ToServer};
use tokio::sync::oneshot;

use super::in_flight::InFlightMetrics;
use super::share::ShareMetrics;
use super::swap::SwapMetrics;
use crate::slab::FixedUse;

/// A command of the control plane.
#[derive(Debug)]
pub(crate) enum Command {
    /// A client has connected or reconnected.
    Admit {
        client: ClientId,
        /// The client's file; `None` for a client that reconnects to a daemon that has adopted the
        /// file.
        file: Option<Arc<ClientFile>>,
        /// The eventfd by which the data plane is woken for the client's requests.
        doorbell: OwnedFd,
        /// Receives whether the client is served now.
        admitted: oneshot::Sender<bool>,
    },
    /// A client has closed the pool or its process has ended.
    Gone { client: ClientId },
    /// The members of the pool have changed.
    Members(Vec<Member>),
    /// The metadata server's answer about a page's home.
    /// `question` is the number of the question; 0 after `Locate`.
    Located { page: PageId, question: u64, home: Located },
    /// The metadata server's last commit. It is stored before the data plane acts on what follows.
    Committed(StorePosition),
    /// A swap message of the metadata server.
    ServerSent(FromServer),
    /// Request for a page's history.
    PageHistory { page: PageId, answer: oneshot::Sender<PageHistory> },
    /// Request for the hottest pages.
    TopPages { limit: u16, answer: oneshot::Sender<Vec<PageHeat>> },
    /// The reserver has allocated memory for a frame, or (`is_there` false) could not.
    Reserved { frame: FrameId, is_there: bool },
    /// The reserver has returned a frame's memory to the file system.
    Released { frame: FrameId },
    /// Stop the data plane.
    Stop,
}

/// A notification for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlNotification {
    /// Ask the metadata server for the members of the pool.
    Meet,
    /// Ask the metadata server for the page's home.
    Locate(PageId),
    /// The same, for a question of the rack's machine.
    Find { page: PageId, question: u64 },
    /// Everything that the client held is reclaimed: its file can be removed.
    Reclaimed(ClientId),
    /// Send the metadata server this swap message. The message may be lost.
    TellServer(ToServer),
}

/// Metrics for operators, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct PlaneMetrics {
    pub(crate) free_frames: AtomicU64,
    /// All frames, and the free frames, of the other reachable racks.
    pub(crate) other_frames: AtomicU64,
    pub(crate) other_free_frames: AtomicU64,
    pub(crate) allocated_bytes: AtomicU64,
    pub(crate) fixed: FixedMetrics,
    pub(crate) in_flight: InFlightMetrics,
    pub(crate) clients: AtomicU64,
    /// 1 while the daemon is registered and the metadata server answers, else 0. Written by the
    /// link.
    pub(crate) is_member: AtomicU64,
    pub(crate) remote_operations: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    /// Answered requests to other racks, by how their data travelled.
    pub(crate) pure_requests: AtomicU64,
    pub(crate) then_one_sided_requests: AtomicU64,
    pub(crate) zero_copy_requests: AtomicU64,
    /// Posted one-sided operations, sent messages, and doorbells for both.
    pub(crate) posted: AtomicU64,
    pub(crate) messages: AtomicU64,
    pub(crate) doorbells: AtomicU64,
    /// Accesses within the rack that clients have sampled, each weighted by the accesses it stands
    /// for.
    pub(crate) local_accesses: AtomicU64,
    /// Durations of a sample of the clients' one-sided operations.
    pub(crate) remote_times: Histogram,
    pub(crate) swaps: SwapMetrics,
    pub(crate) sharing: ShareMetrics,
    pub(crate) locks: LockMetrics,
    /// Counters of the fabric's device.
    pub(crate) device_requests: AtomicU64,
    pub(crate) device_doorbells: AtomicU64,
    pub(crate) device_completions: AtomicU64,
    pub(crate) device_signalled: AtomicU64,
    pub(crate) device_inlined: AtomicU64,
    /// The other racks that are alive. The data plane writes the list when the members of the pool
    /// change.
    other_racks: Mutex<Vec<RackId>>,
    /// Thresholds for each connected rack. The data plane writes the map while connections of the
    /// control plane read it; a write waits at most while a reader copies a few entries.
    thresholds: DashMap<RackId, Thresholds>,
}

/// Metrics of locks, written by the data plane.
#[derive(Debug, Default)]
pub(crate) struct LockMetrics {
    /// Locks of this rack's pages that are held or requested, except those that clients took alone.
    pub(crate) known: AtomicU64,
    /// Locks of this rack's pages that the daemon has granted.
    pub(crate) granted: AtomicU64,
    /// Those among them whose last writer had ended without an unlock.
    pub(crate) recovered: AtomicU64,
    /// Locks that clients of this rack have lost.
    pub(crate) lost: AtomicU64,
    /// Locks of other racks' lines that ended with bytes that the daemon wrote back.
    pub(crate) written_back: AtomicU64,
}

/// What fixed memory takes: see [`FixedUse`].
#[derive(Debug, Default)]
pub(crate) struct FixedMetrics {
    pub(crate) objects: AtomicU64,
    pub(crate) object_bytes: AtomicU64,
    pub(crate) extents: AtomicU64,
    pub(crate) extent_bytes: AtomicU64,
    pub(crate) retired: AtomicU64,
    pub(crate) retired_bytes: AtomicU64,
}

impl FixedMetrics {
    /// Sets all of them.
    pub(crate) fn set(&self, found: FixedUse) {
        set(&self.objects, found.objects);
        set(&self.object_bytes, found.object_bytes);
        set(&self.extents, found.extents);
        set(&self.extent_bytes, found.extent_bytes);
        set(&self.retired, found.retired);
        set(&self.retired_bytes, found.retired_bytes);
    }

    /// The same for a report.
    pub(crate) fn status(&self) -> FixedStatus {
        FixedStatus {
            objects: get(&self.objects),
            object_bytes: get(&self.object_bytes),
            extents: get(&self.extents),
            extent_bytes: get(&self.extent_bytes),
            retired: get(&self.retired),
            retired_bytes: get(&self.retired_bytes),
        }
    }
}

impl PlaneMetrics {
    /// Sets the counters of requests to other racks.
    pub(crate) fn set_requests(&self, metrics: &rackpool_rrpc::RpcMetrics) {
        set(&self.pure_requests, metrics.pure);
        set(&self.then_one_sided_requests, metrics.then_one_sided);
        set(&self.zero_copy_requests, metrics.zero_copy);
        set(&self.posted, metrics.operations);
        set(&self.messages, metrics.messages);
        set(&self.doorbells, metrics.doorbells);
    }

    /// Sets the counters of the fabric's device.
    pub(crate) fn set_device(&self, metrics: DeviceCounters) {
        set(&self.device_requests, metrics.requests);
        set(&self.device_doorbells, metrics.doorbells);
        set(&self.device_completions, metrics.completions);
        set(&self.device_signalled, metrics.signalled);
        set(&self.device_inlined, metrics.inlined);
    }

    /// Stores which other racks are alive.
    pub(crate) fn note_other_racks(&self, racks: Vec<RackId>) {
        *self.other_racks.lock().unwrap_or_else(PoisonError::into_inner) = racks;
    }

    /// Returns the other racks that are alive.
    pub(crate) fn other_racks(&self) -> Vec<RackId> {
        self.other_racks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the thresholds for requests to a rack.
    pub(crate) fn note_thresholds(&self, rack: RackId, thresholds: Thresholds) {
        self.thresholds.insert(rack, thresholds);
    }

    /// Removes the thresholds of a rack whose connection has ended.
    pub(crate) fn forget_thresholds(&self, rack: RackId) {
        self.thresholds.remove(&rack);
    }

    /// Returns the thresholds of each connected rack as text, for operators.
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

/// Adds 1. Only the data plane counts, so no atomic addition is needed.
pub(crate) fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Reads a metric.
pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
