//! Latency of dependent loads, node by node: what the prediction of a placement's effect needs.

use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::{load_latency_ns, scratch};

use crate::memory::LINE;
use crate::placement::require_node;
use crate::threads::run_on;
use crate::topology::StudyNode;
use crate::{Side, StudyError, Topology};

/// The smallest range for memory, in bytes; a range is four times the last-level cache, if the
/// nodes have that much.
const MEMORY_BYTES: u64 = 64 << 20;
/// The largest.
const MAX_BYTES: u64 = 1 << 30;
/// The range for the cache if its size is unknown, in bytes.
const USUAL_CACHE_BYTES: u64 = 16 << 20;

/// Latencies in ns of dependent loads of random cache lines.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryLatencies {
    /// From the card's node, of data that fits in its last-level cache.
    pub l3_ns: f64,
    /// From each of the two nodes (if it has processors) to each: from, to, ns.
    pub between: Vec<(Side, Side, f64)>,
}

impl MemoryLatencies {
    /// Measures between the two nodes of a study.
    ///
    /// # Errors
    /// If memory cannot be had on a node, or does not lie there.
    pub fn measure(host: &HostFiles, topology: &Topology) -> Result<Self, StudyError> {
        let cache = host.last_level_cache(Some(topology.local.id));
        let cache_bytes = cache.map_or(USUAL_CACHE_BYTES, |cache| cache.bytes);
        let local = &topology.local;
        // Half of the cache: programs beside need the rest.
        let l3_ns = load_ns(local, local, cache_bytes / 2)?;
        // Half of what a node has free: other programs of the node need some, too.
        let free = |node: &StudyNode| {
            let found = host.nodes().into_iter().find(|found| found.id == node.id);
            found.map_or(0, |found| found.free_bytes / 2)
        };
        let least = free(&topology.local).min(free(&topology.remote));
        let bytes = cache_bytes.saturating_mul(4).clamp(MEMORY_BYTES, MAX_BYTES).min(least);
        let mut between = Vec::new();
        for from in [Side::Local, Side::Remote] {
            for to in [Side::Local, Side::Remote] {
                if !topology.node(from).cpus.is_empty() {
                    let ns = load_ns(topology.node(from), topology.node(to), bytes)?;
                    between.push((from, to, ns));
                }
            }
        }
        Ok(Self { l3_ns, between })
    }

    /// From the card's node to the other node's memory, in ns.
    #[must_use]
    pub fn remote_ns(&self) -> Option<f64> {
        let is_wanted = |(from, to, _): &&_| (*from, *to) == (Side::Local, Side::Remote);
        self.between.iter().find(is_wanted).map(|(_, _, ns)| *ns)
    }
}

/// Measures on a thread of the node `from` in memory of the node `to`.
fn load_ns(from: &StudyNode, to: &StudyNode, bytes: u64) -> Result<f64, StudyError> {
    let measure = || {
        // One processor, so that the thread does not lose its caches.
        run_on(&from.cpus[..from.cpus.len().min(1)])?;
        let memory = scratch(bytes.max(LINE * 2), None, Some(to.id)).map_err(|error| {
            StudyError::system("allocate memory to measure")(std::io::Error::other(error))
        })?;
        let ns = load_latency_ns(&memory)
            .map_err(std::io::Error::other)
            .map_err(StudyError::system("access memory to measure"))?;
        require_node(&memory, "memory to measure", to.id)?;
        Ok(ns)
    };
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or(Err(StudyError::Thread("the one that measures memory")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_latencies_to_itself() {
        let host = HostFiles::here();
        let Some(node) = host.nodes().into_iter().find(|node| !node.cpus.is_empty()) else {
            return rackpool_testing::skipped("this kernel knows no NUMA nodes");
        };
        let node = StudyNode { id: node.id, cpus: node.cpus };
        let ns = load_ns(&node, &node, 1 << 20).unwrap();
        assert!(ns.is_finite() && ns > 0.0);
    }
}
