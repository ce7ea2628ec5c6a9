//! Placement of a daemon's data plane and of the memory that it shares, as the kernel reports it:
//! the processors of threads, and the NUMA policy of each mapping.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeMap;

use rackpool_client::RackId;
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::FabricKind;
use rackpool_shm::host::{HostFiles, NumaNode, list_text};
use rackpool_shm::memory::MemoryKind;
use rackpool_testing::skipped;
use rackpool_tests::contents;
use rackpool_tests::pool::TestPool;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// The thread that serves clients and other racks.
const DATA_PLANE: &str = "data-plane";
/// The memory into which devices write, by the name that the kernel shows.
const BUFFERS: &str = "memfd:rackpool-buffers";

fn cpus(set: &CpuSet) -> Vec<u32> {
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu.try_into().unwrap()).collect()
}

fn set_of(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(usize::try_from(*cpu).unwrap()));
    set
}

/// The processors of a process's threads, by thread name.
fn threads(process: u32) -> BTreeMap<String, Vec<Vec<u32>>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let task = task.unwrap();
        let number = task.file_name().to_str().unwrap().parse().unwrap();
        // A thread may have ended meanwhile.
        let Ok(name) = std::fs::read_to_string(task.path().join("comm")) else { continue };
        let Ok(set) = sched_getaffinity(Pid::from_raw(number)) else { continue };
        found.entry(name.trim().to_owned()).or_default().push(cpus(&set));
    }
    found
}

/// The policies of all mappings of a file.
fn policies(process: u32, file: &str) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/numa_maps")).unwrap();
    let is_of_file = |line: &&str| {
        line.split_whitespace()
            .any(|word| word.strip_prefix("file=").is_some_and(|path| path.contains(file)))
    };
    let policy = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
    maps.lines().filter(is_of_file).map(policy).collect()
}

/// The options of a daemon, and the expected placement.
struct Case<'a> {
    numa_node: &'a str,
    frames_node: &'a str,
    memory_kind: MemoryKind,
    /// The processors of the data plane; those of the other threads are `inherited`.
    data_plane: Vec<u32>,
    shared: String,
    frames: String,
    said: String,
}

/// Starts a pool whose daemons inherit one processor, and checks the placement.
fn check(case: &Case<'_>, inherited: &[u32]) {
    let mut pool = TestPool::with(|options| {
        options.numa_node = case.numa_node.into();
        options.frames_node = case.frames_node.into();
        options.memory_kind = case.memory_kind.clone();
    });
    let _client = pool.open(0);
    let said = pool.status(0).placement;
    assert_eq!(said.split(';').next(), Some(&*case.said));
    let process = pool.cluster.daemon(RackId(0)).unwrap().id();
    let threads = threads(process);
    assert_eq!(threads[DATA_PLANE], std::slice::from_ref(&case.data_plane), "{threads:?}");
    let others = threads.iter().filter(|(name, _)| *name != DATA_PLANE);
    for (name, found) in others {
        assert!(found.iter().all(|cpus| cpus == inherited), "{name}: {found:?}");
    }
    let frames = match case.memory_kind {
        MemoryKind::Memfd => "memfd:rackpool-frames",
        _ => "rack-0/frames",
    };
    let memory = pool.status(0).frame_memory;
    assert!(memory.bytes > 0 && memory.page_bytes > 0, "{memory:?}");
    let asked: Option<u32> = case.frames_node.parse().ok();
    assert!(!memory.nodes.is_empty(), "the first page exists");
    assert!(memory.nodes.iter().all(|(node, _)| asked.is_none_or(|asked| asked == *node)));
    // The rings, the call cells and the data ring all lie in the client's file.
    for (file, policy) in
        [("rack-0/client-", &case.shared), (BUFFERS, &case.shared), (frames, &case.frames)]
    {
        let found = policies(process, file);
        assert!(!found.is_empty(), "{file} is not mapped");
        assert!(found.iter().all(|found| found == policy), "{file}: {found:?} and not {policy}");
    }
}

/// The processors of a node that this process may use.
fn allowed(node: &NumaNode) -> Vec<u32> {
    apart(|| {
        sched_setaffinity(None, &set_of(&node.cpus)).unwrap();
        cpus(&sched_getaffinity(None).unwrap())
    })
}

/// Runs `what` in a thread of its own, so that its affinity does not affect other tests.
fn apart<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(what).join().unwrap())
}

#[test]
fn thread_rings_buffers_and_frames_are_where_they_are_said_to_be() {
    let machine = HostFiles::here();
    let has_room = |node: &NumaNode| !node.cpus.is_empty() && node.free_bytes > 128 << 20;
    let Some(node) = machine.nodes().into_iter().find(has_room) else {
        return skipped("this kernel knows no NUMA node with processors and memory to spare");
    };
    let all = allowed(&node);
    apart(|| are_where_they_are_said_to_be(&node, all));
}

fn are_where_they_are_said_to_be(node: &NumaNode, all: Vec<u32>) {
    // Daemons inherit the affinity of the thread that starts them: less than the node.
    let one = vec![all[0]];
    sched_setaffinity(None, &set_of(&one)).unwrap();
    check(
        &Case {
            numa_node: &node.id.to_string(),
            frames_node: "auto",
            memory_kind: MemoryKind::Node(node.id),
            data_plane: all,
            shared: format!("prefer:{}", node.id),
            frames: format!("bind:{}", node.id),
            said: format!(
                "thread (CPUs {}), client files and buffers on NUMA node {} (as asked), frames on NUMA node {} (as the kind of memory says)",
                list_text(&node.cpus),
                node.id,
                node.id
            ),
        },
        &one,
    );
    for memory_kind in [MemoryKind::Tmpfs, MemoryKind::Memfd] {
        check(
            &Case {
                numa_node: "none",
                frames_node: &node.id.to_string(),
                memory_kind,
                data_plane: one.clone(),
                shared: "default".into(),
                frames: format!("prefer:{}", node.id),
                said: format!(
                    "thread, client files and buffers anywhere (as asked), frames on NUMA node {} (as asked)",
                    node.id
                ),
            },
            &one,
        );
    }
    check(
        &Case {
            numa_node: "none",
            frames_node: "none",
            memory_kind: MemoryKind::Tmpfs,
            data_plane: one.clone(),
            shared: "default".into(),
            frames: "default".into(),
            said:
                "thread, client files and buffers anywhere (as asked), frames anywhere (as asked)"
                    .into(),
        },
        &one,
    );
}

#[test]
fn a_data_plane_has_its_processor_and_all_else_of_the_daemon_the_others() {
    let all = cpus(&sched_getaffinity(None).unwrap());
    let [others @ .., own] = &all[..] else { panic!("no processor may be used") };
    if others.is_empty() {
        return skipped("this process may use one processor: nobody can be kept off it");
    }
    // The TCP fabric has a server thread of its own, the busiest of the other threads.
    let mut pool = TestPool::with(|options| {
        options.cpus = vec![*own; 2];
        // With two data planes on one busy processor a longer lease keeps racks from being taken
        // for dead.
        options.lease_ms = 20_000;
        options.numa_node = "none".into();
        options.fabric = FabricKind::Tcp;
    });
    let (here, there) = (pool.open(0), pool.open(1));
    here.ping().unwrap();
    let addr = here.alloc(1000).unwrap();
    there.write(addr, &contents::of(1, 1000)).unwrap();
    let mut found = [0; 1000];
    here.read(addr, &mut found).unwrap();
    assert_eq!(contents::difference(1, &found), None);
    for rack in [0, 1] {
        let said = pool.status(rack).placement;
        let others_text = list_text(others);
        let wanted = format!(
            "thread on CPU {own} (others of the daemon on {others_text}), client files and buffers "
        );
        assert!(said.starts_with(&wanted), "{said}");
        let mut threads = threads(pool.cluster.daemon(RackId(rack)).unwrap().id());
        assert_eq!(threads.remove(DATA_PLANE).unwrap(), [vec![*own]]);
        for name in ["rackpool-daemon", "fabric-server", "fabric-connecto"] {
            assert!(threads.contains_key(name), "no {name}: {threads:?}");
        }
        for (name, found) in threads {
            assert!(found.iter().all(|cpus| cpus == others), "{name}: {found:?}");
        }
    }
}

#[test]
fn a_processor_that_can_not_be_had_is_refused() {
    let refused = |cpu: u32| {
        let mut options = ClusterOptions::ephemeral().unwrap();
        (options.racks, options.cpus) = (1, vec![cpu]);
        Cluster::start(options).unwrap_err().to_string()
    };
    let said = refused(4000);
    assert!(said.contains("--cpu 4000: there is no such processor, this computer has "), "{said}");
    let all = cpus(&sched_getaffinity(None).unwrap());
    let [first, second, ..] = all[..] else {
        return skipped("this process may use one processor, so there is no other to be refused");
    };
    let said = apart(|| {
        sched_setaffinity(None, &set_of(&[first])).unwrap();
        refused(second)
    });
    let wanted = format!(
        "--cpu {second}: this process may use the processors {first} only: choose one of them"
    );
    assert!(said.contains(&wanted), "{said}");
}
