//! The facts that the kernel reports of this computer.

use std::collections::BTreeMap;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::{AccessFlags, Pid, access};
use rackpool_shm::free_space::{self, Room};
use rackpool_shm::host::{
    DeviceWays, HostFiles, HugePool, LOAD_WINDOW, LastLevelCache, MemoryLimit, Mount, NumaNode,
    Placing, RdmaPort, TransparentHuge, parse_list,
};
use rackpool_sync::KernelCopy;

use super::devices::{CxlMemory, DaxDevice, cxl_memory, dax_devices};
use super::reach::Reach;

/// The facts of this computer.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kernel's release.
    pub kernel: String,
    /// How the kernel copies memory, and thus how soft-RoCE does.
    pub kernel_copy: KernelCopy,
    /// The processor's name.
    pub processor: String,
    /// The processors that are online.
    pub cpus: Vec<u32>,
    /// The processors that this process may use.
    pub usable_cpus: Vec<u32>,
    /// The NUMA nodes.
    pub nodes: Vec<NumaNode>,
    /// The last-level cache of the card's node.
    pub cache: Option<LastLevelCache>,
    /// The ways of that cache, or why they are unknown.
    pub device_ways: Result<DeviceWays, String>,
    /// Bytes of that cache that writes of devices may fill; 0 if it is unknown.
    pub device_share: u64,
    /// The network and the RDMA software.
    pub reach: Reach,
    /// The ports of RDMA cards.
    pub rdma: Vec<RdmaPort>,
    /// The share of the time in which the processors of each NUMA node are busy, from 0 to 1; empty
    /// if no placement depends on it.
    pub node_load: BTreeMap<u32, f64>,
    /// CXL memory expanders.
    pub cxl: Vec<CxlMemory>,
    /// Dax devices.
    pub dax: Vec<DaxDevice>,
    /// Pools of huge pages.
    pub huge_pools: Vec<HugePool>,
    /// The settings of transparent huge pages.
    pub transparent: TransparentHuge,
    /// Mounted hugetlbfs.
    pub huge_mounts: Vec<Mount>,
    /// The file system of `/dev/shm`.
    pub shm: Option<Mount>,
    /// The room in the pool's folder, or in its future parent; `None` if nothing limits it.
    pub room: Option<Room>,
    /// The lowest limit of this process's memory cgroups.
    pub memory_limit: Option<MemoryLimit>,
    /// Bytes that the files of the pool's racks may take.
    pub pool_bytes: u64,
    /// Whether the data plane's heavy barrier reaches clients.
    pub membarrier: bool,
    /// Bytes that this process may lock, which RDMA needs; `None` for no limit; or why it is
    /// unknown.
    pub memlock_bytes: Result<Option<u64>, String>,
    /// Whether this user may use FUSE.
    pub fuse: bool,
}

impl Facts {
    /// Reads the facts, for a pool in this folder.
    #[must_use]
    pub fn for_pool(machine: &HostFiles, pool: &Path) -> Self {
        let there = pool.ancestors().find(|folder| folder.is_dir());
        let room = there.and_then(|folder| Room::of(folder, machine));
        Self { room, pool_bytes: free_space::bytes_of(pool), ..Self::gather(machine) }
    }

    /// Reads the facts that do not depend on a pool.
    #[must_use]
    pub fn gather(machine: &HostFiles) -> Self {
        let cpuinfo = machine.proc_text("cpuinfo").unwrap_or_default();
        let mounts = machine.mounts();
        let rw = AccessFlags::R_OK | AccessFlags::W_OK;
        let card_node = machine.card_node(None, None);
        let nodes = machine.nodes();
        let kernel = machine.proc_text("sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
        Self {
            kernel_copy: KernelCopy::of(&kernel, &cpuinfo),
            kernel,
            processor: processor(&cpuinfo).unwrap_or("unknown").to_owned(),
            cpus: parse_list(&machine.sys_text("devices/system/cpu/online").unwrap_or_default()),
            usable_cpus: usable_cpus(),
            nodes: nodes.clone(),
            cache: machine.last_level_cache(card_node),
            device_ways: machine.device_ways(card_node),
            device_share: machine.device_share(card_node),
            reach: Reach::gather(machine),
            rdma: machine.rdma_ports(),
            node_load: match (card_node, nodes.len()) {
                (Some(_), 2..) => machine.node_load(LOAD_WINDOW),
                _ => BTreeMap::new(),
            },
            cxl: cxl_memory(machine),
            dax: dax_devices(machine),
            huge_pools: machine.huge_pools(),
            transparent: machine.transparent_huge(),
            huge_mounts: mounts.into_iter().filter(|mount| mount.kind == "hugetlbfs").collect(),
            shm: machine.mount_of(Path::new("/dev/shm")).filter(|mount| mount.kind == "tmpfs"),
            room: None,
            memory_limit: machine.memory_limit(),
            pool_bytes: 0,
            membarrier: rackpool_sync::barrier::is_supported(),
            memlock_bytes: memlock(&machine.proc_text("self/limits").unwrap_or_default()),
            fuse: access("/dev/fuse", rw).is_ok(),
        }
    }

    /// What the daemon's rules for placement look at, for memory of a kind that names this node.
    #[must_use]
    pub fn placing(&self, memory: Option<u32>) -> Placing<'_> {
        let card = self.rdma.iter().find(|port| port.is_active()).and_then(|port| port.node);
        Placing { nodes: &self.nodes, card, memory }
    }

    /// Returns the nodes that have memory.
    pub fn memory_nodes(&self) -> impl Iterator<Item = &NumaNode> {
        self.nodes.iter().filter(|node| node.memory_bytes > 0)
    }

    /// Returns the pool of huge pages of this size.
    #[must_use]
    pub fn huge_pool(&self, bytes: u64) -> Option<&HugePool> {
        self.huge_pools.iter().find(|pool| pool.page_bytes == bytes)
    }
}

/// Returns the processors that this process may run on.
fn usable_cpus() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let may = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    (0..CpuSet::count()).filter(may).filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

fn processor(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Parses the soft limit of the line `Max locked memory  8388608  8388608  bytes`.
fn memlock(limits: &str) -> Result<Option<u64>, String> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Ok(None),
        Some(bytes) => bytes.parse().map(Some).map_err(|_| format!("'{bytes}' is no number")),
        None => Err("/proc/self/limits does not say".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::fixture;
    use super::*;

    #[test]
    fn a_computer_that_says_nothing_has_nothing() {
        let (_folder, machine) = fixture(&[]);
        let facts = Facts::gather(&machine);
        assert_eq!((facts.kernel.as_str(), facts.processor.as_str()), ("unknown", "unknown"));
        assert!(facts.nodes.is_empty() && facts.rdma.is_empty() && facts.huge_pools.is_empty());
        assert!(
            facts.memlock_bytes.is_err() && facts.device_ways.is_err() && facts.cache.is_none()
        );
    }

    #[test]
    fn what_a_computer_says_is_read() {
        let (_folder, machine) = fixture(&[
            ("proc/cpuinfo".into(), "processor\t: 0\nmodel name\t: AMD EPYC\n"),
            ("proc/sys/kernel/osrelease".into(), "6.18.1\n"),
            ("proc/self/limits".into(), "Max locked memory         8388608      8388608   bytes\n"),
            ("proc/thread-self/mounts".into(), "none /mnt/h hugetlbfs rw,pagesize=2M 0 0\n"),
            ("sys/devices/system/cpu/online".into(), "0-3\n"),
        ]);
        let facts = Facts::gather(&machine);
        assert_eq!((facts.processor.as_str(), facts.kernel.as_str()), ("AMD EPYC", "6.18.1"));
        assert_eq!(facts.cpus, [0, 1, 2, 3]);
        assert_eq!(facts.memlock_bytes, Ok(Some(8 << 20)));
        assert_eq!(facts.huge_mounts.len(), 1);
        assert_eq!(memlock("Max locked memory unlimited unlimited bytes"), Ok(None));
    }

    #[test]
    fn this_computer_lets_this_process_run_somewhere() {
        let facts = Facts::gather(&HostFiles::here());
        assert!(!facts.usable_cpus.is_empty());
        assert!(facts.usable_cpus.iter().all(|cpu| facts.cpus.contains(cpu)));
    }
}
