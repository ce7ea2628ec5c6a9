//! The commands with which an operator inspects and repairs a pool: `rackpool root`, `table`,
//! `audit`, and how it watches and removes object stores.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Barrier};

use rackpool_client::{AccessError, GlobalAddr};
use rackpool_fs::{Caller, Ino, NewNode, Volume};
use rackpool_kv::{Table, TableOptions};
use rackpool_objects::Store;
use rackpool_shm::memory::MemoryKind;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use rackpool_tests::service::Service;

/// Runs a command; returns its output, or its error output if it fails.
fn rackpool(pool: &TestPool, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program("rackpool"));
    command.args(arguments).arg("--dir").arg(pool.dir()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let [said, complained] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    if output.status.success() { Ok(said) } else { Err(complained) }
}

fn parsed(pool: &TestPool, arguments: &[&str]) -> serde_json::Value {
    let said = rackpool(pool, &[arguments, &["--json"]].concat()).unwrap();
    serde_json::from_str(&said).unwrap()
}

fn small_options() -> TableOptions {
    TableOptions { max_depth: 8, segment_bytes: 4 << 10 }
}

/// Kills the daemon of a rack whose memory is lost with it, and waits until the loss is known.
fn lose_memory_of(pool: &mut TestPool, rack: u16) {
    let (own, other) = (pool.open(rack), pool.open(1 - rack));
    let addr = own.alloc(64).unwrap();
    other.write(addr, b"to be lost").unwrap();
    pool.kill_daemon(rack);
    pool.restart_daemon(rack);
    wait_until("the loss is known", TIMEOUT, || {
        other.read(addr, &mut [0; 8]) == Err(AccessError::PageLost(addr))
    });
}

#[test]
fn roots_are_listed_with_their_homes_and_what_lies_there() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    assert_eq!(rackpool(&pool, &["root", "ls"]).unwrap(), "the pool has no roots\n");
    let racks = [pool.open(0), pool.open(1)].map(Arc::new);
    let table = Table::create(Arc::clone(&racks[0]), &small_options()).unwrap();
    let object = racks[1].alloc(64).unwrap();
    racks[1].write(object, b"anything").unwrap();
    racks[0].set_root("words", None, Some(table.addr())).unwrap();
    racks[0].set_root("line\nbreak", None, Some(object)).unwrap();
    racks[0].set_root("nowhere", None, Some(GlobalAddr::from_raw(1 << 50))).unwrap();

    let said = rackpool(&pool, &["root", "ls"]).unwrap();
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().collect()).collect();
    let (table, object) = (table.addr().to_string(), object.to_string());
    assert_eq!(lines[0], ["NAME", "ADDRESS", "HOME", "CONTENT"], "{said}");
    assert_eq!(lines[1], ["line\\nbreak", &object, "rack", "1", "other"], "{said}");
    assert!(said.contains("no page"), "{said}");
    assert_eq!(lines[3], ["words", &table, "rack", "0", "table"], "{said}");
    let roots = parsed(&pool, &["root", "ls"])["roots"].clone();
    assert_eq!(roots[0]["name"], "line\nbreak");
    assert_eq!((&roots[0]["home"], &roots[0]["state"]), (&1.into(), &"live".into()));
    assert_eq!((&roots[1]["state"], &roots[1]["home"]), (&"none".into(), &().into()));
    assert_eq!(roots[2]["content"], "table");
}

#[test]
fn a_removed_name_leaves_its_memory_and_the_other_names() {
    let pool = TestPool::small();
    let own = pool.open(0);
    let object = own.alloc(64).unwrap();
    own.write(object, b"anything").unwrap();
    for name in ["one", "other"] {
        own.set_root(name, None, Some(object)).unwrap();
    }
    let said = rackpool(&pool, &["root", "rm", "one"]).unwrap();
    assert_eq!(said, format!("removed the root 'one'; what lies at {object} stays in use\n"));
    assert_eq!((own.root("one"), own.root("other")), (Ok(None), Ok(Some(object))));
    let mut bytes = [0; 8];
    own.read(object, &mut bytes).unwrap();
    assert_eq!(&bytes, b"anything");
    let complained = rackpool(&pool, &["root", "rm", "one"]).unwrap_err();
    assert!(complained.contains("no root 'one': `rackpool root ls`"), "{complained}");
}

#[test]
fn a_root_whose_page_is_lost_is_shown_as_lost_and_can_be_removed() {
    let mut pool = TestPool::with(|options| options.memory_kind = MemoryKind::Memfd);
    pool.wait_until_racks_meet();
    let owner = pool.open(1);
    let object = owner.alloc(64).unwrap();
    owner.set_root("gone", None, Some(object)).unwrap();
    drop(owner);
    lose_memory_of(&mut pool, 1);
    let said = rackpool(&pool, &["root", "ls"]).unwrap();
    assert!(said.contains("lost") && said.contains("unknown: its page is lost"), "{said}");
    assert_eq!(parsed(&pool, &["root", "ls"])["roots"][0]["state"], "lost");
    rackpool(&pool, &["root", "rm", "gone"]).unwrap();
    assert_eq!(pool.open(0).root("gone"), Ok(None));
}

#[test]
fn a_table_is_made_listed_measured_and_removed_with_its_memory() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let before = pool.allocated();
    assert_eq!(rackpool(&pool, &["table", "ls"]).unwrap(), "the pool has no tables with names\n");
    let create = ["table", "create", "words", "--max-depth", "8", "--segment-size", "4K"];
    assert!(rackpool(&pool, &create).unwrap().starts_with("made the table 'words' at 0x"));
    let again = rackpool(&pool, &create).unwrap_err();
    assert!(again.contains("has a root 'words' already: choose another name"), "{again}");
    let wrong = rackpool(&pool, &["table", "create", "x", "--max-depth", "30"]).unwrap_err();
    assert!(wrong.contains("option max_depth is 30: it must be 0 to 18"), "{wrong}");

    for rack in 0..2 {
        let own = Arc::new(pool.open(rack));
        let addr = own.root("words").unwrap().unwrap();
        let mut handle = Table::open(own, addr).unwrap().handle();
        for key in 0..500_u64 {
            handle.put(&(key + 500 * u64::from(rack)).to_le_bytes(), &[1; 100]).unwrap();
        }
    }
    let listed = parsed(&pool, &["table", "ls"]);
    assert_eq!(
        (&listed["roots"][0]["name"], &listed["roots"][0]["content"]),
        (&"words".into(), &"table".into())
    );
    let stat = parsed(&pool, &["table", "stat", "words"]);
    assert_eq!((&stat["entries"], &stat["unread"]), (&1000.into(), &0.into()), "{stat}");
    // Entries of 140 B take 256 B each.
    let bytes = stat["bytes"].as_u64().unwrap();
    assert!(bytes > 1000 * 256 && bytes < 1000 * 256 + (100 << 10), "{stat}");
    assert!(
        stat["load_factor"].as_f64().unwrap() > 0.2 && stat["load_factor"].as_f64() < Some(1.0)
    );
    assert_eq!(stat["racks"].as_array().unwrap().len(), 2, "{stat}");
    let said = rackpool(&pool, &["table", "stat", "words"]).unwrap();
    for told in ["entries      1000\n", " in rack 0, ", "load factor  0.", "segments     "] {
        assert!(said.contains(told), "{told}\n{said}");
    }

    let refused = rackpool(&pool, &["root", "rm", "words"]).unwrap_err();
    assert!(refused.contains("remove it and its memory with `rackpool table rm`"), "{refused}");
    let said = rackpool(&pool, &["table", "rm", "words"]).unwrap();
    assert!(
        said.starts_with("removed the table 'words': 10") && !said.contains("not freed"),
        "{said}"
    );
    assert_eq!(pool.open(0).root("words"), Ok(None));
    pool.wait_allocated("the table's memory comes back", TIMEOUT, before);
}

#[test]
fn a_table_of_which_pages_are_lost_is_removed_and_the_rest_comes_back() {
    let mut pool = TestPool::with(|options| options.memory_kind = MemoryKind::Memfd);
    pool.wait_until_racks_meet();
    let before = pool.allocated();
    let create = ["table", "create", "words", "--max-depth", "8", "--segment-size", "4K"];
    rackpool(&pool, &create).unwrap();
    for rack in 0..2 {
        let own = Arc::new(pool.open(rack));
        let addr = own.root("words").unwrap().unwrap();
        assert!(rack == 1 || own.is_local(addr).unwrap());
        let mut handle = Table::open(own, addr).unwrap().handle();
        for key in 0..30_u64 {
            handle.put(&(key + 30 * u64::from(rack)).to_le_bytes(), &[1; 100]).unwrap();
        }
    }
    lose_memory_of(&mut pool, 1);
    let stat = parsed(&pool, &["table", "stat", "words"]);
    assert_eq!((&stat["entries"], &stat["lost_pages"]), (&60.into(), &1.into()), "{stat}");
    let said = rackpool(&pool, &["table", "rm", "words"]).unwrap();
    assert!(said.contains("not freed: 30 objects whose pages are lost"), "{said}");
    assert_eq!(pool.open(0).root("words"), Ok(None));
    pool.wait_allocated("what is not lost comes back", TIMEOUT, before);
}

#[test]
fn an_audit_says_of_which_root_the_bytes_are_and_lists_those_of_none() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let own = Arc::new(pool.open(0));
    let table = Table::open_or_create(Arc::clone(&own), "words", &small_options()).unwrap();
    for key in 0..300_u64 {
        table.handle().put(&key.to_le_bytes(), &[1; 100]).unwrap();
    }
    let named = pool.open(1).alloc(1000).unwrap();
    own.set_root("named", None, Some(named)).unwrap();
    let nobodys: Vec<GlobalAddr> = (0..5).map(|_| own.alloc(64).unwrap()).collect();
    let large = own.alloc(3 * PAGE).unwrap();

    let audit = parsed(&pool, &["audit", "--list"]);
    let used: u64 = pool.allocated().iter().sum();
    assert_eq!(audit["in_use"]["bytes"], used, "{audit}");
    let [named, words] = [0, 1].map(|index| &audit["roots"][index]);
    assert_eq!((&named["name"], &named["objects"]), (&"named".into(), &1.into()), "{audit}");
    let stat = parsed(&pool, &["table", "stat", "words"]);
    assert_eq!((&words["content"], &words["bytes"]), (&"table".into(), &stat["bytes"]), "{audit}");
    assert!(audit["held_by_clients"]["objects"].as_u64() > Some(0), "{audit}");
    let sizes = serde_json::json!([
        {"object_bytes": 64, "objects": 5, "bytes": 320},
        {"object_bytes": 3 * PAGE, "objects": 1, "bytes": 3 * PAGE},
    ]);
    assert_eq!(audit["unreached_by_size"], sizes, "{audit}");
    let listed: BTreeSet<&str> = audit["unreached_objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["address"].as_str().unwrap())
        .collect();
    let expected: Vec<String> =
        nobodys.iter().chain([&large]).map(|addr| addr.to_string()).collect();
    assert_eq!(listed, expected.iter().map(String::as_str).collect());

    let said = rackpool(&pool, &["audit"]).unwrap();
    for told in ["root 'words': a table\n", "no root leads to them\n", "the pool can't tell which"]
    {
        assert!(said.contains(told), "{told}\n{said}");
    }
    assert!(rackpool(&pool, &["status"]).unwrap().contains("`rackpool audit`"));

    // A table without a name is unreached.
    rackpool(&pool, &["root", "rm", "words", "--keep-memory"]).unwrap();
    let later = parsed(&pool, &["audit"]);
    let left = |audit: &serde_json::Value| audit["unreached"]["bytes"].as_u64().unwrap();
    assert_eq!(left(&later) - left(&audit), stat["bytes"].as_u64().unwrap(), "{later}");
    assert!(later["unreached_objects"].is_null(), "{later}");
}

#[test]
fn an_audit_of_a_volume_finds_its_files_and_of_a_service_its_maps() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let volume = Volume::open_or_create(Arc::new(pool.open(0)), "home").unwrap();
    let root = Caller::new(0, 0);
    for (name, bytes) in [(&b"small"[..], 5000), (b"large", 3 << 20), (b"sparse", 10)] {
        let file = volume.create(Ino::ROOT, name, NewNode::File, 0o644, root).unwrap().ino;
        let at = if name == b"sparse" { 1 << 40 } else { 0 };
        volume.write(file, at, &vec![7; bytes]).unwrap();
    }
    volume.close().unwrap();
    let service = Service::start(&pool, 1, &["--threads", "1"]);
    let mut wire = service.wire();
    for field in 0..2000 {
        wire.ask(&["HSET", "large", &field.to_string(), "and its value"]);
    }
    wait_until("sweeps rest", TIMEOUT, || {
        let audit = parsed(&pool, &["audit"]);
        audit["unreached"]["objects"] == 0 && audit["changing"]["objects"] == 0
    });
    let audit = parsed(&pool, &["audit"]);
    let roots: Vec<&str> = audit["roots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|root| root["name"].as_str().unwrap())
        .collect();
    assert_eq!(roots, ["fs:home", "kv", "kv/nodes"], "{audit}");
    let [home, _, nodes] = [0, 1, 2].map(|index| audit["roots"][index]["bytes"].as_u64().unwrap());
    assert!(home > 3 << 20 && nodes > 2000 * 30, "{audit}");
}

#[test]
fn clients_of_two_racks_that_create_a_table_at_the_same_time_share_it() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let before = pool.allocated();
    for round in 0..20 {
        let name = format!("table {round}");
        let barrier = Barrier::new(4);
        let create = |client: u16| {
            let own = Arc::new(pool.open(client % 2));
            barrier.wait();
            let table = Table::open_or_create(own, &name, &small_options()).unwrap();
            table.handle().put(&client.to_le_bytes(), b"here").unwrap();
            table.addr()
        };
        let addrs: Vec<GlobalAddr> = std::thread::scope(|scope| {
            let create = &create;
            let spawn = |client| scope.spawn(move || create(client));
            let threads: Vec<_> = (0..4).map(spawn).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addrs.iter().all(|addr| *addr == addrs[0]), "{addrs:?}");
        assert_eq!(parsed(&pool, &["table", "stat", &name])["entries"], 4);
        rackpool(&pool, &["table", "rm", &name]).unwrap();
    }
    pool.wait_allocated("no second table is left", TIMEOUT, before);
}

#[test]
fn a_store_is_watched_explained_and_removed() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let folder = tempfile::tempdir().unwrap();
    let good = |arguments: &[&str]| rackpool(&pool, arguments).unwrap();
    let refused = |arguments: &[&str]| rackpool(&pool, arguments).unwrap_err();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let bytes = contents::of(1, usize::try_from(5 * PAGE).unwrap());
    std::fs::write(path("bytes"), bytes).unwrap();
    good(&["objects", "put", "large", &path("bytes")]);
    good(&["objects", "get", "large", "--rack", "1", &path("got")]);
    let status = parsed(&pool, &["status"]);
    assert_eq!(status["object_stores"], serde_json::json!(["objects"]), "{status}");
    wait_until("the daemon has published its counts", TIMEOUT, || {
        let status = parsed(&pool, &["status"]);
        let fixed = &status["racks"][0]["metrics"]["fixed"];
        fixed["extent_bytes"] == 5 * PAGE && fixed["objects"].as_u64() > Some(0)
    });
    assert!(good(&["status"]).contains("object stores    1: 'objects'\n"));
    // This process has a view, which pins the object.
    let own = Store::open(Arc::new(pool.open(0)), "objects").unwrap().unwrap();
    let view = own.get(b"large").unwrap().unwrap();
    let known = parsed(&pool, &["objects", "explain", "large"]);
    let object = &known["object"];
    assert_eq!(object["pinned_by"], serde_json::json!([std::process::id()]), "{known}");
    assert_eq!((&object["rack"], &object["expired"]), (&0.into(), &false.into()), "{known}");
    let extents = object["extents"].as_array().unwrap();
    let bytes: u64 = extents.iter().map(|extent| extent["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 5 * PAGE, "{known}");
    assert_eq!(known["registration"]["open"], true, "{known}");
    let replica = &known["replicas"][0];
    assert_eq!((&replica["rack"], &replica["ready"]), (&1.into(), &true.into()), "{known}");
    assert_eq!(replica["pinned_by"], serde_json::json!([]), "{known}");
    let shown = good(&["objects", "explain", "large"]);
    assert!(shown.contains(&format!("pinned by    pid {}\n", std::process::id())), "{shown}");
    good(&["objects", "options", "--policy", "lru", "--time-to-live", "9000"]);
    let absent = good(&["objects", "explain", "never"]);
    assert!(absent.contains("was never sealed") && absent.contains("was evicted"), "{absent}");
    let look = parsed(&pool, &["objects", "top", "--once", "--interval", "0.1"]);
    assert_eq!(look["objects"][0]["id"], "large", "{look}");
    let [own_rack, other] = [0, 1].map(|rack| &look["racks"][rack]);
    assert_eq!((&own_rack["objects"], &other["replicas"]), (&1.into(), &1.into()), "{look}");
    assert!(own_rack["object_bytes"].as_u64() > Some(5 * PAGE), "{look}");
    assert!(good(&["objects", "top", "--interval", "0.1"]).contains("  large\n"));
    // Extents count in an audit.
    let audit = parsed(&pool, &["audit"]);
    assert!(audit["roots"][0]["bytes"].as_u64() > Some(10 * PAGE), "{audit}");
    assert!(refused(&["root", "rm", "objects"]).contains("objects remove-store"));
    drop(view);
    assert_eq!(good(&["objects", "remove-store", "objects"]), "removed the store 'objects'\n");
    assert!(own.get(b"large").is_err());
    let told = refused(&["objects", "remove-store", "objects"]);
    assert!(told.contains("no object store 'objects'"), "{told}");
}
