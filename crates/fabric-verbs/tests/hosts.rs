//! Racks on two hosts, each with an RDMA port, that share a folder.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::Verbs;
use rackpool_fabric::conformance::pair::{
    End, bytes_of, memory_of, ok, pattern, read, transfer, write,
};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::{DisconnectReason, Event, FabricError, MAX_MESSAGE};
use rackpool_fabric_verbs::VerbsFabric;
use rackpool_model::RackId;
use rackpool_testing::skipped;

/// The shared folder in which the server publishes its address.
const FOLDER: &str = "RACKPOOL_RDMA_FOLDER";
/// The visitor's network interface. The test changes its MTU and takes it down at the end.
const INTERFACE: &str = "RACKPOOL_RDMA_INTERFACE";
/// A GID of the visitor to which the server's packets have no route.
const LOST_GID: &str = "RACKPOOL_RDMA_LOST_GID";
const FRAMES_LEN: u64 = 1 << 20;
const SIZES: [usize; 7] = [1, 7, 64, 4096, 4097, 65_536, 300_000];
const ROUNDS: u8 = 20;
/// Rounds while the network loses packets: a lost last packet is retransmitted only after 0.3 s.
const LOSSY_ROUNDS: u8 = 8;

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    if folder.is_none() {
        skipped(&format!("{FOLDER} names no folder that another host sees too"));
    }
    folder
}

fn message(end: &mut End) -> Vec<u8> {
    let is_message = |event: &Event| matches!(event, Event::Message { .. });
    let Event::Message { bytes, .. } = end.wait("a message", is_message) else { panic!() };
    bytes
}

fn ended(end: &mut End) -> DisconnectReason {
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
    reason
}

fn accepted(end: &mut End) {
    let is_there = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = end.wait("the visitor", is_there) else { panic!() };
    end.endpoint = endpoint;
}

/// A rack that publishes its address under `name`.
fn waiting(folder: &Path, name: &str) -> End {
    let end = End::alone(Verbs.start(RackId(1), FRAMES_LEN, Hardware::FAST));
    let unfinished = folder.join(format!("{name}.unfinished"));
    std::fs::write(&unfinished, end.node.fabric.address()).unwrap();
    std::fs::rename(unfinished, folder.join(name)).unwrap();
    end
}

/// Waits for the address published under `name`.
fn found(folder: &Path, name: &str) -> String {
    let start = Instant::now();
    loop {
        if let Ok(address) = std::fs::read_to_string(folder.join(name)) {
            return address;
        }
        assert!(start.elapsed() < Duration::from_secs(180), "nobody serves");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that the visitor's written bytes are in place when its message arrives, and echoes the
/// message; then waits until the visitor leaves.
fn serve_rounds(end: &mut End, rounds: u8) {
    accepted(end);
    for round in 0..rounds {
        for len in SIZES {
            let bytes = message(end);
            assert!(bytes == pattern(len.min(MAX_MESSAGE), round), "{len} B in round {round}");
            assert!(bytes_of(&end.node.frames, 13, len) == pattern(len, round));
            ok(end.send(&bytes));
        }
    }
    assert_eq!(ended(end), DisconnectReason::Peer);
}

/// Writes, sends a message, awaits the echo and reads back; then leaves.
fn visit_rounds(end: &mut End, address: &str, rounds: u8) {
    end.endpoint = ok(end.node.fabric.connect(address));
    end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    for round in 0..rounds {
        for len in SIZES {
            let (content, size) = (pattern(len, round), u32::try_from(len).unwrap());
            let back = Verbs.memory(len as u64);
            let from = end.register(&memory_of(&Verbs, &content));
            let to = end.register(&back);
            let list = [write(1, transfer(from, 0, 13, size)), read(2, transfer(to, 0, 13, size))];
            ok(end.post(&list));
            let told = &content[..len.min(MAX_MESSAGE)];
            ok(end.send(told));
            ok(end.completed(1));
            ok(end.completed(2));
            assert!(bytes_of(&back, 0, len) == content, "{len} B read in round {round}");
            assert!(message(end) == told, "{len} B in round {round}");
            for region in [from, to] {
                end.fabric().unregister(region);
                end.wait("the region", |event| *event == Event::Unregistered { region });
            }
        }
    }
    let endpoint = end.endpoint;
    end.fabric().disconnect(endpoint);
    assert_eq!(ended(end), DisconnectReason::Local);
}

/// The first host while the network loses packets: nothing is missing, out of order or duplicated.
#[test]
fn serve_through_losses() {
    let Some(folder) = folder() else { return };
    serve_rounds(&mut waiting(&folder, "lossy"), LOSSY_ROUNDS);
}

/// The second host while the network loses packets.
#[test]
fn visit_through_losses() {
    let Some(folder) = folder() else { return };
    let address = found(&folder, "lossy");
    let mut end = End::alone(Verbs.start(RackId(2), FRAMES_LEN, Hardware::FAST));
    visit_rounds(&mut end, &address, LOSSY_ROUNDS);
}

/// The first host, which sees the second one leave, and then vanish.
#[test]
fn serve() {
    let Some(folder) = folder() else { return };
    let mut end = waiting(&folder, "address");
    serve_rounds(&mut end, ROUNDS);
    // The second visit, whose host vanishes.
    accepted(&mut end);
    assert_eq!(message(&mut end), b"going");
    ok(end.send(b"gone"));
    let start = Instant::now();
    assert_eq!(ended(&mut end), DisconnectReason::PeerGone);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).status().unwrap();
    assert!(done.success(), "ip {arguments:?}");
}

/// With a GID to which RDMA packets have no route, and a working address for TCP, the error names
/// the path that was tried.
fn lost(address: &str) {
    let frames = Verbs.memory(4096);
    let mut options = Verbs::options(RackId(3), &frames);
    options.gid_index = Some(std::env::var(LOST_GID).unwrap().parse().unwrap());
    let fabric = Box::new(VerbsFabric::new(options).unwrap());
    let mut end = End::alone(Node { fabric, frames });
    ok(end.node.fabric.connect(address));
    let failed = end.wait("the failure", |event| matches!(event, Event::ConnectFailed { .. }));
    let Event::ConnectFailed { error, .. } = failed else { panic!() };
    assert!(matches!(error, FabricError::NoPath { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "MTU 1024 B to GID",
        "(its MTU is 4096 B), in packets of 1024 B",
        "UDP port 4791",
        "--gid-index",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// The second host, whose interface has a smaller MTU. It visits twice; the second time its network
/// fails.
#[test]
fn visit() {
    let Some(folder) = folder() else { return };
    let address = found(&folder, "address");
    let interface = std::env::var(INTERFACE).unwrap();
    ip(&["link", "set", &interface, "mtu", "1500"]);
    lost(&address);
    let mut end = End::alone(Verbs.start(RackId(2), FRAMES_LEN, Hardware::FAST));
    visit_rounds(&mut end, &address, ROUNDS);

    end.endpoint = ok(end.node.fabric.connect(&address));
    end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    ok(end.send(b"going"));
    assert_eq!(message(&mut end), b"gone");
    ip(&["link", "set", &interface, "down"]);
    assert_eq!(ended(&mut end), DisconnectReason::PeerGone);
    ip(&["link", "set", &interface, "up", "mtu", "4200"]);
}
