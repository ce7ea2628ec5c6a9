//! Unauthenticated peers at the port of a TCP fabric: malformed packets, silence, and violations of
//! the protocol.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::rack::{connect_failed, failed, rack, raise_file_limit, still_serves};
use common::{Tcp, packets};
use rackpool_fabric::conformance::pair::{End, memory_of, ok, read, transfer};
use rackpool_fabric::{DisconnectReason, ErrorClass, Event, FabricError};
use rackpool_model::{FabricKey, RackId};
use rackpool_testing::log;
use rustix::net::{AddressFamily, SocketType};

const HANDSHAKE: Duration = Duration::from_secs(5);
/// Tolerance for delays on a busy host.
const BUSY: Duration = Duration::from_secs(10);

/// A process at the other end of a socket that is not a rack daemon.
struct UnauthenticatedPeer {
    socket: TcpStream,
}

impl UnauthenticatedPeer {
    fn connect(end: &End) -> Self {
        let address = end.node.fabric.address();
        let socket = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
        socket.set_read_timeout(Some(HANDSHAKE + BUSY)).unwrap();
        Self { socket }
    }

    /// Waits for the log line that refuses this peer with `reason`. Valid only for the first peer
    /// that a rack refuses.
    fn logged(&self, reason: &str) {
        let refused = format!("the fabric refused {}: ", self.socket.local_addr().unwrap());
        log::wait_for(&[&refused, reason]);
    }

    fn send(&mut self, bytes: &[u8]) {
        // Fails if the rack has already closed the connection.
        let _ = self.socket.write_all(bytes);
    }

    fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything until the other side closes the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = self.socket.read_to_end(&mut bytes) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "nobody hangs up");
        }
        bytes
    }

    fn refused(&mut self) -> String {
        let answer = self.rest();
        assert_eq!(answer[..12], *b"racktcp\0\x02\0\0\0", "it was not refused");
        String::from_utf8(answer[20..].to_vec()).unwrap()
    }
}

const MAGIC: &[u8; 8] = b"racktcp\0";

fn hello(version: u32) -> Vec<u8> {
    packets::hello(MAGIC, version, false)
}

fn proof() -> Vec<u8> {
    packets::proof(MAGIC)
}

/// What a rack that exports one page offers.
fn content(channel: u8, session: u8) -> Vec<u8> {
    let page = [&1_u32.to_le_bytes()[..], &4096_u64.to_le_bytes()].concat();
    [&[channel, 0, 0, 0][..], &[session; 16], &page].concat()
}

/// Bytes of the answer to an offer.
const OFFER: usize = 20 + 32 + 32;

/// Performs the handshake of one channel up to its own offer.
fn offer(end: &End, content: &[u8]) -> UnauthenticatedPeer {
    let mut channel = UnauthenticatedPeer::connect(end);
    channel.send(&hello(2));
    let answer = channel.receive(packets::HELLO_AND_PROOF);
    assert_eq!((answer[8], answer[68 + 8]), (1, 3));
    channel.send(&[proof(), packets::offer(MAGIC, content)].concat());
    channel
}

/// Performs the handshake of an endpoint's two channels by hand.
fn shake_hands(end: &mut End, session: u8) -> [UnauthenticatedPeer; 2] {
    let mut channels = [1, 2].map(|number| offer(end, &content(number, session)));
    for (number, channel) in (1..).zip(&mut channels) {
        let answer = channel.receive(OFFER);
        assert_eq!((answer[8], answer[20 + 32]), (4, number));
    }
    let accepted = |event: &Event| matches!(event, Event::Accepted { peer: RackId(66), .. });
    let Event::Accepted { endpoint, .. } = end.wait("the peer", accepted) else { panic!() };
    end.endpoint = endpoint;
    channels
}

fn keyed(byte: u8) -> Tcp {
    Tcp { key: Some(FabricKey::new([byte; 32])) }
}

#[test]
fn nonsense_is_refused_and_forgotten() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let changed = |at: usize, value: u8| {
        let mut packet = hello(2);
        packet[at] = value;
        packet
    };
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "another protocol"),
        (vec![0; 700], "another protocol"),
        (vec![255; 1 << 20], "another protocol"),
        (changed(8, 77), "unknown kind 77"),
        (changed(17, 255), "packet of 65328 B"),
        (changed(16, 47), "too short"),
        (changed(22, 2), "unknown flags"),
        (changed(23, 1), "where zeroes must be"),
        (proof(), "out of order"),
        (packets::packet(MAGIC, 2, 2, &[b'!'; 257]), "too long"),
    ];
    for (bytes, expected) in cases {
        let mut unauthenticated_peer = UnauthenticatedPeer::connect(&end);
        unauthenticated_peer.send(&bytes);
        let reason = unauthenticated_peer.refused();
        assert!(reason.contains(expected), "{reason} instead of {expected}");
    }
    let changed = |at: usize, value: u8| {
        let mut content = content(1, 1);
        content[at] = value;
        content
    };
    for (content, expected) in [
        (changed(20, 17), "exports 17 regions"),
        (changed(21, 255), "exports 65281 regions"),
        (changed(20, 0), "exports 0 regions"),
        (changed(0, 3), "unknown channel 3"),
        (changed(1, 1), "where zeroes must be"),
        (Vec::new(), "its offer is empty"),
    ] {
        let reason = offer(&end, &content).refused();
        assert!(reason.contains(expected), "{reason} instead of {expected}");
    }
    end.poll();
    assert_eq!(end.events, []);
    still_serves(&test, &mut end);
}

#[test]
fn another_version_is_told_so() {
    log::listen();
    let test = Tcp::default();
    let mut end = rack(&test);
    let mut unauthenticated_peer = UnauthenticatedPeer::connect(&end);
    unauthenticated_peer.send(&hello(99)[..20]);
    let reason = unauthenticated_peer.refused();
    assert!(reason.contains("version 99") && reason.contains("same release"), "{reason}");
    unauthenticated_peer.logged("the peer speaks version 99");
    still_serves(&test, &mut end);
}

#[test]
fn whoever_has_not_the_key_does_not_get_in() {
    log::listen();
    let test = keyed(1);
    let mut end = rack(&test);
    // A peer that claims to have a key and proves nothing.
    let mut unauthenticated_peer = UnauthenticatedPeer::connect(&end);
    unauthenticated_peer.send(&packets::hello(MAGIC, 2, true));
    let answer = unauthenticated_peer.receive(packets::HELLO_AND_PROOF);
    assert_ne!(answer[68 + 20..], [0; 32], "a keyed rack proves itself");
    unauthenticated_peer.send(&proof());
    let reason = unauthenticated_peer.refused();
    assert!(reason.contains("pool key"), "{reason}");
    unauthenticated_peer.logged("pool key");
    for other in [keyed(2), Tcp::default()] {
        let mut unauthenticated_peer = rack(&other);
        ok(unauthenticated_peer.node.fabric.connect(&end.node.fabric.address()));
        let error = connect_failed(&mut unauthenticated_peer);
        assert_eq!(error.class(), ErrorClass::Fatal);
        assert!(error.to_string().contains("pool key"), "{error}");
    }
    end.poll();
    assert_eq!(end.events, []);
    still_serves(&test, &mut end);
}

#[test]
fn truncated_handshakes_and_half_endpoints_are_hung_up_on() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let mut half = offer(&end, &content(1, 1));
    let mut silent: Vec<UnauthenticatedPeer> = [0, 1, 19, 20, 66, 67]
        .iter()
        .map(|len| {
            let mut unauthenticated_peer = UnauthenticatedPeer::connect(&end);
            unauthenticated_peer.send(&hello(2)[..*len]);
            unauthenticated_peer
        })
        .collect();
    let began = Instant::now();
    still_serves(&test, &mut end);
    assert!(began.elapsed() < HANDSHAKE, "an honest rack had to wait");
    assert!(half.rest().is_empty());
    silent
        .iter_mut()
        .for_each(|unauthenticated_peer| assert!(unauthenticated_peer.rest().is_empty()));
    assert!(began.elapsed() < HANDSHAKE + BUSY);
    // The same session again is a new session: no state of the earlier half is left.
    shake_hands(&mut end, 1);
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn ten_thousand_silent_connections_keep_nobody_out() {
    const MANY: usize = 10_000;
    raise_file_limit();
    let test = Tcp::default();
    let mut end = rack(&test);
    let (threads_before, memory_before) = (threads(), resident_kib());
    let mut silent = Vec::new();
    for batch in 0..10 {
        silent.extend((0..MANY / 10).map(|_| UnauthenticatedPeer::connect(&end)));
        let began = Instant::now();
        still_serves(&test, &mut end);
        let took = began.elapsed();
        assert!(took < HANDSHAKE, "after {batch} thousand a rack needs {took:?} to connect");
    }
    // Tests of this program run concurrently: a few threads are theirs.
    assert!(threads() < threads_before + 40, "{} threads", threads());
    // Mostly the 10,000 sockets of this test itself, and the memory of other tests.
    assert!(resident_kib() < memory_before + (64 << 10), "{} KiB", resident_kib());
    let open = |unauthenticated_peer: &UnauthenticatedPeer| {
        unauthenticated_peer.socket.set_nonblocking(true).unwrap();
        unauthenticated_peer
            .socket
            .peek(&mut [0])
            .is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
    };
    let kept = silent.iter().filter(|unauthenticated_peer| open(unauthenticated_peer)).count();
    assert!(kept <= 256, "{kept} silent connections are kept");
    let began = Instant::now();
    while silent.iter().any(open) {
        assert!(began.elapsed() < HANDSHAKE + BUSY, "silence is borne for ever");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_address_that_connects_again_and_again_keeps_nobody_out() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let address: SocketAddr =
        end.node.fabric.address().strip_prefix("tcp:").unwrap().parse().unwrap();
    let stop = AtomicBool::new(false);
    let flooded = thread::scope(|scope| {
        // From another address than the honest peer: all places are taken anew many times a second.
        let flood = || {
            let (mut open, mut count) = (VecDeque::new(), 0);
            while !stop.load(Ordering::Relaxed) {
                open.extend((0..16).map(|_| connect_from([127, 0, 0, 66], address)));
                count += 16;
                open.drain(..open.len().saturating_sub(768));
                thread::sleep(Duration::from_millis(1));
            }
            count
        };
        let flood = scope.spawn(flood);
        let mut slow = UnauthenticatedPeer::connect(&end);
        thread::sleep(Duration::from_secs(1));
        slow.send(&hello(2));
        assert_eq!(slow.receive(packets::HELLO_AND_PROOF)[8], 1, "a hello comes back");
        for _ in 0..3 {
            let began = Instant::now();
            still_serves(&test, &mut end);
            assert!(began.elapsed() < HANDSHAKE, "it needs {:?} to connect", began.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap()
    });
    assert!(flooded > 1000, "{flooded} connections are no flood");
}

fn connect_from(source: [u8; 4], to: SocketAddr) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    socket
}

#[test]
fn broken_requests_end_their_endpoint_only() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let request = |kind: u8, region: u8, len: u32, last: u64| {
        let len = len.to_le_bytes();
        [&[kind, 0, region, 0][..], &len, &last.to_le_bytes()].concat()
    };
    let mut flagged = request(1, 0, 8, 0);
    flagged[1] = 1;
    let cases = [
        (request(0, 0, 0, 0), "unknown kind 0"),
        (request(9, 0, 0, 0), "unknown kind 9"),
        (request(1, 0, 0, 0), "for 0 B"),
        (request(2, 0, 0, 0), "for 0 B"),
        (request(3, 0, 0, 0), "for 0 B"),
        (request(3, 0, 65_537, 0), "for 65537 B"),
        (request(1, 1, 8, 0), "region 1"),
        (request(1, 0, 8, 4089), "8 B at 0xff9"),
        (request(2, 0, u32::MAX, 0), "4294967295 B at 0x0"),
        (request(2, 0, 8, u64::MAX - 3), "8 B at"),
        (flagged, "unknown flags"),
        (request(4, 0, 0, 1), "took more messages than were sent"),
    ];
    for (session, (bytes, expected)) in (1..).zip(cases) {
        let [mut first, mut second] = shake_hands(&mut end, session);
        first.send(&bytes);
        let error = failed(&mut end);
        assert!(error.contains(expected), "{error} instead of {expected}");
        assert_eq!(end.events, []);
        first.rest();
        second.rest();
    }
    still_serves(&test, &mut end);
}

#[test]
fn answers_to_nothing_end_the_endpoint() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let region = end.register(&memory_of(&test, &[0; 64]));
    let answer = |kind: u8, number: u32| [&[kind, 0, 0, 0][..], &number.to_le_bytes()].concat();
    for (session, (bytes, expected)) in (1..).zip([
        (answer(1, 63), "nobody read"),
        (answer(1, 0), "kind 1 with number 0"),
        (answer(2, 1), "write that was not sent"),
        (answer(2, u32::MAX), "write that was not sent"),
        (answer(7, 0), "kind 7"),
        ([answer(1, 64), vec![5; 64], answer(1, 64)].concat(), "nobody read"),
    ]) {
        let [first, mut second] = shake_hands(&mut end, session);
        ok(end.post(&[read(1, transfer(region, 0, 0, 64))]));
        second.send(&bytes);
        let error = failed(&mut end);
        assert!(error.contains(expected), "{error} instead of {expected}");
        assert_eq!(end.events.len(), 1, "{:?}", end.events);
        end.events.clear();
        drop((first, second));
    }
    still_serves(&test, &mut end);
}

#[test]
fn a_flood_of_messages_that_nobody_takes_is_stopped() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let [mut first, _second] = shake_hands(&mut end, 1);
    let mut message = vec![3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    message.resize(16 + (1 << 16), 1);
    for _ in 0..40 {
        first.send(&message);
    }
    first.rest();
    let error = failed(&mut end);
    assert!(error.contains("more messages than this side has room for"), "{error}");
    assert_eq!(end.events.len(), 15, "those for which there was room");
    end.events.clear();
    still_serves(&test, &mut end);
}

#[test]
fn a_frame_that_is_cut_off_is_the_end_of_the_peer() {
    let test = Tcp::default();
    let mut end = rack(&test);
    let write = [&[2, 0, 0, 0, 16, 0, 0, 0][..], &[0; 8], &[7; 11]].concat();
    for (session, len) in (1..).zip([1, 15, 16, 23, 27]) {
        let [mut first, second] = shake_hands(&mut end, session);
        first.send(&write[..len]);
        drop((first, second));
        let ended = end.wait("the end", |event| matches!(event, Event::Disconnected { .. }));
        let Event::Disconnected { reason, .. } = ended else { panic!() };
        assert_eq!(reason, DisconnectReason::PeerGone);
    }
    still_serves(&test, &mut end);
}

/// Connects to a listener that does `answer` and nothing else.
fn connect_to(answer: impl Fn(&mut UnauthenticatedPeer)) -> FabricError {
    let test = Tcp::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut end = rack(&test);
    ok(end.fabric().connect(&format!("tcp:{}", listener.local_addr().unwrap())));
    let mut unauthenticated_peers = [listener.accept().unwrap(), listener.accept().unwrap()]
        .map(|(socket, _)| UnauthenticatedPeer { socket });
    unauthenticated_peers.iter_mut().for_each(answer);
    connect_failed(&mut end)
}

#[test]
fn bad_listeners_are_errors_of_connect() {
    let error = connect_to(|unauthenticated_peer| {
        assert_eq!(unauthenticated_peer.receive(68)[..8], *MAGIC);
        unauthenticated_peer.send(&hello(99));
    });
    assert_eq!(error, FabricError::Version { ours: 2, theirs: 99 });

    let error = connect_to(|unauthenticated_peer| {
        unauthenticated_peer.send(&packets::packet(MAGIC, 2, 2, b"full"));
    });
    assert_eq!(error, FabricError::Refused { reason: "full".into() });

    let twice = [hello(2), hello(2)].concat();
    for nonsense in [&b"What?"[..], &twice, &proof()] {
        let error = connect_to(|unauthenticated_peer| unauthenticated_peer.send(nonsense));
        assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}");
    }

    let error = connect_to(|unauthenticated_peer| {
        unauthenticated_peer.socket.shutdown(std::net::Shutdown::Both).unwrap()
    });
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");

    let error = connect_to(|_| ());
    assert!(matches!(error, FabricError::Silent { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::PeerGone);
}

/// Simulates a cut link: the kernel would retry for seconds, and its next retransmission may come
/// long after the link is restored.
#[test]
fn who_does_not_even_connect_is_given_up_long_before_the_end_of_a_handshake() {
    let listener = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    // The backlog has room for one connection, which is never accepted; further SYNs are dropped.
    let _taken = TcpStream::connect(address).unwrap();
    let test = Tcp::default();
    let mut end = rack(&test);
    let began = Instant::now();
    ok(end.fabric().connect(&format!("tcp:{address}")));
    let error = connect_failed(&mut end);
    assert!(matches!(error, FabricError::Silent { timeout_ms: 250, .. }), "{error}");
    assert!(began.elapsed() < HANDSHAKE, "{:?}", began.elapsed());
}
