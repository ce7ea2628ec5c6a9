//! Peers that violate the protocol harm only themselves.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::io::{Read, Write};

use rackpool_testing::wait::{TIMEOUT, wait_until};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};
use rackpool_wire::{FRAME_HEADER_BYTES, MAX_FRAME_BYTES, encode};
use support::{Connection, Server, put};

fn is_closed(connection: &mut Connection) -> bool {
    matches!(connection.stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut honest = server.connect();
    honest.ask(put("a", 1));

    let mut oversized = encode(&1_u64).unwrap();
    oversized.truncate(FRAME_HEADER_BYTES);
    oversized[..4].copy_from_slice(&u32::try_from(MAX_FRAME_BYTES + 1).unwrap().to_le_bytes());
    let mut other_version = encode(&1_u64).unwrap();
    other_version[FRAME_HEADER_BYTES - 1] = 9;
    // A well-formed frame that holds no request.
    let no_request = encode(&[u64::MAX; 4]).unwrap();
    let garbage = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), oversized, other_version, no_request];
    for bytes in &garbage {
        let mut connection = server.connect();
        connection.stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut connection), "{bytes:?}");
    }
    server.wait_for_log("is over the limit");
    server.wait_for_log("run the same rackpool release everywhere");
    let told = || server.log().matches("closed the connection").count();
    wait_until("a line for each in the log", TIMEOUT, || told() == garbage.len());
    assert!(honest.get("a").is_some());
}

#[test]
fn a_message_may_come_byte_by_byte() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut connection = server.connect();
    let request = MetadataRequest::GetRoot { name: "a".into() };
    let frame = encode(&rackpool_wire::metadata::Tagged { tag: 7, message: request }).unwrap();
    for byte in frame {
        connection.stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(connection.receive().unwrap().tag, 7);
}

#[test]
fn who_takes_no_answers_is_not_read_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut honest = server.connect();
    for name in 0..200 {
        honest.ask(put(&format!("{name:0200}"), 1));
    }
    // Each answer has about 45 KiB. The server stops reading at some point.
    let mut greedy = server.connect();
    greedy.stream.set_nonblocking(true).unwrap();
    let blocked = (0..20_000_000).find(|_| greedy.send(MetadataRequest::Status).is_err());
    assert!(blocked.is_some());
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let resident_kib: u64 = resident.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(resident_kib < 100 << 10, "{resident}");
    // Other peers are served meanwhile.
    assert!(matches!(honest.ask(put("b", 1)), MetadataReply::Root { changed: true, .. }));
}

#[test]
fn many_connections_are_served() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut connections: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for (number, connection) in connections.iter_mut().enumerate() {
        connection.send(put(&format!("name {number}"), 1)).unwrap();
    }
    for connection in &mut connections {
        let answer = connection.receive().unwrap().message;
        assert!(matches!(answer, MetadataReply::Root { changed: true, .. }), "{answer:?}");
    }
    drop(connections);
    assert_eq!(server.connect().status().roots.len(), 200);
}
