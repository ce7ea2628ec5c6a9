use rackpool_fabric::emulated::numa::{L3_NS, REMOTE_MEMORY_NS};
use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::{load_latency_ns, scratch};

use crate::pinned::pin_to_node;

/// Memory that the last-level cache holds and the caches of a core do not.
const CACHED_BYTES: u64 = 8 << 20;
/// Memory that no cache holds, if the node has four times as much free: binding more than there is
/// would end this process.
const MEMORY_BYTES: u64 = 256 << 20;

/// Latencies of loads from processors of the card's node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latencies {
    /// Of lines in the node's last-level cache, in ns.
    pub(crate) cache_ns: f64,
    /// Of memory of the other node, in ns.
    pub(crate) remote_ns: f64,
}

impl Latencies {
    /// Those of the model.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    pub(crate) const fn of_model() -> Self {
        Self { cache_ns: L3_NS as f64, remote_ns: REMOTE_MEMORY_NS as f64 }
    }

    /// Measures those of this host. Returns `None` if the other node has too little free memory.
    pub(crate) fn measure(card: u32, other: u32) -> anyhow::Result<Option<Self>> {
        let nodes = HostFiles::here().nodes();
        let free =
            nodes.into_iter().find(|node| node.id == other).map_or(0, |node| node.free_bytes);
        if free / 4 < MEMORY_BYTES {
            return Ok(None);
        }
        let measuring = move || -> anyhow::Result<Option<Self>> {
            pin_to_node(Some(card))?;
            let cached = scratch(CACHED_BYTES, None, Some(card))?;
            let remote = scratch(MEMORY_BYTES, None, Some(other))?;
            let (cache_ns, remote_ns) = (load_latency_ns(&cached)?, load_latency_ns(&remote)?);
            Ok(Some(Self { cache_ns, remote_ns }))
        };
        // In a thread of its own, which can be pinned.
        std::thread::scope(|scope| scope.spawn(measuring).join())
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the measuring thread failed")))
    }

    /// By which factor a read of memory of the other node is expected to take longer: the card's
    /// cache does not answer it.
    pub(crate) fn predicted(self, local_read_ns: f64) -> f64 {
        1.0 + (self.remote_ns - self.cache_ns) / local_read_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_latencies_predict_the_published_difference() {
        let percent = (Latencies::of_model().predicted(2300.0) - 1.0) * 100.0;
        assert!((percent - 3.65).abs() < 0.01, "{percent}");
    }
}
