//! A study without placement: the emulated fabric models the effects of NUMA and of the cache on
//! one-sided operations (docs/design/numa-model.md), this module those on the key-value server.
//!
//! All constants are measured values of Nelson and Palmieri (see [`published`](crate::published)).
//! The key-value server is calibrated with one value for each constant; the unit tests compare the
//! rest with what was published.

use rackpool_fabric::emulated::numa::MAX_DILATION;

use crate::published::{
    KV_BOTH_LOCAL_KOPS, KV_LOADED_NODE_KOPS, KV_SERVER_REMOTE_KOPS, LATENCY_L3_NS, LATENCY_READ_NS,
    LATENCY_REMOTE_NS,
};
use crate::{Load, NodeChoice, Placement, Side, StudyError};

/// A model in place of two NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Every modelled time takes this many times as long, so that a slow host keeps up (time
    /// dilation: Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006).
    /// Results are shown undilated. 1 to [`MAX_DILATION`].
    pub dilation: u32,
}

impl Model {
    /// Checks the dilation.
    pub(crate) fn check(self) -> Result<(), StudyError> {
        if (1..=MAX_DILATION).contains(&self.dilation) {
            return Ok(());
        }
        Err(StudyError::Option(format!("dilation {}: give 1 to {MAX_DILATION}", self.dilation)))
    }
}

/// What one access of the other node's memory costs more than one of the cache, in ns.
pub const REMOTE_ACCESS_NS: f64 = LATENCY_REMOTE_NS - LATENCY_L3_NS;
/// Time of the server for a request, in ns, if everything is local and unloaded. Calibrated: with 8
/// connections its one thread is saturated, so it is the reciprocal of the throughput.
pub const KV_REQUEST_NS: f64 = 1e6 / KV_BOTH_LOCAL_KOPS;
/// Accesses of the other node's memory for a request to a server on the other node. Calibrated.
pub const KV_REMOTE_ACCESSES: f64 =
    (1e6 / KV_SERVER_REMOTE_KOPS - KV_REQUEST_NS) / REMOTE_ACCESS_NS;
/// Additional time for a request, in ns, if load runs on the server's node. Calibrated.
pub const KV_LOAD_NS: f64 = 1e6 / KV_LOADED_NODE_KOPS - KV_REQUEST_NS;
/// Accesses of the other node's memory for a request of a client on the other node. Assumed: the
/// one-sided read of the value.
pub const KV_CLIENT_ACCESSES: f64 = 1.0;

/// The server's modelled time for a request, in ns. The access on the client's side counts as the
/// server's time, because it lowers the throughput of a saturated server.
#[must_use]
pub fn kv_request_ns(placement: Placement, load: &Load) -> f64 {
    let mut ns = KV_REQUEST_NS;
    if placement.server == Side::Remote {
        ns += KV_REMOTE_ACCESSES * REMOTE_ACCESS_NS;
    }
    if placement.client.memory == NodeChoice::Remote {
        ns += KV_CLIENT_ACCESSES * REMOTE_ACCESS_NS;
    }
    let is_beside = load.node.side().is_none_or(|side| side == placement.server);
    if load.threads > 0 && is_beside {
        ns += KV_LOAD_NS;
    }
    ns
}

/// The predicted effect of remote memory on the latency of a read, in percent of `base_ns`, the
/// latency of a read of local memory: a remote read takes its bytes from the other node's memory
/// and a local one from the cache (section V-A).
#[must_use]
pub fn predicted_percent(remote_ns: f64, l3_ns: f64, base_ns: f64) -> f64 {
    (remote_ns - l3_ns) / base_ns * 100.0
}

/// [`predicted_percent`] of the published latencies.
#[must_use]
pub fn published_prediction_percent() -> f64 {
    predicted_percent(LATENCY_REMOTE_NS, LATENCY_L3_NS, LATENCY_READ_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientPlacement;
    use crate::published::KV_KOPS;

    #[test]
    fn the_published_throughputs_of_the_key_value_server_follow() {
        for (load_node, row) in KV_KOPS {
            let load = Load {
                threads: load_node.map_or(0, |_| 1),
                node: load_node.unwrap_or(NodeChoice::Any),
                buffer_bytes: 0,
                write_percent: 50,
            };
            let placements = [
                (Side::Local, NodeChoice::Local),
                (Side::Remote, NodeChoice::Local),
                (Side::Remote, NodeChoice::Remote),
            ];
            for ((server, client), published_kops) in placements.into_iter().zip(row) {
                let placement = Placement { server, client: ClientPlacement::on(client) };
                let kops = 1e6 / kv_request_ns(placement, &load);
                let error = (kops / published_kops - 1.0).abs();
                assert!(
                    error < 0.10,
                    "{kops:.0} of {published_kops} kops at {placement:?}, {load:?}"
                );
            }
        }
    }

    #[test]
    fn the_prediction_is_the_published_one() {
        assert!((published_prediction_percent() - 3.65).abs() < 0.01);
    }

    #[test]
    fn a_dilation_out_of_range_is_refused() {
        assert!(Model { dilation: 0 }.check().is_err());
        assert!(Model { dilation: MAX_DILATION + 1 }.check().is_err());
        Model { dilation: 20 }.check().unwrap();
    }
}
