//! A daemon that can't serve reports the reason and a way to fix it, and leaves everything
//! unchanged.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{SigSet, Signal};
use rackpool_admin::MetadataServer;
use rackpool_client::{GlobalAddr, RackId};
use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, try_wait_for, wait_for, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};

const MEMORY: u64 = 16 << 20;

/// Creates a rack's folder as a daemon does.
fn rack_folder(path: &Path) {
    std::fs::DirBuilder::new().mode(0o700).create(path).unwrap();
}

/// Options of a daemon; each test changes some.
struct Start {
    rack: String,
    dir: PathBuf,
    metadata: String,
    memory: u64,
    page_size: u64,
    /// Additional options.
    more: Vec<String>,
}

impl Start {
    fn of(pool: &TestPool, rack: u16) -> Self {
        Self {
            rack: rack.to_string(),
            dir: pool.dir().to_path_buf(),
            metadata: pool.cluster.metadata_address().to_owned(),
            memory: MEMORY,
            page_size: PAGE,
            more: Vec::new(),
        }
    }

    /// Starts the daemon and checks that it ends as misused, with this reason and this fix.
    #[track_caller]
    fn is_misused(&self, reason: &str, mend: &str) {
        self.ends_with(2, reason, mend);
    }

    /// Checks that the daemon ends as one that can't serve, with this reason and this fix.
    #[track_caller]
    fn is_refused(&self, reason: &str, mend: &str) {
        self.ends_with(1, reason, mend);
    }

    #[track_caller]
    fn ends_with(&self, code: i32, reason: &str, mend: &str) {
        let mut child = Command::new(program("rackpool-daemon"))
            .args(["--rack", &self.rack, "--metadata", &self.metadata])
            .args(["--memory", &self.memory.to_string()])
            .args(["--page-size", &self.page_size.to_string()])
            .arg("--dir")
            .arg(&self.dir)
            .args(&self.more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if try_wait_for(TIMEOUT, || child.try_wait().unwrap()).is_none() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(reason), "'{reason}' is not in: {said}");
        assert!(said.contains(mend), "'{mend}' is not in: {said}");
    }
}

/// The contents of all files of a folder, except the superblock's incarnation number and the
/// machine's capabilities.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && path.extension().is_none_or(|end| end != "log"))
        .map(|path| {
            let mut bytes = std::fs::read(&path).unwrap();
            if path.ends_with("metadata") && bytes.len() > 4096 {
                bytes[72..80].fill(0);
                bytes[120..128].fill(0);
                bytes[192..196].fill(0);
            }
            (path, bytes)
        })
        .collect()
}

/// A pool with a value in rack 0, whose daemon was killed.
fn killed() -> (TestPool, GlobalAddr) {
    let mut pool = TestPool::small();
    let client = pool.open(0);
    let addr = client.alloc(1000).unwrap();
    client.write(addr, &contents::of(1, 1000)).unwrap();
    client.close();
    pool.kill_daemon(0);
    (pool, addr)
}

/// Starts the daemon with valid options and checks that the value is present.
fn serves_again(pool: &mut TestPool, addr: GlobalAddr) {
    pool.restart_daemon(0);
    let mut found = [0; 1000];
    pool.open(0).read(addr, &mut found).unwrap();
    assert_eq!(contents::difference(1, &found), None);
}

fn same(before: &BTreeMap<PathBuf, Vec<u8>>, folder: &Path) {
    let after = files(folder);
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    for (path, bytes) in before {
        let at = bytes.iter().zip(&after[path]).position(|(before, after)| before != after);
        assert_eq!((at, after[path].len()), (None, bytes.len()), "{} changed", path.display());
    }
}

/// Inverts one bit of a byte.
fn flip(file: &std::fs::File, at: u64, bit: u8) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ bit], at).unwrap();
}

#[test]
fn a_damaged_superblock_is_refused() {
    let (mut pool, addr) = killed();
    let path = pool.rack_dir(0).join("metadata");
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // A bit of each byte, and one more in the fields of the first page, the incarnation and the
    // kind of memory: in byte 104 it turns `tmpfs` into `memfd`.
    let bits = (0..112).map(|at| (at, 0x40)).chain((64..80).chain(104..112).map(|at| (at, 1)));
    for (at, bit) in bits {
        // The field that says whether a client has closed the pool; it is unused in a rack's own
        // file.
        if (96..104).contains(&at) {
            continue;
        }
        flip(&file, at, bit);
        let before = files(&pool.rack_dir(0));
        let reason = match at {
            0..8 => "is no file of rackpool",
            12..16 => "has format",
            _ => "is damaged",
        };
        Start::of(&pool, 0).is_refused(reason, "rem");
        same(&before, &pool.rack_dir(0));
        flip(&file, at, bit);
    }
    serves_again(&mut pool, addr);
}

#[test]
fn flipped_bits_of_what_is_no_content_lose_nothing() {
    let (mut pool, addr) = killed();
    let path = pool.rack_dir(0).join("metadata");
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // Closed, extra latency, the two checks of the incarnation, sleep word, barrier.
    for at in [96, 103, 112, 119, 120, 127, 128, 192, 195] {
        flip(&file, at, 0x40);
        serves_again(&mut pool, addr);
        pool.kill_daemon(0);
        // Restores this byte, so that only one bit is flipped at a time.
        if (96..104).contains(&at) {
            flip(&file, at, 0x40);
        }
    }
    serves_again(&mut pool, addr);
}

#[test]
fn a_superblock_that_lost_its_contents_is_refused() {
    let (mut pool, addr) = killed();
    let path = pool.rack_dir(0).join("metadata");
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    // The whole superblock; the first page; the incarnation.
    for lost in [0..4096, 64..72, 72..80] {
        let mut kept = vec![0; lost.end - lost.start];
        file.read_exact_at(&mut kept, lost.start as u64).unwrap();
        file.write_all_at(&vec![0; kept.len()], lost.start as u64).unwrap();
        let before = files(&pool.rack_dir(0));
        Start::of(&pool, 0).is_refused("is damaged", "remove the rack's folder");
        same(&before, &pool.rack_dir(0));
        file.write_all_at(&kept, lost.start as u64).unwrap();
    }
    serves_again(&mut pool, addr);
}

#[test]
fn cut_foreign_and_missing_files_are_refused() {
    let (mut pool, addr) = killed();
    let folder = pool.rack_dir(0);
    for name in ["metadata", "frames"] {
        let (path, kept) = (folder.join(name), folder.join("kept.log"));
        std::fs::copy(&path, &kept).unwrap();
        let len = std::fs::metadata(&path).unwrap().len();
        for cut in [len - 1, len / 2, 4096, 100] {
            std::fs::File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let before = files(&folder);
            let reason =
                if name == "metadata" && cut < 4096 { "no file of rackpool" } else { "cut" };
            Start::of(&pool, 0).is_refused(reason, "remove");
            same(&before, &folder);
            std::fs::copy(&kept, &path).unwrap();
        }
    }
    let (metadata, kept) = (folder.join("metadata"), folder.join("kept.log"));
    std::fs::copy(&metadata, &kept).unwrap();
    std::fs::write(&metadata, "letters to my aunt ".repeat(10_000)).unwrap();
    let before = files(&folder);
    Start::of(&pool, 0).is_refused("is no file of rackpool", "remove that file");
    same(&before, &folder);
    std::fs::copy(&kept, &metadata).unwrap();
    let (frames, away) = (folder.join("frames"), folder.join("frames.log"));
    std::fs::rename(&frames, &away).unwrap();
    Start::of(&pool, 0).is_refused("frames is missing", "remove");
    assert!(!frames.exists());
    std::fs::rename(&away, &frames).unwrap();
    serves_again(&mut pool, addr);
}

#[test]
fn other_options_than_the_memory_was_made_with_are_refused() {
    let (mut pool, addr) = killed();
    let before = files(&pool.rack_dir(0));
    let start = || Start::of(&pool, 0);
    let old = "start with the old settings";
    Start { memory: 2 * MEMORY, ..start() }.is_refused("was made with", old);
    Start { memory: MEMORY / 2, ..start() }.is_refused("was made with", old);
    Start { page_size: 2 * PAGE, ..start() }.is_refused("was made with", old);
    Start { memory: MEMORY + 1, ..start() }.is_misused("--memory", "whole number of pages");
    Start { page_size: PAGE + 1, ..start() }.is_misused("page", "power of two");
    Start { rack: "300".into(), ..start() }.is_misused("rack 300", "0 to 255");
    let renamed = pool.dir().join("rack-7");
    rack_folder(&renamed);
    for path in before.keys() {
        std::fs::copy(path, renamed.join(path.file_name().unwrap())).unwrap();
    }
    Start { rack: "7".into(), ..start() }.is_refused("was made with", old);
    same(&before, &pool.rack_dir(0));
    serves_again(&mut pool, addr);
}

#[test]
fn a_second_daemon_of_a_rack_is_refused() {
    let (mut pool, addr) = killed();
    serves_again(&mut pool, addr);
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let same_folder = Start::of(&pool, 0);
    let other_folder = Start { dir: other.path().to_path_buf(), ..Start::of(&pool, 0) };
    for _ in 0..3 {
        same_folder.is_refused("in use by another rack daemon", "stop that daemon");
        other_folder.is_refused("served by another daemon", "choose another --rack");
        let mut found = [0; 1000];
        pool.open(0).read(addr, &mut found).unwrap();
        assert_eq!(contents::difference(1, &found), None);
    }
}

#[test]
fn a_metadata_server_that_is_away_or_has_lost_its_store_is_told() {
    let (mut pool, _) = killed();
    pool.kill_daemon(1);
    pool.cluster.metadata().kill().unwrap();
    // Memory without page ids needs the metadata server.
    let fresh = tempfile::tempdir_in("/dev/shm").unwrap();
    let start = Start { dir: fresh.path().to_path_buf(), ..Start::of(&pool, 3) };
    start.is_refused("no metadata server at", "start it first");
    // A metadata server with an empty store would give the pages of a rack to others, or take pages
    // in use for free.
    let store = pool.cluster.options().store.clone();
    std::fs::rename(&store, store.with_extension("kept")).unwrap();
    pool.cluster.restart_metadata().unwrap();
    for rack in [0, 1] {
        let before = files(&pool.rack_dir(rack));
        Start::of(&pool, rack).is_refused("another metadata store", "with the store that it had");
        same(&before, &pool.rack_dir(rack));
    }
    // With the original store everything works.
    pool.cluster.metadata().kill().unwrap();
    std::fs::rename(store.with_extension("kept"), &store).unwrap();
    pool.cluster.restart_metadata().unwrap();
    pool.restart_daemon(1);
    pool.restart_daemon(0);
    pool.wait_until_racks_serve();
}

#[test]
fn a_daemon_killed_while_it_makes_its_memory_can_be_started_again() {
    let mut pool = TestPool::small();
    pool.kill_daemon(1);
    let folder = pool.rack_dir(1);
    let lens = ["metadata", "frames"].map(|n| std::fs::metadata(folder.join(n)).unwrap().len());
    // States of the files after a kill during the daemon's very first start.
    let states: [(Option<u64>, Option<u64>); 5] = [
        (None, None),
        (Some(0), None),
        (Some(lens[0]), None),
        (Some(lens[0]), Some(0)),
        (Some(lens[0]), Some(lens[1])),
    ];
    for state in states {
        std::fs::remove_dir_all(&folder).unwrap();
        rack_folder(&folder);
        for (name, len) in [("metadata", state.0), ("frames", state.1)] {
            if let Some(len) = len {
                std::fs::File::create(folder.join(name)).unwrap().set_len(len).unwrap();
            }
        }
        // The rack's earlier memory counts as served until its lease has expired.
        wait_for("the daemon starts", TIMEOUT, || pool.cluster.restart_daemon(RackId(1)).ok());
        let client = pool.open(1);
        let addr = client.alloc(100).unwrap();
        client.write(addr, &[1; 100]).unwrap();
        client.close();
        pool.kill_daemon(1);
    }
}

#[test]
fn processes_stop_when_asked_even_if_their_starter_blocks_signals() {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTERM);
    blocked.add(Signal::SIGINT);
    blocked.thread_block().unwrap();
    let mut pool = TestPool::small();
    let _client = pool.open(0);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        pool.cluster.daemon(RackId(0)).unwrap().signal(signal).unwrap();
        wait_until("the daemon has stopped", TIMEOUT, || pool.try_status(0).is_none());
        assert!(pool.cluster.daemon(RackId(0)).unwrap().wait().unwrap().success());
        pool.restart_daemon(0);
    }
    pool.cluster.metadata().signal(Signal::SIGTERM).unwrap();
    assert!(pool.cluster.metadata().wait().unwrap().success());
}

#[test]
fn verbs_without_an_rdma_device_is_refused_and_leaves_nothing() {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        return skipped("this host has an RDMA device");
    }
    let pool = TestPool::small();
    let mut start = Start::of(&pool, 7);
    start.more = ["--fabric", "verbs"].map(String::from).into();
    let has_library = Command::new("ldconfig").arg("-p").output();
    let has_library = has_library
        .is_ok_and(|all| String::from_utf8_lossy(&all.stdout).contains("libibverbs.so.1"));
    if has_library {
        start.is_refused("no RDMA device can be used", "modprobe rdma_rxe");
    } else {
        start.is_refused("can't load libibverbs.so.1", "apt-get install libibverbs1");
    }
    nothing_is_left_of_rack_7(&pool);
}

#[test]
fn processors_are_kept_awake_as_long_as_the_daemon_runs_or_it_is_refused() {
    const DEVICE: &str = "/dev/cpu_dma_latency";
    if std::fs::File::options().write(true).open(DEVICE).is_err() {
        let pool = TestPool::small();
        let start = Start { more: vec!["--wake-latency-us=50".into()], ..Start::of(&pool, 7) };
        start.is_refused(
            "can't be requested from /dev/cpu_dma_latency",
            "allow the daemon's user to write",
        );
        return nothing_is_left_of_rack_7(&pool);
    }
    for wanted in [true, false] {
        let mut pool = TestPool::with(|options| {
            let argument = ("--wake-latency-us", "50".to_owned());
            options.daemon_arguments.extend(wanted.then_some(argument));
        });
        let id = pool.cluster.daemon(RackId(0)).unwrap().id();
        let files = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
        let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        assert_eq!(files.any(|file| file == Path::new(DEVICE)), wanted);
    }
}

#[track_caller]
fn nothing_is_left_of_rack_7(pool: &TestPool) {
    assert!(!pool.rack_dir(7).exists(), "{:?}", files(&pool.rack_dir(7)).keys());
    let members = MetadataServer::at(pool.cluster.metadata_address()).status().unwrap().members;
    assert!(members.iter().all(|member| member.rack != RackId(7)), "{members:?}");
}

#[test]
fn options_that_cannot_be_meant_are_refused_before_anything_is_made() {
    let pool = TestPool::small();
    let mut start = Start::of(&pool, 7);
    for (name, value, reason, mend) in [
        ("--hot", "0.5", "makes every page hot", "from 1 on"),
        ("--hot", "NaN", "makes every page hot", "from 1 on"),
        ("--read-hot", "-1", "no ratio of reads to writes", "from 0 on"),
        ("--heat-decay", "inf", "can't decay by", "from 0 on"),
        ("--heat-lifetime-ms", "0", "lifetime of hotness is 0", "give the time"),
        ("--heat-lifetime-ms", "604800001", "is too long", "at most 7 days"),
        ("--rest-ms", "86400001", "is too long", "at most a day"),
        ("--metrics", "192.0.2.1:9000", "to this host only", "loopback address"),
    ] {
        // As one argument, since some values begin with a minus.
        start.more = vec![format!("{name}={value}")];
        start.is_misused(name, mend);
        start.is_misused(reason, mend);
        nothing_is_left_of_rack_7(&pool);
    }
    for (name, value, mend) in [
        ("--bandwidth-gbps", "0", "at least 0.001"),
        ("--bandwidth-gbps", "-1", "at least 0.001"),
        ("--bandwidth-gbps", "NaN", "at least 0.001"),
        ("--bandwidth-gbps", "fast", "at least 0.001"),
        ("--latency-us", "-1", "from 0 to"),
        ("--lease-ms", "1", "100"),
    ] {
        start.more = vec![format!("{name}={value}")];
        start.ends_with(2, name, mend);
        nothing_is_left_of_rack_7(&pool);
    }
}

/// Clients may address a server by name, so it must accept a name to listen on.
#[test]
fn servers_listen_where_a_name_says() {
    let pool = TestPool::with(|options| {
        options.fabric = rackpool_model::FabricKind::Tcp;
        options.daemon_arguments.push(("--fabric-listen", "localhost:0".into()));
        options.daemon_arguments.push(("--metrics", "localhost:0".into()));
    });
    pool.wait_until_racks_meet();
    let mut start = Start::of(&pool, 7);
    start.more = ["--fabric", "tcp", "--fabric-listen", "localhost"].map(String::from).to_vec();
    start.is_misused("--fabric-listen", "localhost:7400");
}

#[test]
fn a_wrong_list_of_the_racks_daemons_is_refused_with_the_fix() {
    let pool = TestPool::small();
    let mut start = Start::of(&pool, 7);
    for (list, reason, mend) in [
        ("8,9", "--rack-daemons", "7 of this one among them"),
        ("7,256", "--rack-daemons", "by their numbers (0 to 255)"),
        ("7,8,9,10,11,12,13,14,15", "--rack-daemons", "at most 8 daemons"),
    ] {
        start.more = vec![format!("--rack-daemons={list}")];
        start.is_misused(reason, mend);
        nothing_is_left_of_rack_7(&pool);
    }
}

#[test]
fn a_refused_start_leaves_nothing() {
    let pool = TestPool::small();
    let start = Start { page_size: 2 * PAGE, ..Start::of(&pool, 7) };
    start.is_refused("the pool's pages have", &format!("--page-size {PAGE}"));
    nothing_is_left_of_rack_7(&pool);
    let mut start = Start::of(&pool, 7);
    start.more = vec!["--fabric=tcp".into()];
    start.is_refused("the racks of a pool use the same", "--fabric emulated");
    nothing_is_left_of_rack_7(&pool);
    let nobody = Start { metadata: "127.0.0.1:1".into(), ..Start::of(&pool, 7) };
    nobody.is_refused("no metadata server at", "start it first");
    nothing_is_left_of_rack_7(&pool);
}

#[test]
fn files_that_the_kernel_writes_to_a_disk_are_no_memory() {
    let pool = TestPool::small();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mount = rackpool_shm::host::HostFiles::here().mount_of(folder.path());
    if mount.is_none_or(|mount| mount.kind == "tmpfs") {
        return skipped("the folder of the build is on no disk");
    }
    let start = Start { dir: folder.path().to_path_buf(), ..Start::of(&pool, 7) };
    start.is_refused("which is no memory", "choose a --dir on a tmpfs");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_silent_metadata_server_is_told_with_what_to_do() {
    // A server that accepts connections and sends nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut start = Start {
        rack: "7".into(),
        dir: folder.path().to_path_buf(),
        metadata: silent.local_addr().unwrap().to_string(),
        memory: MEMORY,
        page_size: PAGE,
        more: Vec::new(),
    };
    start.is_refused("gave no answer within", "read its log");
    // The metadata server may have given page ids to the memory, so the files stay. They hold no
    // data, so the next start may request other memory.
    assert!(folder.path().join("rack-7/frames").exists());
    start.page_size = 2 * PAGE;
    start.is_refused("gave no answer within", "read its log");
}

#[test]
fn a_fabric_that_cannot_be_is_refused_with_what_to_do() {
    let pool = TestPool::small();
    let mut start = Start::of(&pool, 7);
    start.more = ["--fabric", "tcp", "--fabric-listen", "192.0.2.1:7500"].map(String::from).into();
    start.is_misused("192.0.2.1:7500 is not on this host alone", "rackpool credentials init");
    start.more = ["--fabric", "tcp", "--fabric-listen", "0.0.0.0:7500"].map(String::from).into();
    start.is_misused("0.0.0.0:7500 is not on this host alone", "--credentials");
    start.more = ["--fabric-listen", "127.0.0.1:7500"].map(String::from).into();
    start.is_misused("the emulated fabric has no address", "--fabric tcp");
}

#[test]
fn pages_that_nobody_uses_take_next_to_no_memory() {
    const PAGES: u64 = 1 << 18;
    let pool = TestPool::start(PAGES * 4096, 4096);
    let file = std::fs::metadata(pool.rack_dir(0).join("metadata")).unwrap();
    // A page word and a slab header; the areas of published copies and bitmaps stay holes.
    let taken = file.blocks() * 512;
    let fixed = 256 << 10;
    assert!((PAGES * 8..PAGES * 24 + fixed).contains(&taken), "{taken} B for {PAGES} pages");
}
