//! The metadata server's metrics, for Prometheus.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rackpool_metrics::{Histogram, Page, Source, Unit};
use rackpool_model::RackId;
use rackpool_proto::metadata::{Change, OperatorEvent, RackState};
use rackpool_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rackpool_wire::metadata::MetadataRequest;

/// Names of the kinds of requests.
const REQUESTS: [&str; 9] = [
    "register",
    "heartbeat",
    "leave",
    "locate",
    "get_root",
    "put_root",
    "status",
    "swap",
    "explain",
];

/// Counters since the server's start.
#[derive(Debug, Default)]
pub(crate) struct ServerMetrics {
    requests: [AtomicU64; REQUESTS.len()],
    connections: AtomicU64,
    pushed: AtomicU64,
    joined: AtomicU64,
    left: AtomicU64,
    expired: AtomicU64,
    pages_moved: AtomicU64,
    commits: Histogram,
    commits_failed: AtomicU64,
    /// Set if the last commit failed.
    is_broken: AtomicBool,
    /// The racks and their states.
    racks: Mutex<Vec<(RackId, RackState)>>,
    /// When the certificate expires, in seconds since 1970.
    certificate_expiry: Option<u64>,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl ServerMetrics {
    /// Creates the metrics of a server whose certificate expires at this time.
    pub(crate) fn new(certificate_expiry: Option<u64>) -> Self {
        Self { certificate_expiry, ..Self::default() }
    }

    /// Sets the known racks.
    pub(crate) fn set_racks(&self, racks: Vec<(RackId, RackState)>) {
        *self.racks.lock().unwrap_or_else(PoisonError::into_inner) = racks;
    }

    fn show_racks(&self, page: &mut Page<'_>) -> fmt::Result {
        let racks = self.racks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let up: Vec<(String, u64)> = racks
            .iter()
            .filter(|(_, state)| *state != RackState::Left)
            .map(|(rack, state)| (rack.0.to_string(), u64::from(*state == RackState::Up)))
            .collect();
        let left = (racks.len() - up.len()) as u64;
        let help = "Whether the rack has a lease: 1 or 0. One that has left is not listed.";
        page.gauges("rack_up", "rack", help, Unit::None, &up)?;
        let help = "Racks whose daemons have ended on purpose.";
        page.gauge("racks_left", help, Unit::None, left)
    }

    /// Counts a request.
    pub(crate) fn asked(&self, request: &MetadataRequest) {
        let kind = match request {
            MetadataRequest::Register(_) => 0,
            MetadataRequest::Heartbeat { .. } => 1,
            MetadataRequest::Leave { .. } => 2,
            MetadataRequest::Locate { .. } => 3,
            MetadataRequest::GetRoot { .. } => 4,
            MetadataRequest::PutRoot { .. } => 5,
            MetadataRequest::Status => 6,
            MetadataRequest::Swap { .. } => 7,
            MetadataRequest::Explain { .. } => 8,
        };
        add(&self.requests[kind], 1);
    }

    /// Sets the number of connections.
    pub(crate) fn connected(&self, count: usize) {
        self.connections.store(count as u64, Ordering::Relaxed);
    }

    /// Counts a pushed message.
    pub(crate) fn pushed(&self) {
        add(&self.pushed, 1);
    }

    /// Counts an event of the machine.
    pub(crate) fn heard(&self, event: &OperatorEvent) {
        add(
            match event {
                OperatorEvent::Joined { .. } => &self.joined,
                OperatorEvent::Left { .. } => &self.left,
                OperatorEvent::Expired { .. } => &self.expired,
            },
            1,
        );
    }

    /// Records a commit of `moved` pages' homes: its duration, and whether it became durable.
    pub(crate) fn written(&self, moved: u64, took: Duration, durable: bool) {
        self.commits.record(took);
        self.is_broken.store(!durable, Ordering::Relaxed);
        if durable {
            add(&self.pages_moved, moved);
        } else {
            add(&self.commits_failed, 1);
        }
    }
}

/// Returns the number of pages that get another home by these changes.
pub(crate) fn moves(changes: &[Change]) -> u64 {
    changes.iter().filter(|change| matches!(change, Change::PageMoved(_))).count() as u64
}

impl Source for ServerMetrics {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        let requests: Vec<_> = REQUESTS.into_iter().zip(self.requests.iter().map(get)).collect();
        page.counters(
            "metadata_requests",
            "kind",
            "Requests to the metadata server.",
            Unit::None,
            &requests,
        )?;
        page.gauge(
            "metadata_connections",
            "Connections of racks, clients and commands.",
            Unit::None,
            get(&self.connections),
        )?;
        page.counter(
            "metadata_pushes",
            "Notifications about swaps sent to racks.",
            Unit::None,
            get(&self.pushed),
        )?;
        page.counters(
            "racks",
            "event",
            "Racks that joined, left on purpose, or sent no heartbeat within their lease.",
            Unit::None,
            &[
                ("joined", get(&self.joined)),
                ("left", get(&self.left)),
                ("expired", get(&self.expired)),
            ],
        )?;
        page.counter(
            "metadata_pages_moved",
            "Pages that got another home by swaps, durably.",
            Unit::None,
            get(&self.pages_moved),
        )?;
        self.show_racks(page)?;
        if let Some(expiry) = self.certificate_expiry {
            page.certificate_expiry(expiry)?;
        }
        page.times("metadata_commit", "Time of durable commits.", &self.commits)?;
        page.counter(
            "metadata_commits_failed",
            "Commits that did not become durable.",
            Unit::None,
            get(&self.commits_failed),
        )
    }

    fn health(&self) -> Result<(), String> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err("the last change could not be made durable: see the log".into());
        }
        Ok(())
    }
}
