//! Daemons with memory of each kind. Kinds that this machine does not offer are reported as
//! skipped; their refusal is tested in `crates/shm/tests/memory_kinds.rs`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::time::{Duration, Instant};

use rackpool_client::{AccessError, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_shm::ReadOnlyMapping;
use rackpool_shm::delay::ExtraLatency;
use rackpool_shm::host::HostFiles;
use rackpool_shm::memory::MemoryKind;
use rackpool_shm::superblock::SUPERBLOCK_BYTES;
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_for, wait_until};
use rackpool_tests::contents;
use rackpool_tests::mounts::with_tmpfs;
use rackpool_tests::pool::{PAGE, TestPool};

const LEN: usize = 100_000;

fn pool_of(kind: &MemoryKind) -> TestPool {
    TestPool::with(|options| {
        options.memory_kind = kind.clone();
    })
}

/// Checks that a value is written by one rack, read by the other, and kept when the daemon is
/// killed.
fn holds(kind: &MemoryKind) {
    let mut pool = pool_of(kind);
    pool.wait_until_racks_meet();
    assert!(pool.status(0).memory.starts_with(&kind.to_string()), "{}", pool.status(0).memory);
    let racks = [pool.open(0), pool.open(1)];
    let addr = racks[1].alloc(LEN as u64).unwrap();
    racks[0].write(addr, &contents::of(1, LEN)).unwrap();
    pool.kill_daemon(1);
    pool.restart_daemon(1);
    for rack in 0..2 {
        let mut found = vec![0; LEN];
        let client = pool.open(rack);
        wait_until("the rack is back", TIMEOUT, || client.read(addr, &mut found).is_ok());
        assert_eq!(contents::difference(1, &found), None);
    }
    // The rack's own client goes on as well.
    racks[1].write(addr, &contents::of(2, LEN)).unwrap();
}

#[test]
fn memory_of_every_kind_with_a_name_outlives_its_daemon() {
    let machine = HostFiles::here();
    holds(&MemoryKind::Tmpfs);
    match machine.nodes().iter().rev().find(|node| node.free_bytes > 128 << 20) {
        Some(node) => holds(&MemoryKind::Node(node.id)),
        None => skipped("a pool of kind numa: no node has 128 MiB to spare"),
    }
    for page in machine.mounts().iter().filter_map(|mount| mount.huge_page()) {
        // Two racks of 16 MiB.
        let needed = 2 * (16_u64 << 20).div_ceil(page.bytes());
        if (16_u64 << 20).is_multiple_of(page.bytes())
            && machine.huge_pool(page).available() >= needed
        {
            holds(&MemoryKind::Huge(page));
        } else {
            skipped(&format!("a pool of kind huge:{page}: {needed} pages are not free"));
        }
    }
    if machine.mounts().iter().all(|mount| mount.huge_page().is_none()) {
        skipped("a pool of kind huge: no hugetlbfs is mounted");
    }
}

#[test]
fn memory_without_a_name_is_lost_with_its_daemon_and_said_to_be() {
    let mut pool = pool_of(&MemoryKind::Memfd);
    pool.wait_until_racks_meet();
    let racks = [pool.open(0), pool.open(1)];
    let addr = racks[1].alloc(LEN as u64).unwrap();
    racks[0].write(addr, &contents::of(1, LEN)).unwrap();
    let mut found = vec![0; LEN];
    racks[1].read(addr, &mut found).unwrap();
    assert_eq!(contents::difference(1, &found), None);
    pool.kill_daemon(1);
    pool.restart_daemon(1);
    let log = std::fs::read_to_string(pool.cluster.daemon(RackId(1)).unwrap().log()).unwrap();
    assert!(log.contains("its pages are lost, and the rack starts empty"), "{log}");
    // The lease of the lost memory was given back, so clients do not wait until it expires.
    let lost = wait_for("the loss is known", TIMEOUT, || {
        let error = racks[0].read(addr, &mut [0; 64]).err()?;
        (error != AccessError::RackUnavailable(RackId(1))).then_some(error)
    });
    assert_eq!(lost, AccessError::PageLost(addr));
    let again = pool.open(1);
    let fresh = again.alloc(LEN as u64).unwrap();
    again.write(fresh, &contents::of(3, LEN)).unwrap();
    wait_until("the new memory is reached", TIMEOUT, || racks[0].read(fresh, &mut found).is_ok());
    assert_eq!(contents::difference(3, &found), None);
}

/// `crates/shm/src/window/tests.rs` counts which accesses wait. This test checks that a daemon
/// applies the option, and that a program is slowed down.
#[test]
fn a_distance_is_emulated_only_if_it_is_asked_for_and_then_for_each_local_access() {
    const READS: u32 = 2000;
    const NS: u32 = 10_000;
    for ns in [0, NS] {
        let pool = TestPool::with(|options| options.cxl_latency_ns = ns);
        let said = pool.status(0).memory;
        assert_eq!(said.contains("emulated as CXL memory"), ns > 0, "{said}");
        let file = std::fs::File::open(pool.rack_dir(0).join("metadata")).unwrap();
        let noted = ReadOnlyMapping::new(&file, SUPERBLOCK_BYTES).unwrap();
        assert_eq!(ExtraLatency::noted_in(&noted).unwrap().is_none(), ns == 0);
        let own = pool.open(0);
        let addr = own.alloc(64).unwrap();
        own.write(addr, &[1; 64]).unwrap();
        let began = Instant::now();
        (0..READS).for_each(|_| own.read(addr, &mut [0; 64]).unwrap());
        // A core that runs faster than when the delay was calibrated waits for less.
        let least = Duration::from_nanos(u64::from(READS * ns)) / 2;
        assert!(began.elapsed() >= least, "{READS} reads took {:?}", began.elapsed());
    }
}

#[test]
fn memory_of_another_kind_than_it_was_made_of_is_refused() {
    let mut pool = pool_of(&MemoryKind::Tmpfs);
    pool.kill_daemon(0);
    let memory = pool.cluster.options().memory;
    let said = refusal(&pool, "0", "huge:2M", memory);
    assert!(said.contains("made with --memory-kind tmpfs"), "{said}");
    assert!(said.contains("--memory-kind huge:2M was asked for"), "{said}");
    pool.restart_daemon(0);
}

#[test]
fn a_refused_kind_leaves_nothing_that_stands_in_the_way() {
    let pool = pool_of(&MemoryKind::Tmpfs);
    for memory in [32 << 20, 16 << 20, 64 << 20] {
        let said = refusal(&pool, "5", "numa:999", memory);
        assert!(said.contains("there is no NUMA node 999"), "{said}");
        let said = refusal(&pool, "5", "dax:/dev/null", memory);
        assert!(said.contains("/dev/null is no dax device"), "{said}");
    }
    assert!(!pool.rack_dir(5).exists());
}

/// The message of a daemon that must end by itself.
fn refusal(pool: &TestPool, rack: &str, kind: &str, memory: u64) -> String {
    let refused = std::process::Command::new(rackpool_tests::client::program("rackpool-daemon"))
        .args(["--rack", rack, "--memory-kind", kind])
        .args(["--metadata", pool.cluster.metadata_address()])
        .args(["--memory", &memory.to_string()])
        .args(["--page-size", &pool.cluster.options().page_size.to_string()])
        .arg("--dir")
        .arg(pool.dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    said
}

/// Without room for its last page, the kernel would kill a process that uses that page (SIGBUS).
#[test]
fn a_pool_that_fills_its_file_system_is_full_before_that_is() {
    with_tmpfs("a pool on a small tmpfs", 64, |folder| {
        let start = |memory: u64| {
            let mut options = ClusterOptions::ephemeral().unwrap();
            (options.dir, options.store) = (folder.join("pool"), folder.join("pool/store"));
            options.page_size = PAGE;
            options.memory = memory;
            options.daemon_arguments = vec![("--swap", "off".into()), ("--nice", "0".into())];
            Cluster::start(options)
        };
        let refused = format!("{:#}", start(64 << 20).unwrap_err());
        assert!(refused.contains("has 64 MiB"), "{refused}");
        assert!(refused.contains("mount -o remount,size="), "{refused}");
        let pool = TestPool { cluster: start(20 << 20).unwrap() };
        pool.wait_until_racks_meet();
        // Each client has a file in the same file system.
        let mut clients = Vec::new();
        let refused = loop {
            match Pool::open(pool.options(0)) {
                Ok(client) => clients.push(client),
                Err(error) => break error.to_string(),
            }
        };
        assert!(refused.contains("no room for the file of a client"), "{refused}");
        assert!(refused.contains("mount -o remount,size="), "{refused}");
        let page = contents::of(1, usize::try_from(PAGE).unwrap());
        let mut filled = 0;
        while let Ok(addr) = clients[0].alloc(PAGE) {
            clients[0].write(addr, &page).unwrap();
            filled += PAGE;
        }
        assert_eq!(filled, 2 * (20 << 20));
        // A client that closes makes room for another.
        clients.pop().unwrap().close();
        wait_for("there is room for a client", TIMEOUT, || Pool::open(pool.options(0)).ok());
    });
}
