//! The metrics of the service, for Prometheus.

use std::fmt;
use std::sync::Arc;

use rackpool_metrics::{Page, Source, Unit};

use crate::shared::ServiceState;

/// The source of the exported metrics.
pub(crate) struct ServiceMetrics(pub(crate) Arc<ServiceState>);

impl Source for ServiceMetrics {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        let shared = &*self.0;
        let all = shared.sums();
        let counters = [
            ("kv_commands", "Commands executed.", all.commands),
            ("kv_errors", "Commands that failed.", all.errors),
            ("kv_connections_accepted", "Connections accepted.", all.connections),
            (
                "kv_connections_rejected",
                "Connections refused because there were too many or another user made them.",
                all.rejected,
            ),
            (
                "kv_connections_evicted",
                "Connections closed because all of them together held too much memory.",
                all.evicted,
            ),
            ("kv_auth_failures", "Wrong passwords.", all.auth_failures),
            ("kv_keys_expired", "Expired keys that this instance deleted.", all.expired),
            (
                "kv_keys_evicted",
                "Keys that this instance deleted because the entries took more than its limit.",
                all.keys_evicted,
            ),
        ];
        for (name, help, value) in counters {
            page.counter(name, help, Unit::None, value)?;
        }
        let connections = shared.clients.count() as u64;
        page.gauge("kv_connections", "Open connections.", Unit::None, connections)?;
        let held = shared.client_memory.held() as u64;
        page.gauge("kv_client_memory", "Memory that connections hold.", Unit::Bytes, held)?;
        let limit = shared.client_memory.limit() as u64;
        let help = "Memory that connections may hold together.";
        page.gauge("kv_client_memory_limit", help, Unit::Bytes, limit)?;
        let help = "Memory that the entries may take in the pool (0: no limit).";
        page.gauge("kv_memory_limit", help, Unit::Bytes, shared.memory.limit())?;
        let help = "Memory that the entries take in the pool, as this instance estimates it (0: not \
                    counted, since there is no limit).";
        page.gauge("kv_memory", help, Unit::Bytes, shared.memory.used().unwrap_or(0))?;
        let threads = shared.threads() as u64;
        page.gauge("kv_threads", "Threads that serve connections.", Unit::None, threads)
    }

    fn health(&self) -> Result<(), String> {
        self.0.pool.check_served().map_err(|error| error.to_string())
    }
}
