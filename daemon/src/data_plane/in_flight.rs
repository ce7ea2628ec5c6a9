//! The bytes in flight to this rack, for operators. See docs/design/in-flight.md.

use std::sync::atomic::AtomicU64;

use rackpool_rrpc::InFlight;
use rackpool_wire::control::{BytesInFlight, InFlightStatus};

use super::command::{get, set};

/// Bytes of one kind.
#[derive(Debug, Default)]
pub(crate) struct BytesMetrics {
    pub(crate) limit: AtomicU64,
    pub(crate) used: AtomicU64,
    pub(crate) peak: AtomicU64,
}

/// The bytes in flight, by what they belong to.
#[derive(Debug, Default)]
pub(crate) struct InFlightMetrics {
    pub(crate) requests: BytesMetrics,
    pub(crate) reads: BytesMetrics,
    /// `used` is what peers may have in flight.
    pub(crate) peer_writes: BytesMetrics,
}

impl BytesMetrics {
    fn set(&self, found: rackpool_rrpc::BytesInFlight) {
        set(&self.limit, found.limit);
        set(&self.used, found.used);
        set(&self.peak, found.peak);
    }

    fn status(&self) -> BytesInFlight {
        BytesInFlight { limit: get(&self.limit), used: get(&self.used), peak: get(&self.peak) }
    }
}

impl InFlightMetrics {
    /// Sets all of them.
    pub(crate) fn set(&self, found: &InFlight) {
        self.requests.set(found.requests);
        self.reads.set(found.reads);
        self.peer_writes.set(found.peer_writes);
    }

    /// The same for a report.
    pub(crate) fn status(&self) -> InFlightStatus {
        InFlightStatus {
            requests: self.requests.status(),
            reads: self.reads.status(),
            peer_writes: self.peer_writes.status(),
        }
    }
}
