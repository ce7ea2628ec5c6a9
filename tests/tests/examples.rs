//! The programs in `examples`, as a reader of them runs them.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use rackpool_testing::skipped;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_tests::client::program;
use rackpool_tests::mount::{TestMount, why_not};
use rackpool_tests::pool::TestPool;

fn start(name: &str, dir: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(program(name));
    command.args(arguments).arg("--dir").arg(dir);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The line that a program printed; it must have succeeded.
#[track_caller]
fn result(process: Child) -> String {
    let output = process.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    assert_eq!(said.lines().count(), 1, "{said}");
    said.trim_end().to_owned()
}

/// The message of a program that failed.
#[track_caller]
fn failure(process: Child) -> String {
    let output = process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn values_go_from_the_producer_to_the_consumer_run_after_run() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    for _ in 0..2 {
        let roles = ["consumer", "producer"];
        let [consumer, producer] =
            roles.map(|role| start("producer-consumer", pool.dir(), &[role]));
        let said = "1000 values handed over";
        assert_eq!(result(producer), format!("Producer in rack 0: {said}"));
        assert_eq!(result(consumer), format!("Consumer in rack 1: {said}"));
    }
    let lonely = start("producer-consumer", pool.dir(), &["consumer", "--wait-s", "1"]);
    assert!(failure(lonely).contains("nothing for 1 s: run both sides"));
}

#[test]
fn an_index_of_both_racks_is_found_in_both_and_again() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    for _ in 0..2 {
        let said = result(start("shared-index", pool.dir(), &[]));
        assert!(said.starts_with("both racks find 400 documents; "), "{said}");
    }
}

#[test]
fn a_counter_has_the_total_of_all_calls() {
    let pool = TestPool::small();
    pool.wait_until_racks_meet();
    let said = result(start("counter", pool.dir(), &["--rounds", "500"]));
    assert_eq!(said, "the counter rose by 4000: 4000 calls, and 0 of unknown outcome");
}

#[test]
fn a_counter_has_its_total_though_a_daemon_is_killed_and_restarted() {
    const CALLS: u64 = 8 * 20_000;
    let mut pool = TestPool::small();
    pool.wait_until_racks_meet();
    let counter = start("counter", pool.dir(), &["--rounds", "20000"]);
    let client = pool.open(1);
    let mut addr = None;
    wait_until("the counter rises", TIMEOUT, || {
        addr = addr.or_else(|| client.root("example-counter").unwrap());
        addr.is_some_and(|addr| client.fetch_and_add(addr, 0).unwrap() > 100)
    });
    pool.kill_daemon(0);
    pool.restart_daemon(0);
    let said = result(counter);
    let mut numbers = said.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty());
    let [raised, done, unknown] = [(); 3].map(|()| numbers.next().unwrap().parse::<u64>().unwrap());
    assert_eq!(done + unknown, CALLS, "{said}");
    assert!((done..=CALLS).contains(&raised), "{said}");
    assert!(unknown < CALLS / 10, "{said}");
}

#[test]
fn another_program_reads_in_one_mount_what_was_written_in_the_other() {
    if let Some(reason) = why_not() {
        skipped(reason);
        return;
    }
    let pool = TestPool::start(256 << 20, 2 << 20);
    pool.wait_until_racks_meet();
    let mounts = [0, 1].map(|rack| TestMount::start(&pool, rack));
    let run = |mounts: [&TestMount; 2]| {
        let mut command = Command::new(program("mounted"));
        command.args(mounts.map(TestMount::root));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for [writer, reader] in [[0, 1], [1, 0]] {
        let said = result(run([&mounts[writer], &mounts[reader]]));
        assert!(said.starts_with("sha256sum read the 1000000 B in "), "{said}");
    }
    assert!(failure(run([&mounts[0], &mounts[0]])).contains("are not two mounts"));
}

#[test]
fn a_pool_that_does_not_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in
        [("producer-consumer", &["producer"][..]), ("shared-index", &[]), ("counter", &[])]
    {
        let said = failure(start(name, folder.path(), arguments));
        assert!(said.contains("no rack daemon at"), "{name}: {said}");
    }
}
