//! The commands with which an operator looks after the objects of a store: `rackpool objects`.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::census;
use rackpool_tests::client::program;
use rackpool_tests::contents;
use rackpool_tests::pool::{PAGE, TestPool};
use tempfile::TempDir;

fn command(pool: &TestPool, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("rackpool"));
    command.arg("objects").args(arguments).arg("--dir").arg(pool.dir()).stdin(Stdio::null());
    command
}

fn run(pool: &TestPool, arguments: &[&str]) -> Output {
    command(pool, arguments).output().unwrap()
}

/// The output of a command that succeeds.
#[track_caller]
fn good(pool: &TestPool, arguments: &[&str]) -> String {
    let output = run(pool, arguments);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complained}");
    String::from_utf8(output.stdout).unwrap()
}

/// The error output of a command that fails with this status.
#[track_caller]
fn refused(pool: &TestPool, status: i32, arguments: &[&str]) -> String {
    let output = run(pool, arguments);
    let complained = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {complained}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    complained
}

fn parsed(pool: &TestPool, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&good(pool, &[arguments, &["--json"]].concat())).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn two_racks() -> (TestPool, TempDir) {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    (pool, tempfile::tempdir().unwrap())
}

#[test]
fn objects_of_any_size_come_back_in_both_racks() {
    let (pool, folder) = two_racks();
    for (tag, size) in (0..).zip([0, 1, 4 * PAGE + 9]) {
        let bytes = contents::of(tag, usize::try_from(size).unwrap());
        let source = folder.path().join(format!("source-{size}"));
        fs::write(&source, &bytes).unwrap();
        for creator in ["0", "1"] {
            let id = format!("{size}/{creator}");
            let said = good(&pool, &["put", &id, text(&source), "--rack", creator]);
            assert!(said.starts_with(&format!("put the object '{id}': ")), "{said}");
            assert!(said.ends_with(&format!(" in rack {creator}\n")), "{said}");
            for reader in ["0", "1"] {
                let copy = folder.path().join(format!("copy-{size}-{creator}-{reader}"));
                good(&pool, &["get", &id, text(&copy), "--rack", reader]);
                assert!(fs::read(&copy).unwrap() == bytes, "{id} in rack {reader}");
                let output = run(&pool, &["get", &id, "--rack", reader]);
                assert!(output.status.success() && output.stdout == bytes, "{id}");
            }
            let stat = parsed(&pool, &["stat", &id]);
            let (own, other) =
                (creator.parse::<u16>().unwrap(), 1 - creator.parse::<u16>().unwrap());
            assert_eq!((&stat["bytes"], &stat["rack"]), (&size.into(), &own.into()), "{stat}");
            assert_eq!(stat["replicas"], serde_json::json!([other]), "{stat}");
        }
    }
    let listed = parsed(&pool, &["ls"]);
    assert_eq!(listed["store"], "objects");
    assert_eq!(listed["objects"].as_array().unwrap().len(), 6);
    assert_eq!(parsed(&pool, &["ls", "1/"])["objects"].as_array().unwrap().len(), 2);
    let said = good(&pool, &["ls", "0/"]);
    let lines: Vec<Vec<&str>> =
        said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ID", "SIZE", "METADATA", "RACK", "IN", "AGE", "CHECKSUM"], "{said}");
    assert_eq!(lines[1][..7], ["0/0", "0", "B", "0", "B", "rack", "0"], "{said}");
    assert_eq!(lines.len(), 3, "{said}");
    let said = good(&pool, &["stat", "1/1"]);
    for told in ["object       '1/1' at 0x", "1 B (1) in 1 piece\n", "replicas     rack 0\n"] {
        assert!(said.contains(told), "{told}\n{said}");
    }

    let ids: Vec<&str> =
        listed["objects"].as_array().unwrap().iter().map(|o| o["id"].as_str().unwrap()).collect();
    let said = good(&pool, &[&["rm"], &ids[..]].concat());
    assert_eq!(said.lines().count(), 6, "{said}");
    assert_eq!(good(&pool, &["ls"]), "the store 'objects' has no objects\n");
    wait_until("the memory is free", TIMEOUT, || census::fixed(&pool).is_empty());
}

#[test]
fn an_audit_finds_all_that_a_store_leads_to() {
    let (pool, folder) = two_racks();
    let source = folder.path().join("source");
    fs::write(&source, contents::of(1, usize::try_from(3 * PAGE).unwrap())).unwrap();
    good(&pool, &["put", "one", text(&source), "--rack", "0"]);
    let target = folder.path().join("target");
    good(&pool, &["get", "one", text(&target), "--rack", "1"]);
    let audit = || {
        let mut command = Command::new(program("rackpool"));
        let output = command.args(["audit", "--json", "--dir"]).arg(pool.dir()).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    assert_eq!(audit()["roots"][0]["content"], "store");
    wait_until("what the commands held is back", TIMEOUT, || {
        audit()["unreached"]["bytes"] == 0 && audit()["held_by_clients"]["bytes"] == 0
    });
}

#[test]
fn standard_input_is_stored_and_a_file_is_not_written_over() {
    let (pool, folder) = two_racks();
    let bytes = contents::of(7, 3 * usize::try_from(PAGE).unwrap());
    let mut put = command(&pool, &["put", "piped", "-", "--store", "other"]);
    let mut put = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    assert!(run(&pool, &["get", "piped", "-", "--store", "other"]).stdout == bytes);

    let path = folder.path().join("kept");
    fs::write(&path, "kept").unwrap();
    let complained = refused(&pool, 2, &["get", "piped", text(&path), "--store", "other"]);
    assert!(complained.contains("exists already: remove it first"), "{complained}");
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    // An output that takes no bytes is an error.
    let output = command(&pool, &["get", "piped", "--store", "other"])
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(complained.contains("can't write to standard output"), "{complained}");
}

#[test]
fn what_is_not_there_or_is_there_already_is_told() {
    let (pool, folder) = two_racks();
    let source = folder.path().join("source");
    fs::write(&source, "bytes").unwrap();
    for action in [&["ls"][..], &["stat", "x"], &["get", "x"], &["rm", "x"]] {
        let complained = refused(&pool, 1, action);
        assert!(complained.contains("the pool has no object store 'objects'"), "{complained}");
    }
    good(&pool, &["put", "once", text(&source)]);
    let complained = refused(&pool, 1, &["put", "once", text(&source), "--rack", "1"]);
    assert!(complained.contains("there is an object of this id"), "{complained}");
    for action in ["stat", "get", "rm"] {
        let complained = refused(&pool, 1, &[action, "none"]);
        assert!(
            complained.contains("has no object 'none': `rackpool objects ls` lists its objects"),
            "{complained}"
        );
    }
    let complained = refused(&pool, 1, &["put", "x", text(&folder.path().join("none"))]);
    assert!(complained.contains("can't store") && complained.contains("/none"), "{complained}");
    let complained = refused(&pool, 1, &["ls", "--rack", "7"]);
    assert!(complained.contains("rack 7 is not served on this host"), "{complained}");
    // What is missing does not keep the others from being removed.
    let output = run(&pool, &["rm", "none", "once"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"removed the object 'once'\n");
    assert!(String::from_utf8(output.stderr).unwrap().contains("has no object 'none'"));
    for wrong in ["a\\b", "", &"x".repeat(65)] {
        refused(&pool, 2, &["get", wrong]);
    }
}

#[test]
fn an_id_that_is_not_printable_is_taken_as_it_is_shown() {
    let (pool, folder) = two_racks();
    let source = folder.path().join("source");
    fs::write(&source, "bytes").unwrap();
    let id = "line\\x0abreak \\\\ \\xff";
    good(&pool, &["put", id, text(&source)]);
    let said = good(&pool, &["ls"]);
    assert!(said.lines().any(|line| line.starts_with(id)), "{said}");
    assert_eq!(parsed(&pool, &["ls", "line\\x0a"])["objects"][0]["id"], id);
    let said = good(&pool, &["stat", id]);
    assert!(said.starts_with(&format!("object       '{id}' at ")), "{said}");
    assert_eq!(run(&pool, &["get", id]).stdout, b"bytes");
    assert_eq!(good(&pool, &["rm", id]), format!("removed the object '{id}'\n"));
}

#[test]
fn the_options_of_a_store_are_shown_and_set() {
    let (pool, _) = two_racks();
    let shown = refused(&pool, 1, &["options", "--store", "cache"]);
    assert!(shown.contains("no object store 'cache'"), "{shown}");
    let wanted = ["options", "--store", "cache", "--capacity", "1M", "--policy", "lru"];
    let shown = good(&pool, &wanted);
    assert!(shown.contains("1 MiB a rack") && shown.contains("lru:"), "{shown}");
    let shown = good(&pool, &["options", "--store", "cache", "--time-to-live", "90"]);
    assert!(shown.contains("1 MiB a rack") && shown.contains("live  90 s"), "{shown}");
    let shown = good(&pool, &["options", "--store", "cache", "--capacity", "none"]);
    assert!(shown.contains("capacity      none") && shown.contains("lru:"), "{shown}");
    let shown = refused(&pool, 1, &["options", "--store", "cache", "--capacity", "0"]);
    assert!(shown.contains("capacity of a store: allowed are 1 B or more"), "{shown}");
    refused(&pool, 2, &["options", "--store", "cache", "--policy", "fifo"]);

    for id in ["first", "second"] {
        let mut put = command(&pool, &["put", id, "-", "--store", "cache"]);
        let mut child = put.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&contents::of(1, 100_000)).unwrap();
        assert!(child.wait().unwrap().success());
    }
    let shown = good(&pool, &["evict", "64K", "--store", "cache"]);
    assert!(shown.contains("evicted 128") && shown.contains("'cache' in rack 0"), "{shown}");
    let output = run(&pool, &["evict", "1G", "--store", "cache"]);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(complained.contains("nothing else can be evicted"), "{complained}");
    assert_eq!(output.status.code(), Some(1));
    wait_until("nothing is left", TIMEOUT, || census::fixed(&pool).is_empty());
}
