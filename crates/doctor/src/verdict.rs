//! Recommendations and warnings, derived from the facts and the measurements.

use rackpool_model::ByteSize;
use rackpool_shm::host::{ChosenNode, HugePage, list_text};

use super::advice::{Choice, Warning};
use super::credentials_check::CredentialsCheck;
use super::fabrics::{self, FabricSupport};
use super::facts::Facts;
use super::measure::Measurements;

/// Recommendations and warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The fabrics, with what is missing for each.
    pub fabrics: Vec<FabricSupport>,
    /// The `--fabric` option that fits best.
    pub fabric: Choice,
    /// The `--memory-kind` option that fits best.
    pub memory: Choice,
    /// The node that `--numa-node auto` would choose for the daemon.
    pub placement: Choice,
    /// The node that `--frames-node auto` would choose, for kinds of memory without one.
    pub frames: Choice,
    /// Problems to look into.
    pub warnings: Vec<Warning>,
}

fn choice(what: impl Into<String>, why: impl Into<String>) -> Choice {
    Choice { what: what.into(), why: why.into() }
}

impl Verdict {
    /// Derives recommendations and warnings.
    #[must_use]
    pub fn of(
        facts: &Facts,
        credentials: &CredentialsCheck,
        measurements: Option<&Measurements>,
    ) -> Self {
        let fabrics = fabrics::all(facts, credentials);
        Self {
            fabric: fabrics::choose(&fabrics),
            fabrics,
            memory: memory(facts, measurements),
            placement: placement(facts),
            frames: node_choice(facts.placing(None).frames(|| facts.node_load.clone())),
            warnings: warnings(facts),
        }
    }
}

fn memory(facts: &Facts, measurements: Option<&Measurements>) -> Choice {
    if let Some(device) = facts.dax.iter().find(|device| device.is_mappable()) {
        let why = format!("CXL memory of {} that only programs use", ByteSize(device.bytes));
        return choice(format!("--memory-kind dax:{}", device.path()), why);
    }
    if let Some(node) = facts.nodes.iter().find(|node| node.is_memory_only()) {
        let why = format!(
            "NUMA node {} is {} of memory without processors, as CXL memory is",
            node.id,
            ByteSize(node.memory_bytes)
        );
        return choice(format!("--memory-kind numa:{}", node.id), why);
    }
    let emulation = "no CXL memory here (--cxl-latency-ns 50 emulates its distance)";
    let mounted = facts.huge_mounts.iter().find_map(|mount| mount.huge_page());
    let reserved = |page: HugePage| facts.huge_pool(page.bytes()).filter(|p| p.available() > 0);
    if let Some((page, pool)) = mounted.and_then(|page| Some((page, reserved(page)?))) {
        let bytes = ByteSize(pool.available().saturating_mul(page.bytes()));
        let gain = gain(measurements).map_or(String::new(), |gain| format!("; {gain}"));
        let why = format!("{emulation}; {bytes} of huge pages are free{gain}");
        return choice(format!("--memory-kind huge:{page}"), why);
    }
    match &facts.shm {
        Some(mount) => {
            let why = format!("{emulation}; {} is a tmpfs", mount.folder.display());
            choice("--memory-kind tmpfs", why)
        }
        None => choice("--memory-kind memfd", format!("{emulation}; /dev/shm is no tmpfs")),
    }
}

/// Describes the gain of huge pages, if both page sizes were measured on one path.
fn gain(measurements: Option<&Measurements>) -> Option<String> {
    let latency = |huge: bool, from, node| {
        let all = &measurements?.memory;
        let wanted = all.iter().find(|f| {
            (f.page_bytes > 4096, f.from, f.node) == (huge, from, node) && f.costs.is_ok()
        })?;
        Some(wanted.costs.as_ref().ok()?.latency_ns)
    };
    let ways = measurements?.memory.iter().map(|f| (f.from, f.node));
    let (small, huge) = ways
        .filter_map(|(from, node)| latency(false, from, node).zip(latency(true, from, node)))
        .next()?;
    Some(format!("a random load takes {huge:.0} ns in them, {small:.0} ns in pages of 4 KiB"))
}

/// Applies the rule of the daemon's `--numa-node auto`, for memory of the recommended kind.
fn placement(facts: &Facts) -> Choice {
    let memory = facts.nodes.iter().find(|node| node.is_memory_only());
    node_choice(facts.placing(memory.map(|node| node.id)).thread())
}

fn node_choice(chosen: ChosenNode) -> Choice {
    match chosen.node {
        Some(node) => choice(format!("node {node}"), chosen.reason),
        None => choice("anywhere", chosen.reason),
    }
}

fn warnings(facts: &Facts) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |what: String, fix: String| warnings.push(Warning { what, fix });
    let page = HugePage::Size2M;
    let pool = facts.huge_pool(page.bytes());
    if pool.is_none_or(|pool| pool.total == 0) {
        warn(
            "no huge pages of 2 MiB are reserved".into(),
            format!(
                "echo 512 > {} # 1 GiB, before starting --memory-kind huge:2M",
                page.pool_file()
            ),
        );
    } else if facts.huge_mounts.iter().all(|mount| mount.huge_page() != Some(page)) {
        warn(
            "huge pages of 2 MiB are reserved, but no hugetlbfs is mounted".into(),
            "mkdir -p /dev/hugepages && mount -t hugetlbfs -o pagesize=2M none /dev/hugepages"
                .into(),
        );
    }
    match &facts.shm {
        None => warn(
            "/dev/shm is no tmpfs".into(),
            "mount -t tmpfs none /dev/shm, or name another --dir on one, or --memory-kind memfd"
                .into(),
        ),
        Some(mount) if matches!(mount.option("huge"), None | Some("never")) => warn(
            format!(
                "{} has no huge pages: memory of kind tmpfs lies in pages of 4 KiB",
                mount.folder.display()
            ),
            format!("mount -o remount,huge=advise {}", mount.folder.display()),
        ),
        Some(_) => {}
    }
    if facts.usable_cpus.len() < 2 {
        warn(
            "this process may use one processor: daemon and clients take turns on it".into(),
            "allow it more processors (cpuset, taskset)".into(),
        );
    } else if facts.usable_cpus.len() < facts.cpus.len() {
        warn(
            format!("this process may use the processors {} only", list_text(&facts.usable_cpus)),
            "allow it more processors if this is not intended (cpuset, taskset)".into(),
        );
    }
    if !facts.membarrier {
        warn(
            "the kernel offers no expedited membarrier: each access of a client costs a full fence"
                .into(),
            "use Linux 4.16 or newer; in a container, allow membarrier(2)".into(),
        );
    }
    warn_of_room(facts, &mut warn);
    warn_of_limit(facts, &mut warn);
    warn_of_cards(facts, &mut warn);
    warn_of_cxl(facts, &mut warn);
    warnings
}

/// The default size of a rack's memory in bytes.
const RACK_BYTES: u64 = 1 << 30;

fn warn_of_room(facts: &Facts, warn: &mut impl FnMut(String, String)) {
    let Some(room) = &facts.room else { return };
    let left = room.free.saturating_sub(room.claimed);
    if room.missing() > 0 {
        warn(
            format!("{room}: the kernel kills a process that touches memory beyond it (SIGBUS)"),
            room.fix(room.missing()),
        );
    } else if left < RACK_BYTES {
        warn(
            format!(
                "{} has room for {} more; a rack of kind tmpfs takes 1 GiB unless --memory says less",
                room.mount.display(),
                ByteSize(left)
            ),
            // The rack's metadata takes a further 2 %.
            room.fix(RACK_BYTES / 50 * 51 - left),
        );
    }
}

fn warn_of_limit(facts: &Facts, warn: &mut impl FnMut(String, String)) {
    let Some(limit) = &facts.memory_limit else { return };
    let takes = match facts.pool_bytes {
        0 => format!("a rack of kind tmpfs takes {}", ByteSize(RACK_BYTES)),
        bytes => format!("the racks of the pool take {}", ByteSize(bytes)),
    };
    if limit.bytes < facts.pool_bytes.max(RACK_BYTES) {
        warn(
            format!("{limit}, and {takes}: the kernel kills processes of the group that use more"),
            limit.fix(),
        );
    }
}

fn warn_of_cxl(facts: &Facts, warn: &mut impl FnMut(String, String)) {
    for memory in facts.cxl.iter().filter(|memory| memory.is_mapped == Some(false)) {
        let (kind, then) = match memory.pmem_bytes {
            0 => ("ram", ""),
            _ => ("pmem", " && ndctl create-namespace -m devdax"),
        };
        warn(
            format!(
                "the CXL memory {} ({}) is not in use: it has no address",
                memory.name,
                ByteSize(memory.ram_bytes.saturating_add(memory.pmem_bytes))
            ),
            format!(
                "cxl create-region -m -d decoder0.0 -t {kind} {}{then} # `cxl list -D` names the decoders",
                memory.name
            ),
        );
    }
    for device in facts.dax.iter().filter(|device| device.driver.is_none()) {
        warn(
            format!("{} has no driver", device.name),
            format!("daxctl reconfigure-device --mode=devdax {}", device.name),
        );
    }
}

fn warn_of_cards(facts: &Facts, warn: &mut impl FnMut(String, String)) {
    if facts.nodes.len() < 2 {
        return;
    }
    for port in facts.rdma.iter().filter(|port| port.is_active() && port.node.is_none()) {
        warn(
            format!("the kernel does not say to which NUMA node {} is attached", port.device),
            "give the node with --numa-node N and --frames-node N".into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use rackpool_shm::free_space::Room;
    use rackpool_shm::host::{HostFiles, HugePool, MemoryLimit, NumaNode};

    use super::super::devices::{CxlMemory, DaxDevice};
    use super::super::fixture::port;
    use super::*;

    fn bare() -> Facts {
        let mut facts = Facts::gather(&HostFiles::at("/nonexistent"));
        facts.usable_cpus = vec![0, 1];
        facts.cpus = vec![0, 1];
        facts
    }

    fn node(id: u32, cpus: &[u32], distances: &[u32]) -> NumaNode {
        NumaNode {
            id,
            cpus: cpus.to_vec(),
            memory_bytes: 1 << 30,
            free_bytes: 1 << 30,
            distances: distances.to_vec(),
        }
    }

    fn warns(facts: &Facts, of: &str) -> bool {
        warnings(facts).iter().any(|w| w.what.contains(of) && !w.fix.is_empty())
    }

    #[test]
    fn cxl_memory_comes_before_huge_pages_and_these_before_small_ones() {
        let mut facts = bare();
        assert_eq!(memory(&facts, None).what, "--memory-kind memfd");
        let mounts = "t /dev/shm tmpfs rw 0 0\nn /mnt/h hugetlbfs rw,pagesize=2M 0 0\n";
        let (_folder, machine) =
            super::super::fixture::fixture(&[("proc/thread-self/mounts".into(), mounts)]);
        facts.shm = machine.mounts().first().cloned();
        facts.huge_mounts = machine.mounts().split_off(1);
        assert_eq!(memory(&facts, None).what, "--memory-kind tmpfs");
        facts.huge_pools =
            vec![HugePool { page_bytes: 2 << 20, total: 9, free: 9, ..Default::default() }];
        assert_eq!(memory(&facts, None).what, "--memory-kind huge:2M");
        facts.nodes = vec![node(0, &[0, 1], &[10, 20]), node(1, &[], &[20, 10])];
        assert_eq!(memory(&facts, None).what, "--memory-kind numa:1");
        facts.dax = vec![DaxDevice {
            name: "dax0.0".into(),
            bytes: 1 << 30,
            align: 2 << 20,
            node: Some(1),
            driver: Some("kmem".into()),
        }];
        assert_eq!(memory(&facts, None).what, "--memory-kind numa:1", "the kernel has it");
        facts.dax[0].driver = Some("device_dax".into());
        assert_eq!(memory(&facts, None).what, "--memory-kind dax:/dev/dax0.0");
    }

    #[test]
    fn cxl_memory_that_nothing_maps_is_named_with_what_maps_it() {
        let mut facts = bare();
        facts.cxl = vec![CxlMemory {
            name: "mem0".into(),
            ram_bytes: 0,
            pmem_bytes: 256 << 20,
            node: None,
            is_mapped: Some(false),
        }];
        assert!(warns(&facts, "the CXL memory mem0 (256 MiB) is not in use"));
        let fix = |facts: &Facts| {
            let of_memory = |warning: &Warning| warning.what.contains("mem0");
            warnings(facts).into_iter().find(of_memory).unwrap().fix
        };
        assert!(fix(&facts).starts_with(
            "cxl create-region -m -d decoder0.0 -t pmem mem0 && ndctl create-namespace -m devdax #"
        ));
        (facts.cxl[0].ram_bytes, facts.cxl[0].pmem_bytes) = (1 << 30, 0);
        assert!(fix(&facts).starts_with("cxl create-region -m -d decoder0.0 -t ram mem0 #"));
        for unsaid in [None, Some(true)] {
            facts.cxl[0].is_mapped = unsaid;
            assert!(!warns(&facts, "mem0"));
        }
    }

    #[test]
    fn room_that_is_missing_is_named_with_what_makes_it() {
        let mut facts = bare();
        let room = |free, claimed| Room {
            pool: "/dev/shm/rackpool".into(),
            mount: "/dev/shm".into(),
            is_tmpfs: true,
            total: 2 << 30,
            free,
            claimed,
        };
        assert!(!warns(&facts, "/dev/shm has"), "nothing limits it");
        facts.room = Some(room(2 << 30, 1 << 30));
        assert!(!warns(&facts, "/dev/shm has"));
        facts.room = Some(room(1 << 30, 1 << 29));
        assert!(warns(&facts, "/dev/shm has room for 512 MiB more"));
        facts.room = Some(room(1 << 30, 3 << 29));
        assert!(warns(&facts, "may still take 1.5 GiB: the kernel kills"));
        let fix = warnings(&facts).into_iter().find(|warning| warning.what.contains("SIGBUS"));
        assert_eq!(fix.unwrap().fix, "`mount -o remount,size=2560M /dev/shm`");
    }

    #[test]
    fn a_memory_cgroup_smaller_than_the_pool_is_named_with_what_raises_it() {
        let mut facts = bare();
        assert!(!warns(&facts, "memory cgroup"), "nothing limits it");
        let limit = |bytes| Some(MemoryLimit { bytes, file: "/sys/fs/cgroup/a/memory.max".into() });
        facts.memory_limit = limit(512 << 20);
        assert!(warns(&facts, "the memory cgroup /sys/fs/cgroup/a allows 512 MiB, and a rack"));
        facts.memory_limit = limit(2 << 30);
        assert!(!warns(&facts, "memory cgroup"));
        facts.pool_bytes = 3 << 30;
        assert!(warns(&facts, "allows 2 GiB, and the racks of the pool take 3 GiB"));
        let fix = warnings(&facts).into_iter().find(|warning| warning.what.contains("cgroup"));
        assert!(fix.unwrap().fix.contains("raise /sys/fs/cgroup/a/memory.max"));
    }

    #[test]
    fn placement_follows_the_card_else_the_memory() {
        let mut facts = bare();
        assert_eq!(placement(&facts).what, "anywhere");
        facts.nodes = vec![
            node(0, &[0], &[10, 20, 30]),
            node(1, &[1], &[20, 10, 15]),
            node(2, &[], &[30, 15, 10]),
        ];
        assert_eq!(placement(&facts).what, "node 1");
        facts.rdma = vec![port("ACTIVE", &["::1"], Some(0))];
        assert_eq!(placement(&facts).what, "node 0");
        let frames = |facts: &Facts| Verdict::of(facts, &CredentialsCheck::None, None).frames;
        assert_eq!(frames(&facts).what, "node 0");
        facts.node_load = [(0, 0.9), (1, 0.1)].into();
        assert_eq!(frames(&facts).what, "node 1");
        facts.rdma[0].node = None;
        assert_eq!(frames(&facts).what, "anywhere");
        assert!(warns(&facts, "which NUMA node mlx5_0"));
    }

    #[test]
    fn every_warning_has_its_cause_and_its_fix() {
        let mut facts = bare();
        facts.membarrier = false;
        assert!(
            warns(&facts, "no huge pages of 2 MiB") && warns(&facts, "no expedited membarrier")
        );
        assert!(warns(&facts, "/dev/shm is no tmpfs"));
        facts.huge_pools = vec![HugePool { page_bytes: 2 << 20, total: 1, ..Default::default() }];
        assert!(warns(&facts, "no hugetlbfs is mounted"));
        facts.usable_cpus = vec![1];
        assert!(warns(&facts, "one processor"));
    }
}
