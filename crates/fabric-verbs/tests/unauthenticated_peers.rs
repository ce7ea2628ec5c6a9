//! Peers that send malformed packets, have another key or are unreachable by RDMA, on hosts with a
//! port.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::Verbs;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{End, ok};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::{ErrorClass, Event, FabricError, MemoryRegion};
use rackpool_fabric_verbs::{VerbsFabric, VerbsOptions, VerbsStartError};
use rackpool_model::{FabricKey, RackId};
use rackpool_testing::log;

fn rack(id: u16) -> End {
    End::alone(Verbs.start(RackId(id), 4096, Hardware::FAST))
}

fn rack_with(change: impl FnOnce(&mut VerbsOptions)) -> Result<End, VerbsStartError> {
    let frames = Verbs.memory(4096);
    let mut options = Verbs::options(RackId(3), &frames);
    change(&mut options);
    let fabric = Box::new(VerbsFabric::new(options)?);
    Ok(End::alone(Node { fabric, frames }))
}

/// The error of starting a rack with changed options.
fn start_error(change: impl FnOnce(&mut VerbsOptions)) -> String {
    match rack_with(change) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was started"),
    }
}

fn address_of(end: &End) -> SocketAddr {
    end.node.fabric.address().strip_prefix("verbs:").unwrap().parse().unwrap()
}

/// Checks that the rack still serves: another rack can connect to it.
fn still_serves(end: &mut End) {
    let mut other = rack(2);
    let address = end.node.fabric.address();
    ok(other.node.fabric.connect(&address));
    other.wait("a connection", |event| matches!(event, Event::Connected { .. }));
    end.wait("the peer", |event| matches!(event, Event::Accepted { peer: RackId(2), .. }));
}

fn failure(end: &mut End, address: &str) -> FabricError {
    ok(end.fabric().connect(address));
    let failed = end.wait("the failure", |event| matches!(event, Event::ConnectFailed { .. }));
    let Event::ConnectFailed { error, .. } = failed else { panic!() };
    error
}

/// `magic | kind | version | length`, as in docs/design/fabric.md.
fn packet(kind: u32, version: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap();
    let numbers = [kind, version, len].map(u32::to_le_bytes).concat();
    [&b"rackverb"[..], &numbers, body].concat()
}

/// A hello of rack 66 that claims a key.
fn hello() -> Vec<u8> {
    let mut body = [0; 48];
    (body[0], body[2]) = (66, 1);
    packet(1, 2, &body)
}

/// Everything that the rack sends to an unauthenticated peer until it closes the connection.
fn said_to(end: &End, packets: &[&[u8]]) -> Vec<u8> {
    let mut unauthenticated_peer = TcpStream::connect(address_of(end)).unwrap();
    for bytes in packets {
        // Fails if the rack has already closed the connection.
        let _ = unauthenticated_peer.write_all(bytes);
    }
    let _ = unauthenticated_peer.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    let _ = unauthenticated_peer.read_to_end(&mut said);
    said
}

#[test]
fn nonsense_is_refused_and_forgotten() {
    if !common::is_there() {
        return;
    }
    let mut end = rack(1);
    let junk = [255; 4096];
    for packets in [
        &[&b"GET / HTTP/1.1\r\n\r\n"[..]][..],
        &[&junk],
        &[b"rackverb"],
        &[&packet(9, 2, &[])],
        &[&packet(1, 2, &[0; 2000])],
        &[&packet(5, 2, &[])],
        &[&packet(4, 2, &[1; 80])],
        &[&hello(), &hello()],
        &[&hello(), &packet(4, 2, &[1; 80])],
        &[],
    ] {
        said_to(&end, packets);
    }
    end.poll();
    assert_eq!(end.events, []);
    still_serves(&mut end);
}

#[test]
fn an_unauthenticated_peer_without_the_key_gets_no_queue_pair() {
    if !common::is_there() {
        return;
    }
    log::listen();
    let mut end = rack(1);
    let said = said_to(&end, &[&hello(), &packet(3, 2, &[9; 32])]);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("does not have the other's pool key"), "{said}");
    let refused = format!("the fabric refused {}:", Verbs::address());
    log::wait_for(&[&refused, "the peer does not have the other's pool key"]);
    let another = packet(1, 99, &[]);
    let said = said_to(&end, &[&another]);
    assert!(String::from_utf8_lossy(&said).contains("version 99"));
    still_serves(&mut end);
}

#[test]
fn racks_with_other_keys_refuse_each_other() {
    if !common::is_there() {
        return;
    }
    let mut end = rack(1);
    let address = end.node.fabric.address();
    let mut other =
        rack_with(|options| options.key = Some(FabricKey::new([8; 32])).into()).unwrap();
    let error = failure(&mut other, &address);
    assert_eq!(error, FabricError::WrongKey { lacks: "the peer" });
    assert_eq!(error.class(), ErrorClass::Fatal);
    assert_eq!(end.events, []);
    still_serves(&mut end);
}

#[test]
fn silent_unauthenticated_peers_keep_nobody_waiting() {
    if !common::is_there() {
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    log::listen();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut end = rack(1);
    let unauthenticated_peers: Vec<_> =
        (0..1000).map(|_| TcpStream::connect(address_of(&end)).unwrap()).collect();
    still_serves(&mut end);
    for mut unauthenticated_peer in unauthenticated_peers {
        unauthenticated_peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(unauthenticated_peer.read(&mut [0; 64]).unwrap_or(0), 0, "it was talked to");
    }
    log::wait_for(&["it did not finish its handshake while many others connected"]);
}

#[test]
fn bad_listeners_are_errors_of_connect() {
    if !common::is_there() {
        return;
    }
    let mut end = rack(1);
    let listener = TcpListener::bind((Verbs::address(), 0)).unwrap();
    let address = format!("verbs:{}", listener.local_addr().unwrap());
    let mut answered = |bytes: Vec<u8>| {
        let listener = listener.try_clone().unwrap();
        let unauthenticated_peer = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(&bytes).unwrap();
            // Until the rack closes the connection.
            let _ = socket.read_to_end(&mut Vec::new());
        });
        let error = failure(&mut end, &address);
        unauthenticated_peer.join().unwrap();
        error
    };
    assert_eq!(answered(packet(1, 99, &[])), FabricError::Version { ours: 2, theirs: 99 });
    let refused = FabricError::Refused { reason: "full".into() };
    assert_eq!(answered(packet(2, 2, b"full")), refused);
    assert!(matches!(answered(b"What?".to_vec()), FabricError::Misbehaved { .. }));
    assert!(matches!(answered(Vec::new()), FabricError::Silent { .. }));
}

#[test]
fn a_wrong_gid_device_or_missing_memory_is_named() {
    if !common::is_there() {
        return;
    }
    let text = start_error(|options| options.device = Some("mlx99".into()));
    assert!(text.contains("there is no RDMA device mlx99"), "{text}");
    assert!(text.contains(&format!("= {} (RoCE v2)", Verbs::address())), "{text}");
    let text = start_error(|options| options.gid_index = Some(99));
    assert!(text.contains("GID 99"), "{text}");
    let text = start_error(|options| options.port = Some(9));
    assert!(text.contains("no active RDMA port 9 has"), "{text}");
    let file: Arc<dyn MemoryRegion> = Arc::new(FileMemory::anonymous(4096));
    let text = start_error(|options| options.exports = vec![file]);
    assert!(text.contains("it is not mapped"), "{text}");
}
