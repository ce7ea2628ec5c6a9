//! A server that can't start says why and what to do, and changes nothing.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::path::Path;

use nix::sys::signal::Signal;
use rackpool_testing::wait::{TIMEOUT, wait_until};
use redb::{Database, TableDefinition};
use support::{Server, put};

fn refused(directory: &Path, arguments: &[&str], reason: &str) {
    let (code, log) = Server::fail(directory, arguments);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(reason), "{log}");
    assert!(log.contains("--store") || log.contains("listen on"), "no way out: {log}");
}

#[test]
fn a_second_server_on_the_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    refused(directory.path(), &[], "in use by another metadata server");
    // The first server continues, and its address file still exists.
    assert!(directory.path().join("address").exists());
    server.connect().ask(put("a", 1));
    server.kill();
    Server::start(directory.path(), &[]);
}

#[test]
fn servers_started_at_once_make_one_store() {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = Server::command(directory.path(), &[]);
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut waiting: Vec<_> = children.into_iter().map(Some).collect();
    wait_until("three to give up", TIMEOUT, || {
        for child in &mut waiting {
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                assert_eq!(status.code(), Some(1));
                *child = None;
            }
        }
        waiting.iter().flatten().count() == 1
    });
    let mut winner = waiting.into_iter().flatten().next().unwrap();
    wait_until("address file", TIMEOUT, || directory.path().join("address").exists());
    winner.kill().unwrap();
    winner.wait().unwrap();
    Server::start(directory.path(), &[]);
}

#[test]
fn a_store_of_another_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    Server::start(directory.path(), &[]).stop(Signal::SIGTERM);
    let header: TableDefinition<'_, &str, u64> = TableDefinition::new("rackpool");
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(header).unwrap().insert("format", 7).unwrap();
    transaction.commit().unwrap();
    drop(database);
    refused(directory.path(), &[], "has store format 7, this program knows format 3");
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for content in [&b"my diary"[..], &[0; 100_000], b""] {
        std::fs::write(&path, content).unwrap();
        refused(directory.path(), &[], "no metadata store");
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    let database = Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    let table: TableDefinition<'_, u64, u64> = TableDefinition::new("other");
    transaction.open_table(table).unwrap().insert(1, 1).unwrap();
    transaction.commit().unwrap();
    drop(database);
    refused(directory.path(), &[], "no metadata store");
}

#[test]
fn a_cut_store_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    Server::start(directory.path(), &[]).stop(Signal::SIGTERM);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 3]).unwrap();
    refused(directory.path(), &[], "damaged");
}

#[test]
fn a_store_without_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    refused(&directory.path().join("missing"), &[], "does the directory of --store exist");
}

#[test]
fn an_open_address_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Server::command(directory.path(), &[]);
    let program = command.get_program().to_owned();
    command = std::process::Command::new(program);
    command.args(["--listen", "0.0.0.0:0", "--store"]).arg(directory.path().join("store"));
    let output = command.output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(
        log.contains("--listen 0.0.0.0:0") && log.contains("rackpool credentials init"),
        "{log}"
    );
    assert!(!directory.path().join("store").exists());
}
