//! Unauthenticated peers cost little and displace no authenticated peer, however many they are and
//! whatever they send.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rackpool_access::{Authority, Party};
use rackpool_testing::wait::TIMEOUT;
use rackpool_wire::encode;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Tagged};
use support::Server;

const MANY_PEERS: usize = 10_000;

/// Each test needs nearly all descriptors that a process may have.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other test has peers connected. Call it before a rack registers: its lease would
/// expire meanwhile.
fn alone() -> MutexGuard<'static, ()> {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    raise_descriptors();
    alone
}

fn raise_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let wanted = MANY_PEERS as u64 + 200;
    // Root may raise the hard limit as well.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted.max(hard), wanted.max(hard));
    let raised = raised.or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    raised.unwrap();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(soft >= wanted, "`ulimit -Hn` is {hard}: this test needs {wanted} descriptors");
}

fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Connects many peers. A rack that was connected before, and racks that connect later, are served
/// all the time.
fn peers(
    server: &Server,
    says: &[u8],
    mut serve_rack: impl FnMut(),
    mut come_and_go: impl FnMut(),
) {
    let mut unauthenticated_peers = Vec::with_capacity(MANY_PEERS);
    let mut longest = Duration::ZERO;
    for number in 0..MANY_PEERS {
        let mut unauthenticated_peer = TcpStream::connect(server.address).unwrap();
        // Some were dropped before they could send anything.
        let _ = unauthenticated_peer.write_all(says);
        unauthenticated_peers.push(unauthenticated_peer);
        if number % 100 == 0 {
            let began = Instant::now();
            serve_rack();
            longest = longest.max(began.elapsed());
        }
        if number % 1000 == 999 {
            come_and_go();
        }
    }
    assert!(
        longest < Duration::from_secs(2),
        "a heartbeat took {longest:?}: its lease would be over"
    );
    come_and_go();
    assert!(resident_kib(server) < 150 << 10, "{} KiB", resident_kib(server));
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap().count();
    assert!(open < 1200, "{open} descriptors are open");
    server.wait_for_log("newer connections took its place");
    server.wait_for_log("more connections of unauthenticated peers");
    // Debug lines are enabled in tests; the lines about unauthenticated peers must be few.
    let lines = server.log().matches("closed the connection from").count();
    assert!(lines < 2000, "{lines} lines");
    drop(unauthenticated_peers);
    serve_rack();
}

#[test]
fn ten_thousand_silent_connections_keep_nobody_out() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut rack = server.connect();
    rack.register(0, 1, 1);
    let serve_rack = || {
        assert!(matches!(rack.heartbeat(0, 1, 0), MetadataReply::Renewed { .. }));
    };
    let come_and_go = || {
        assert_eq!(server.connect().status().members.len(), 1);
    };
    peers(&server, b"", serve_rack, come_and_go);
    assert!(!server.log().contains("sent no heartbeat"), "{}", server.log());
}

#[test]
fn ten_thousand_half_open_handshakes_keep_nobody_out() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let credentials = tempfile::tempdir().unwrap();
    let authority = Authority::create(credentials.path()).unwrap();
    let own = authority.issue(Party::MetadataServer, 30, false).unwrap();
    let operator = authority.issue(Party::Operator, 30, false).unwrap();
    let server = Server::start(directory.path(), &["--credentials", own.to_str().unwrap()]);
    let operator = rackpool_access::Credentials::load(&operator).unwrap();
    let mut standing = support::Tls::connect(&server, &operator);
    let look = |standing: &mut support::Tls| {
        assert!(matches!(
            standing.ask(rackpool_wire::metadata::MetadataRequest::Status),
            MetadataReply::Status(_)
        ));
    };
    look(&mut standing);
    // The start of a ClientHello that announces 512 bytes.
    let begun = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    peers(
        &server,
        &begun,
        || look(&mut standing),
        || {
            let mut newcomer = support::Tls::connect(&server, &operator);
            assert!(matches!(
                newcomer.ask(rackpool_wire::metadata::MetadataRequest::Status),
                MetadataReply::Status(_)
            ));
        },
    );
}

#[test]
fn peers_of_one_address_take_the_places_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    // With so few descriptors there are 64 places for unauthenticated peers, which are taken at
    // once.
    let server = Server::command(directory.path(), &[]);
    let mut bounded = Command::new("sh");
    bounded.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""]).arg(server.get_program());
    bounded.args(server.get_args()).env("RUST_LOG", "debug");
    let server = Server::run(bounded, directory.path());
    let frame = encode(&Tagged { tag: 7, message: MetadataRequest::Status }).unwrap();
    let mut peers = Vec::new();
    for _ in 0..5 {
        // Half of a request; the rest follows when more peers have come than there are places.
        let mut slow = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
        slow.stream.write_all(&frame[..2]).unwrap();
        peers.extend((0..100).map(|_| TcpStream::connect(server.address).unwrap()));
        slow.stream.write_all(&frame[2..]).unwrap();
        let answer = slow.receive().expect("it lost its place to peers from elsewhere");
        assert_eq!(answer.tag, 7);
    }
    server.wait_for_log("newer connections took its place");
    assert!(!server.log().contains("closed the connection from 127.0.0.2"), "{}", server.log());
}

#[test]
fn who_says_nothing_is_let_go_after_a_while() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    // Taken before the server can know the peers, so that no wait in this test shortens the
    // measured time.
    let began = Instant::now();
    let mut silent = TcpStream::connect(server.address).unwrap();
    let mut half = TcpStream::connect(server.address).unwrap();
    half.write_all(&[9, 0, 0]).unwrap();
    for unauthenticated_peer in [&mut silent, &mut half] {
        unauthenticated_peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        assert_eq!(unauthenticated_peer.read(&mut [0; 1]).unwrap(), 0);
    }
    assert!(began.elapsed() >= Duration::from_secs(4));
    server.wait_for_log("it sent no request within 5 s");
}

#[test]
fn a_request_larger_than_any_is_refused_by_its_header() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &[]);
    let mut connection = server.connect();
    connection.stream.write_all(&[0, 0x41, 0, 0, 1]).unwrap();
    assert_eq!(connection.receive(), None);
    server.wait_for_log("a message of 16640 B is over the limit of 16384 B");
}
