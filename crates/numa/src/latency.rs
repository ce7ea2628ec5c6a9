//! Latency of dependent loads, node by node: what the prediction of a placement's effect needs.

use std::time::Instant;

use rackpool_shm::Mapping;
use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::scratch;
use rackpool_sync::SplitMix64;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::memory::LINE;
use crate::placement::require_node;
use crate::threads::run_on;
use crate::topology::StudyNode;
use crate::{Side, StudyError, Topology};

/// The smallest range for memory, in bytes; a range is at least four times the last-level cache.
const MEMORY_BYTES: u64 = 64 << 20;
/// The largest.
const MAX_BYTES: u64 = 1 << 30;
/// The range for the cache if its size is unknown, in bytes.
const USUAL_CACHE_BYTES: u64 = 16 << 20;
const LOADS: u32 = 200_000;
/// Runs, of which the best counts: a disturbance makes a run slower.
const RUNS: u32 = 5;

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
        let bytes = cache_bytes.saturating_mul(4).clamp(MEMORY_BYTES, MAX_BYTES);
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
        link(&memory)?;
        require_node(&memory, "memory to measure", to.id)?;
        follow(&memory)
    };
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or(Err(StudyError::Thread("the one that measures memory")))
}

fn cell(memory: &Mapping, line: u64) -> Result<&AtomicU64, StudyError> {
    memory
        .view(line * LINE)
        .map_err(std::io::Error::other)
        .map_err(StudyError::system("access memory to measure"))
}

/// Links all lines into one random cycle (Sattolo, "An algorithm to generate a random cyclic
/// permutation", 1986): each line holds the number of the next one.
fn link(memory: &Mapping) -> Result<(), StudyError> {
    let lines = memory.len() / LINE;
    for line in 0..lines {
        cell(memory, line)?.store(line, Ordering::Relaxed);
    }
    let mut random = SplitMix64::new(1);
    for line in (1..lines).rev() {
        let other = random.draw() % line;
        let (one, other) = (cell(memory, line)?, cell(memory, other)?);
        let number = one.load(Ordering::Relaxed);
        one.store(other.load(Ordering::Relaxed), Ordering::Relaxed);
        other.store(number, Ordering::Relaxed);
    }
    Ok(())
}

/// Follows the cycle. Returns the best time of a load in ns.
fn follow(memory: &Mapping) -> Result<f64, StudyError> {
    let (mut line, mut best) = (0, f64::INFINITY);
    for _ in 0..RUNS {
        let start = Instant::now();
        for _ in 0..LOADS {
            line = cell(memory, line)?.load(Ordering::Relaxed);
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(LOADS));
    }
    std::hint::black_box(line);
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cycle_visits_every_line_once() {
        let memory = scratch(64 << 10, None, None).unwrap();
        link(&memory).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        let mut line = 0;
        while seen.insert(line) {
            line = cell(&memory, line).unwrap().load(Ordering::Relaxed);
        }
        assert_eq!((line, seen.len()), (0, 1024));
    }

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
