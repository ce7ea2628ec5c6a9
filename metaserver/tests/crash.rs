//! Kills and failing disks: acknowledged changes are durable.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::collections::BTreeMap;
use std::process::Command;

use rackpool_model::{GlobalAddr, PageRange};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use support::{Connection, Server, announcement, put};

/// Number of requests in flight.
const PIPELINE: u64 = 16;

/// The changes that a client knows to be durable.
#[derive(Default)]
struct Acknowledged {
    roots: BTreeMap<String, u64>,
    runs: BTreeMap<u16, PageRange>,
}

/// Sends requests, numbered from `first`, until the server is gone or `enough` were answered.
fn storm(connection: &mut Connection, first: u16, enough: u64, known: &mut Acknowledged) -> u64 {
    let mut asked = BTreeMap::new();
    let mut number = first;
    let mut answered = 0;
    while answered < enough {
        while (asked.len() as u64) < PIPELINE {
            let request = match number % 2 {
                0 => put(&format!("name {number}"), u64::from(number)),
                _ => MetadataRequest::Register(announcement(number, u128::from(number), 1)),
            };
            let Ok(tag) = connection.send(request) else { return answered };
            asked.insert(tag, number);
            number += 1;
        }
        let Some(answer) = connection.receive() else { return answered };
        let number = asked.remove(&answer.tag).unwrap();
        answered += 1;
        match answer.message {
            MetadataReply::Root { addr, changed: true } => {
                known.roots.insert(format!("name {number}"), addr.unwrap().raw());
            }
            MetadataReply::Registered { pages, .. } => {
                known.runs.insert(number, pages);
            }
            other => panic!("{other:?}"),
        }
    }
    answered
}

fn check(connection: &mut Connection, known: &Acknowledged) {
    for (name, addr) in &known.roots {
        assert_eq!(connection.get(name), Some(GlobalAddr::from_raw(*addr)), "{name} is lost");
    }
    for (&rack, pages) in &known.runs {
        assert_eq!(connection.register(rack, u128::from(rack), 2), *pages, "rack {rack}");
    }
    let mut runs: Vec<_> = connection.status().members.iter().map(|m| m.pages).collect();
    runs.sort_by_key(|pages| pages.first);
    assert!(runs.is_sorted_by(|low, high| low.first.0 + low.count <= high.first.0));
    assert!(runs.iter().all(|pages| pages.first.0 > 0));
}

#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    let directory = tempfile::tempdir().unwrap();
    let mut known = Acknowledged::default();
    for round in 0..6_u16 {
        let server = Server::start(directory.path(), &[]);
        check(&mut server.connect(), &known);
        // Each round kills the server after another number of answers, with requests in flight.
        let mut connection = server.connect();
        let enough = 3 + u64::from(round) * 7;
        let answered = storm(&mut connection, 1 + round * 100, enough, &mut known);
        assert_eq!(answered, enough);
        server.kill();
        while let Some(answer) = connection.receive() {
            // Sent before the kill, so acknowledged too; which request it answers does not matter
            // here.
            assert!(!matches!(answer.message, MetadataReply::Refused(_)), "{answer:?}");
        }
    }
    let server = Server::start(directory.path(), &[]);
    check(&mut server.connect(), &known);
    assert!(known.roots.len() > 40 && known.runs.len() > 40);
}

#[test]
fn a_failing_disk_refuses_changes_and_serves_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    // A write past the file size limit then fails instead of killing the process.
    let server = Server::command(directory.path(), &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    shell.arg(server.get_program()).args(server.get_args()).env("RUST_LOG", "off");
    let server = Server::run(shell, directory.path());
    let mut connection = server.connect();
    let pages = connection.register(1, 11, 1);
    connection.ask(put("before", 1));

    let process = Pid::from_raw(server.id().try_into().unwrap()).unwrap();
    let tight = Rlimit { current: Some(1), maximum: None };
    prlimit(Some(process), Resource::Fsize, tight).unwrap();
    for _ in 0..2 {
        let refused = connection.ask(put("after", 2));
        let MetadataReply::Refused(Refusal::Store(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("start the metadata server again"), "{reason}");
    }
    assert_eq!(connection.get("before"), Some(GlobalAddr::from_raw(1)));
    assert_eq!(connection.get("after"), None);
    assert!(matches!(connection.heartbeat(1, 1, 0), MetadataReply::Renewed { .. }));
    server.kill();

    let server = Server::start(directory.path(), &[]);
    let mut connection = server.connect();
    assert_eq!(connection.get("before"), Some(GlobalAddr::from_raw(1)));
    assert_eq!(connection.register(1, 11, 1), pages);
    // The disk works again.
    assert!(matches!(connection.ask(put("later", 3)), MetadataReply::Root { changed: true, .. }));
}
