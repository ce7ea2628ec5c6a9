//! The metrics of a rack, for Prometheus.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rackpool_access::Credentials;
use rackpool_metrics::{Page, Source, Unit};

use crate::data_plane::{BytesMetrics, InFlightMetrics, PlaneMetrics, get};
use crate::rack::Rack;

/// The sources of the metrics.
pub(crate) struct RackMetrics {
    rack: Arc<Rack>,
    metrics: Arc<PlaneMetrics>,
    /// When the certificate expires, in seconds since 1970.
    certificate_expiry: Option<u64>,
}

impl Source for RackMetrics {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        self.show_memory(page)?;
        self.show_requests(page)?;
        self.show_swaps(page)?;
        self.show_sharing(page)?;
        self.show_locks(page)?;
        self.certificate_expiry.map_or(Ok(()), |expiry| page.certificate_expiry(expiry))
    }

    fn health(&self) -> Result<(), String> {
        if get(&self.metrics.is_member) == 0 {
            return Err("the metadata server is away, or refuses this rack: see the log".into());
        }
        Ok(())
    }
}

impl RackMetrics {
    /// Returns the metrics of the rack and of the daemon with these credentials.
    pub(crate) fn of(
        rack: &Arc<Rack>,
        metrics: &Arc<PlaneMetrics>,
        credentials: Option<&Credentials>,
    ) -> Self {
        Self {
            rack: Arc::clone(rack),
            metrics: Arc::clone(metrics),
            certificate_expiry: credentials.and_then(Credentials::expiry),
        }
    }

    fn show_memory(&self, page: &mut Page<'_>) -> fmt::Result {
        let (metrics, geometry) = (&self.metrics, &self.rack.geometry);
        let frames = u64::from(geometry.frames);
        page.gauge(
            "rack",
            "The rack that this daemon serves.",
            Unit::None,
            geometry.rack.0.into(),
        )?;
        page.gauge("page_size", "Size of a page.", Unit::Bytes, geometry.page_size.bytes())?;
        page.gauge("frames", "Frames of the rack's memory.", Unit::None, frames)?;
        let free = get(&metrics.free_frames);
        page.gauge("free_frames", "Frames that hold no page.", Unit::None, free)?;
        let allocated = get(&metrics.allocated_bytes);
        page.gauge(
            "allocated",
            "Objects in use, caches of clients included.",
            Unit::Bytes,
            allocated,
        )?;
        self.show_fixed(page)?;
        self.show_in_flight(page)?;
        page.gauge("clients", "Connected clients.", Unit::None, get(&metrics.clients))?;
        let help = "Whether the metadata server has this rack as a member: 1 or 0.";
        page.gauge("member", help, Unit::None, get(&metrics.is_member))
    }

    fn show_fixed(&self, page: &mut Page<'_>) -> fmt::Result {
        let fixed = &self.metrics.fixed;
        let gauges = [
            ("fixed_objects", "Fixed objects in use.", Unit::None, &fixed.objects),
            ("fixed", "Fixed objects, without extents.", Unit::Bytes, &fixed.object_bytes),
            ("extents", "Extents of fixed objects.", Unit::None, &fixed.extents),
            ("extents", "Extents of fixed objects.", Unit::Bytes, &fixed.extent_bytes),
            (
                "retired_objects",
                "Fixed objects that were freed and that programs still pin.",
                Unit::None,
                &fixed.retired,
            ),
            ("retired", "Retired objects with their extents.", Unit::Bytes, &fixed.retired_bytes),
        ];
        gauges
            .into_iter()
            .try_for_each(|(name, help, unit, gauge)| page.gauge(name, help, unit, get(gauge)))
    }

    fn show_in_flight(&self, page: &mut Page<'_>) -> fmt::Result {
        let InFlightMetrics { requests, reads, peer_writes } = &self.metrics.in_flight;
        let parts = [("requests", requests), ("reads", reads), ("peer_writes", peer_writes)];
        let mut family = |name, help, value: fn(&BytesMetrics) -> &AtomicU64| {
            let values = parts.map(|(part, bytes)| (part.to_owned(), get(value(bytes))));
            page.gauges(name, "part", help, Unit::Bytes, &values)
        };
        family("in_flight", "Bytes in flight to this rack.", |bytes| &bytes.used)?;
        family("in_flight_peak", "The most that were in flight at once.", |bytes| &bytes.peak)?;
        family("in_flight_limit", "The most that may be in flight.", |bytes| &bytes.limit)
    }

    fn show_requests(&self, page: &mut Page<'_>) -> fmt::Result {
        let metrics = &self.metrics;
        let counters = [
            ("requests", "Requests of clients served.", &metrics.requests),
            (
                "local_accesses",
                "Accesses of clients to their own rack, estimated from a sample.",
                &metrics.local_accesses,
            ),
            (
                "remote_operations",
                "One-sided operations done for clients of this rack.",
                &metrics.remote_operations,
            ),
            ("posted_operations", "One-sided operations posted.", &metrics.posted),
            ("sent_messages", "Messages sent to other racks.", &metrics.messages),
            (
                "doorbells",
                "Doorbells for operations and messages, one for each rack and poll round.",
                &metrics.doorbells,
            ),
            (
                "device_requests",
                "Work requests for the RDMA device, or frames for the sockets.",
                &metrics.device_requests,
            ),
            (
                "device_doorbells",
                "Doorbells of the RDMA device, or writes to the sockets.",
                &metrics.device_doorbells,
            ),
            (
                "device_completions",
                "Completions polled from the RDMA device, or answers from the sockets.",
                &metrics.device_completions,
            ),
            (
                "device_signalled",
                "Work requests that were posted with a completion of their own (signaled).",
                &metrics.device_signalled,
            ),
            ("device_inlined", "Work requests with inline data.", &metrics.device_inlined),
            ("sleeps", "How often the data plane went to sleep.", &metrics.sleeps),
        ];
        for (name, help, counter) in counters {
            page.counter(name, help, Unit::None, get(counter))?;
        }
        page.counters(
            "rack_requests",
            "mode",
            "Requests to other racks, by the way their data was transferred.",
            Unit::None,
            &[
                ("pure", get(&metrics.pure_requests)),
                ("then_one_sided", get(&metrics.then_one_sided_requests)),
                ("zero_copy", get(&metrics.zero_copy_requests)),
            ],
        )?;
        page.times(
            "remote_operation",
            "Duration of one-sided operations for clients, from a sample.",
            &metrics.remote_times,
        )
    }

    fn show_sharing(&self, page: &mut Page<'_>) -> fmt::Result {
        let sharing = &self.metrics.sharing;
        page.gauge(
            "pages_shared",
            "Pages of this rack that other racks may copy.",
            Unit::None,
            get(&sharing.shared),
        )?;
        page.gauge(
            "copies",
            "Copies of other racks' pages in this rack.",
            Unit::None,
            get(&sharing.copies),
        )?;
        page.counters(
            "sharings",
            "step",
            "Pages that became shared, and shared pages that a write made unshared.",
            Unit::None,
            &[("begun", get(&sharing.begun)), ("ended", get(&sharing.ended))],
        )?;
        page.counter(
            "copies_made",
            "Copies of other racks' pages that were made.",
            Unit::None,
            get(&sharing.made),
        )?;
        let reads = get(&sharing.reads);
        page.counter("copy_reads", "Reads from copies, estimated from a sample.", Unit::None, reads)
    }

    fn show_locks(&self, page: &mut Page<'_>) -> fmt::Result {
        let locks = &self.metrics.locks;
        page.gauge(
            "locks",
            "Locks of this rack's pages that are held or requested through the daemon.",
            Unit::None,
            get(&locks.known),
        )?;
        let granted = get(&locks.granted);
        page.counter("locks_granted", "Locks that the daemon granted.", Unit::None, granted)?;
        page.counter(
            "locks_recovered",
            "Locks granted after a writer had ended without an unlock.",
            Unit::None,
            get(&locks.recovered),
        )?;
        let lost = get(&locks.lost);
        page.counter("locks_lost", "Locks that clients of this rack lost.", Unit::None, lost)?;
        page.counter(
            "locks_written_back",
            "Locks of other racks' lines whose holder ended with bytes that its daemon wrote back.",
            Unit::None,
            get(&locks.written_back),
        )
    }

    fn show_swaps(&self, page: &mut Page<'_>) -> fmt::Result {
        let swaps = &self.metrics.swaps;
        page.counters(
            "swaps",
            "side",
            "Swaps that this rack requested, and that other racks requested of it.",
            Unit::None,
            &[("asked", get(&swaps.asked)), ("served", get(&swaps.served))],
        )?;
        page.counters(
            "pages_moved",
            "way",
            "Pages that arrived and left by swaps.",
            Unit::None,
            &[("in", get(&swaps.arrived)), ("out", get(&swaps.departed))],
        )?;
        let given_up = get(&swaps.given_up);
        page.counter(
            "swaps_given_up",
            "Swaps that were started and then aborted.",
            Unit::None,
            given_up,
        )?;
        let refused: Vec<_> = swaps.refused().collect();
        page.counters(
            "swaps_refused",
            "reason",
            "Hot pages that did not move.",
            Unit::None,
            &refused,
        )?;
        let forwarded = get(&swaps.forwarded);
        let help = "Writes of other racks executed here in pages that were moving.";
        page.counter("swap_forwarded_writes", help, Unit::None, forwarded)?;
        let copied = get(&swaps.copied_bytes);
        page.counter("swap_copied", "Pages copied to this rack.", Unit::Bytes, copied)?;
        page.times(
            "swap_pause",
            "Time for which writers of a page waited because it was moving.",
            &swaps.pauses,
        )
    }
}
