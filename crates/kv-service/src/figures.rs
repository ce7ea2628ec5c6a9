//! The figures of the service, for Prometheus.

use std::fmt;
use std::sync::Arc;

use rackpool_metrics::{Page, Source, Unit};

use crate::shared::Shared;

/// What is shown.
pub(crate) struct ServiceFigures(pub(crate) Arc<Shared>);

impl Source for ServiceFigures {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        let shared = &*self.0;
        let all = shared.sums();
        let counters = [
            ("kv_commands", "Commands done.", all.commands),
            ("kv_errors", "Commands that failed.", all.errors),
            ("kv_connections_accepted", "Connections that came.", all.connections),
            (
                "kv_connections_rejected",
                "Connections refused, as there were too many.",
                all.rejected,
            ),
            (
                "kv_keys_expired",
                "Keys whose time was over and that this instance deleted.",
                all.expired,
            ),
        ];
        for (name, help, value) in counters {
            page.counter(name, help, Unit::None, value)?;
        }
        let connections = shared.clients.count() as u64;
        page.gauge("kv_connections", "Connections there are.", Unit::None, connections)?;
        let threads = shared.threads() as u64;
        page.gauge("kv_threads", "Threads that serve.", Unit::None, threads)
    }
}
