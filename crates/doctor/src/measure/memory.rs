use std::time::{Duration, Instant};

use rackpool_model::ByteSize;
use rackpool_output::chain;
use rackpool_shm::Mapping;
use rackpool_shm::host::{HugePage, NumaNode};
use rackpool_shm::memory::{backing, load_latency_ns, scratch};

use super::super::facts::Facts;
use super::timing::{Measured, least, pin};

/// The costs of memory of one node, in pages of one size, accessed from one node.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryMeasurements {
    /// The node of the accessing processor; `None` if the kernel reports no nodes.
    pub from: Option<u32>,
    /// The node of the memory.
    pub node: Option<u32>,
    /// The page size in bytes.
    pub page_bytes: u64,
    /// The measured range in bytes.
    pub bytes: u64,
    /// The costs.
    pub costs: Measured<AccessCosts>,
}

/// The costs of memory accesses by one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessCosts {
    /// A dependent load at a random address.
    pub latency_ns: f64,
    /// Sequential reads in GB/s (10^9).
    pub read_gbs: f64,
    /// Sequential writes in GB/s.
    pub write_gbs: f64,
    /// Copies to private memory in GB/s.
    pub copy_gbs: f64,
}

/// The measured range: many times the size of caches.
const BYTES: u64 = 256 << 20;
/// The buffer of sequential reads and writes: it stays in the second-level cache.
const CHUNK: usize = 256 << 10;
const RUNS: usize = 4;
/// No further run is started after this time: on a busy computer one run has to do.
const ENOUGH: Duration = Duration::from_millis(300);

/// A path from a processor to memory.
#[derive(Clone, Copy)]
struct Way<'a> {
    /// A node and one of its processors; `None` if the kernel reports no nodes.
    from: Option<(u32, u32)>,
    /// The node of the memory.
    to: Option<&'a NumaNode>,
}

/// Measures from each node with processors to each node with memory, until the deadline.
pub(super) fn all(facts: &Facts, deadline: Instant) -> Vec<MemoryMeasurements> {
    let usable =
        |node: &NumaNode| node.cpus.iter().copied().find(|c| facts.usable_cpus.contains(c));
    let mut ways = Vec::new();
    for from in &facts.nodes {
        let Some(cpu) = usable(from) else { continue };
        let way = |to| Way { from: Some((from.id, cpu)), to: Some(to) };
        ways.extend(facts.memory_nodes().map(way));
    }
    if facts.nodes.is_empty() {
        ways.push(Way { from: None, to: None });
    }
    let pages = [None, Some(HugePage::Size2M)];
    let each = |way: Way<'_>| pages.map(|page| one(facts, page, way, deadline));
    ways.into_iter().flat_map(each).collect()
}

fn one(
    facts: &Facts,
    page: Option<HugePage>,
    way: Way<'_>,
    deadline: Instant,
) -> MemoryMeasurements {
    let sized = if Instant::now() > deadline {
        Err("not measured: the time for measuring was over".into())
    } else {
        choose_bytes(facts, page, way.to)
    };
    let node = way.to.map(|node| node.id);
    let costs = sized.clone().and_then(|bytes| {
        // In a thread of its own, which can be pinned.
        let measuring = move || -> Measured<AccessCosts> {
            if let Some((_, cpu)) = way.from {
                pin(cpu)?;
            }
            let memory = scratch(bytes, page, node).map_err(|error| error.to_string())?;
            measure(&memory, page, node).map_err(|error| chain(error.as_ref()))
        };
        std::thread::scope(|scope| scope.spawn(measuring).join())
            .unwrap_or_else(|_| Err("the measuring thread failed".into()))
    });
    MemoryMeasurements {
        from: way.from.map(|(node, _)| node),
        node,
        page_bytes: page.map_or(4096, HugePage::bytes),
        bytes: sized.unwrap_or(0),
        costs,
    }
}

/// Returns the range to measure: 256 MiB, or eight times the cache if that is larger, or a quarter
/// of the free memory if that is smaller. Fails if caches would dominate the measurement.
fn choose_bytes(facts: &Facts, page: Option<HugePage>, to: Option<&NumaNode>) -> Measured<u64> {
    let cache = facts.cache.as_ref().map_or(0, |cache| cache.bytes);
    let wanted = BYTES.max(cache.saturating_mul(8).min(2 << 30)).next_multiple_of(2 << 20);
    let free = to.map_or(u64::MAX, |node| node.free_bytes);
    if let Some(page) = page {
        let available = facts.huge_pool(page.bytes()).map_or(0, |pool| pool.available());
        let needed = BYTES.div_ceil(page.bytes());
        if available < needed {
            let total = facts.huge_pool(page.bytes()).map_or(0, |pool| pool.total);
            return Err(format!(
                "not measured: {available} huge pages of {} can be had, {needed} are needed: echo {} > {}",
                ByteSize(page.bytes()),
                total + needed - available,
                page.pool_file()
            ));
        }
        return Ok(wanted.min(available * page.bytes()));
    }
    match (free / 4) & !((2 << 20) - 1) {
        quarter if quarter >= wanted => Ok(wanted),
        quarter if quarter >= cache.saturating_mul(2).max(16 << 20) => Ok(quarter),
        _ => Err(format!("not measured: the node has only {} free", ByteSize(free))),
    }
}

fn measure(
    memory: &Mapping,
    page: Option<HugePage>,
    node: Option<u32>,
) -> anyhow::Result<AccessCosts> {
    let latency_ns = load_latency_ns(memory)?;
    // Fails if the kernel has not provided the requested page size.
    let pages = backing::of(memory)?;
    anyhow::ensure!(
        (pages.huge_bytes > 0) == page.is_some(),
        "not measured: {} of {} lie in huge pages",
        ByteSize(pages.huge_bytes),
        ByteSize(pages.resident_bytes)
    );
    // Fails if the memory does not lie on the requested node.
    if let Some(node) = node {
        let found = memory.node_at(memory.len() / 2)?;
        anyhow::ensure!(found == node, "not measured: the memory lies on node {found}");
    }
    let mut chunk = vec![1_u8; CHUNK];
    let read_gbs = bandwidth(memory, |offset| memory.read(offset, &mut chunk))?;
    let write_gbs = bandwidth(memory, |offset| memory.write(offset, &chunk))?;
    let mut private = vec![1_u8; 64 << 20];
    let copy_gbs = bandwidth(memory, |offset| {
        let at = usize::try_from(offset).unwrap_or(0) % private.len();
        memory.read(offset, &mut private[at..at + CHUNK])
    })?;
    Ok(AccessCosts { latency_ns, read_gbs, write_gbs, copy_gbs })
}

/// Runs `work` on every chunk of the memory, several times. Returns the best rate in GB/s.
fn bandwidth<E>(memory: &Mapping, mut work: impl FnMut(u64) -> Result<(), E>) -> Result<f64, E> {
    let chunks = memory.len() / CHUNK as u64;
    let mut times = Vec::with_capacity(RUNS);
    let began = Instant::now();
    for _ in 0..RUNS {
        if began.elapsed() > ENOUGH {
            break;
        }
        let start = Instant::now();
        (0..chunks).try_for_each(|chunk| work(chunk * CHUNK as u64))?;
        times.push(start.elapsed().as_secs_f64());
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let bytes = (chunks * CHUNK as u64) as f64;
    Ok(bytes / least(times.into_iter()) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_memory_has_a_plausible_bandwidth() {
        let memory = scratch(4 << 20, None, None).unwrap();
        let mut chunk = vec![0; CHUNK];
        let rate = bandwidth(&memory, |offset| memory.read(offset, &mut chunk)).unwrap();
        assert!(rate > 0.01 && rate < 1e4, "{rate} GB/s");
    }

    #[test]
    fn what_can_not_be_measured_says_why() {
        let mut facts = super::super::super::facts::Facts::gather(
            &rackpool_shm::host::HostFiles::at("/nonexistent"),
        );
        let reason = choose_bytes(&facts, Some(HugePage::Size2M), None).unwrap_err();
        assert!(reason.contains("0 huge pages of 2 MiB can be had, 128 are needed: echo 128 >"));
        let small = NumaNode { free_bytes: 1 << 20, ..NumaNode::default() };
        assert!(choose_bytes(&facts, None, Some(&small)).unwrap_err().contains("only 1 MiB free"));
        assert_eq!(choose_bytes(&facts, None, None), Ok(BYTES));
        facts.huge_pools.push(rackpool_shm::host::HugePool {
            page_bytes: 2 << 20,
            total: 200,
            free: 200,
            ..Default::default()
        });
        assert_eq!(choose_bytes(&facts, Some(HugePage::Size2M), None), Ok(BYTES));
        let late = one(&facts, None, Way { from: None, to: None }, Instant::now());
        assert_eq!(late.bytes, 0);
        assert!(late.costs.unwrap_err().contains("time"));
    }
}
