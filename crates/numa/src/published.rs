//! Measured values of J. Nelson and R. Palmieri, "Performance Evaluation of the Impact of NUMA on
//! One-sided RDMA Interactions", SRDS 2020. The testbed: two Xeon E5-2670 v3, `ConnectX-3`,
//! `InfiniBand` at 56 Gbit/s.

use rackpool_fabric::emulated::numa::{BASE_READ_NS, L3_NS, REMOTE_MEMORY_NS};

use crate::NodeChoice;

/// Section V-A: latency of a load that hits the last-level cache, in ns.
pub const LATENCY_L3_NS: f64 = L3_NS as f64;
/// Section V-A: latency of a load of the other node's memory, in ns.
pub const LATENCY_REMOTE_NS: f64 = REMOTE_MEMORY_NS as f64;
/// Section V-A: latency of a 64 B read of local memory, in ns.
pub const LATENCY_READ_NS: f64 = BASE_READ_NS as f64;

/// Numbers of workers of the columns of [`FIGURE_5`].
pub const FIGURE_5_WORKERS: [u32; 5] = [0, 4, 8, 16, 48];

/// Figure 5(a): 8 B, 8 connections, workers with 90 % writes; what was done to which memory, then
/// the throughput in million operations a second for each number of workers.
pub const FIGURE_5: [(&str, [f64; 5]); 4] = [
    ("write local", [6.05, 5.48, 3.41, 3.47, 3.48]),
    ("write remote", [6.05, 6.37, 6.05, 6.05, 6.05]),
    ("read local", [5.91, 5.07, 3.53, 3.54, 3.47]),
    ("read remote", [5.51, 5.26, 4.68, 4.47, 4.65]),
];

/// Figure 6: throughput of the key-value server with everything local, in kops.
pub const KV_BOTH_LOCAL_KOPS: f64 = 626.0;
/// Figure 6: the same with the server on the other node.
pub const KV_SERVER_REMOTE_KOPS: f64 = 535.0;
/// Figure 6: the same with everything local, and load on the same node.
pub const KV_LOADED_NODE_KOPS: f64 = 334.0;

/// Figure 6: 67 B pairs, 8 connections; the node of the load, then kops with everything local, with
/// the server on the other node, and with server and client on the other nodes.
pub const KV_KOPS: [(Option<NodeChoice>, [f64; 3]); 3] = [
    (None, [KV_BOTH_LOCAL_KOPS, KV_SERVER_REMOTE_KOPS, 515.0]),
    (Some(NodeChoice::Local), [KV_LOADED_NODE_KOPS, 568.0, 564.0]),
    (Some(NodeChoice::Remote), [573.0, 320.0, 313.0]),
];
