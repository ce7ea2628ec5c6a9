//! What an operator sees and mends by hand: `rackpool root`, `table` and `audit`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::process::{Command, Stdio};
use std::sync::Arc;

use rackpool_client::{AccessError, GlobalAddr};
use rackpool_kv::{Options, Table};
use rackpool_shm::memory::MemoryKind;
use rackpool_tests::client::program;
use rackpool_tests::pool::TestPool;
use rackpool_tests::wait::{PATIENCE, wait_until};

/// How a command ended: what it printed, or what it complained about.
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

fn small_options() -> Options {
    Options { max_depth: 8, segment_bytes: 4 << 10 }
}

/// Kills the daemon of a rack whose memory goes with it, and waits until the loss is known.
fn lose_memory_of(pool: &mut TestPool, rack: u16) {
    let (own, other) = (pool.open(rack), pool.open(1 - rack));
    let addr = own.alloc(64).unwrap();
    other.write(addr, b"to be lost").unwrap();
    pool.kill_daemon(rack);
    pool.restart_daemon(rack);
    wait_until("the loss is known", PATIENCE, || {
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
