//! Malformed input of peers: on the socket, in the handshake, in the link memory.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::rack::{connect_failed, failed, rack, raise_file_limit, still_serves};
use common::{Emulated, packets};
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{memory_of, ok, read, transfer, write};
use rackpool_fabric::{ErrorClass, Event, FabricError, MemoryRegion};
use rackpool_model::RackId;
use rackpool_testing::log;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType,
};

// From docs/design/fabric.md.
const LINK_LEN: u64 = 0x0020_3000;
const CARD_LEN: u64 = 4096;
const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
const INITIATOR_TAIL: u64 = 0x1180;
const INITIATOR_HEAD: u64 = 0x1200;
const INITIATOR_RING: u64 = 0x3000;

/// A process at the other end of a socket that is not a rack daemon.
struct UnauthenticatedPeer {
    socket: OwnedFd,
}

impl UnauthenticatedPeer {
    fn connect(test: &Emulated) -> Self {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let address = SocketAddrUnix::new(test.socket(RackId(1))).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Self { socket }
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let bytes = [IoSlice::new(bytes)];
        rustix::net::sendmsg(&self.socket, &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// The answer; empty if the other side closed the connection.
    fn receive(&self) -> Vec<u8> {
        let fd = PollFd::new(&self.socket, PollFlags::IN);
        let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut [fd], Some(&timeout)).unwrap() > 0, "no answer");
        let mut bytes = vec![0; 1024];
        let mut space = [MaybeUninit::uninit(); 256];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut bytes)];
        let received =
            rustix::net::recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC);
        let len = received.map_or(0, |received| received.bytes);
        bytes.truncate(len);
        bytes
    }

    fn refused(&self) -> String {
        let answer = self.receive();
        assert_eq!(answer[8..12], [2, 0, 0, 0], "it was not refused");
        String::from_utf8(answer[20..].to_vec()).unwrap()
    }

    /// Performs the handshake up to its own offer.
    fn offer(&self, fds: &[BorrowedFd<'_>]) {
        self.send(&hello(2), &[]);
        let answer = self.receive();
        assert_eq!((answer.len(), answer[8]), (packets::HELLO_AND_PROOF, 1));
        self.send(&packets::proof(MAGIC), &[]);
        self.send(&offer(), fds);
    }
}

const MAGIC: &[u8; 8] = b"rackfab\0";

fn hello(version: u32) -> Vec<u8> {
    packets::hello(MAGIC, version, false)
}

/// An offer of one page.
fn offer() -> Vec<u8> {
    packets::offer(MAGIC, &[&1_u32.to_le_bytes()[..], &4096_u64.to_le_bytes()].concat())
}

struct Offer {
    link: OwnedFd,
    wake: OwnedFd,
    card: OwnedFd,
    page: OwnedFd,
}

impl Offer {
    fn new(link_len: u64, seals: SealFlags) -> Self {
        let link = memfd(link_len, seals);
        let wake = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let card = memfd(CARD_LEN, SEALED);
        ok(memory(&card, CARD_LEN).store(0, u64::from_le_bytes(*b"rackcard")));
        ok(memory(&card, CARD_LEN).store(8, 80));
        Self { link, wake, card, page: FileMemory::anonymous(4096).share().unwrap() }
    }

    fn good() -> Self {
        let offer = Self::new(LINK_LEN, SEALED);
        let memory = offer.memory();
        ok(memory.store(0, u64::from_le_bytes(*b"racklink")));
        ok(memory.store(8, 1));
        ok(memory.store(16, 1 << 20));
        offer
    }

    fn memory(&self) -> FileMemory {
        memory(&self.link, LINK_LEN)
    }

    fn fds(&self) -> [BorrowedFd<'_>; 4] {
        [self.link.as_fd(), self.wake.as_fd(), self.card.as_fd(), self.page.as_fd()]
    }
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("offered", flags).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn memory(fd: &OwnedFd, len: u64) -> FileMemory {
    FileMemory::new(fd.try_clone().unwrap(), len)
}

/// Waits for the log line that refuses an unauthenticated peer, which is this process.
fn logged(reason: &str) {
    log::wait_for(&[&format!("the fabric refused process {}: ", std::process::id()), reason]);
}

#[test]
fn nonsense_is_refused_and_forgotten() {
    log::listen();
    let test = Emulated::new();
    let mut end = rack(&test);
    let good = Offer::good();
    let early = [hello(2), offer()].concat();
    for packet in [&b"GET / HTTP/1.1"[..], &[0; 700], &[255; 40], &hello(2)[..39], &early] {
        let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
        unauthenticated_peer.send(packet, &good.fds());
        let answer = unauthenticated_peer.receive();
        assert!(answer.is_empty() || answer[8] == 2 || answer[8] == 1);
    }
    logged("another protocol");
    assert_eq!(end.events, []);
    still_serves(&test, &mut end);
}

#[test]
fn another_version_is_told_so() {
    log::listen();
    let test = Emulated::new();
    let mut end = rack(&test);
    let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
    unauthenticated_peer.send(&hello(99), &[]);
    let reason = unauthenticated_peer.refused();
    assert!(reason.contains("version 99") && reason.contains("same release"), "{reason}");
    logged("the peer speaks version 99");
    still_serves(&test, &mut end);
}

#[test]
fn descriptors_are_checked() {
    let test = Emulated::new();
    let mut end = rack(&test);
    let good = Offer::good();
    let unsealed = Offer::new(LINK_LEN, SealFlags::GROW);
    let short = Offer::new(LINK_LEN - 4096, SEALED);
    let empty = Offer::new(LINK_LEN, SEALED);
    let blocking = eventfd(0, EventfdFlags::empty()).unwrap();
    let small = FileMemory::anonymous(4095).share().unwrap();
    let slow = Offer::good();
    ok(memory(&slow.card, CARD_LEN).store(8, u64::MAX));
    let blank = memfd(CARD_LEN, SEALED);
    let [link, wake, card, page] = good.fds();
    for (fds, expected) in [
        (&[][..], "fewer descriptors"),
        (&[link, wake, card][..], "fewer descriptors"),
        (&[link, wake, card, page, page][..], "more descriptors"),
        (&unsealed.fds()[..], "not sealed"),
        (&short.fds()[..], "link memory has"),
        (&empty.fds()[..], "no header"),
        (&[wake, link, card, page][..], "no memfd"),
        (&[link, blocking.as_fd(), card, page][..], "may block"),
        (&[link, wake, page, page][..], "card is not sealed"),
        (&[link, wake, link, page][..], "card has"),
        (&[link, wake, blank.as_fd(), page][..], "card has no header"),
        (&slow.fds()[..], "slower than any"),
        (&[link, wake, card, small.as_fd()][..], "not there"),
    ] {
        let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
        unauthenticated_peer.offer(fds);
        let reason = unauthenticated_peer.refused();
        assert!(reason.contains(expected), "{reason}");
    }
    still_serves(&test, &mut end);
}

#[test]
fn a_broken_ring_ends_its_endpoint_only() {
    let test = Emulated::new();
    let mut end = rack(&test);
    let entry = |len: u32, number: u32, due: u64| {
        [&len.to_le_bytes()[..], &number.to_le_bytes(), &due.to_le_bytes()].concat()
    };
    let cases: [(&str, Vec<u8>, u64); 9] = [
        ("tail", entry(1, 0, 0), u64::MAX),
        ("tail", entry(1, 0, 0), (1 << 20) + 8),
        ("tail", entry(1, 0, 0), 23),
        ("tail", entry(1, 0, 0), 8),
        ("claims 0 B", entry(0, 0, 0), 24),
        ("claims 65537 B", entry(65_537, 0, 0), 1 << 19),
        ("behind the ring's tail", entry(9, 0, 0), 24),
        ("wrong number", entry(8, 1, 0), 24),
        ("far future", entry(8, 0, u64::MAX), 24),
    ];
    for (expected, entry, tail) in cases {
        let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
        let offer = Offer::good();
        ok(offer.memory().write(INITIATOR_RING, &entry));
        ok(offer.memory().store(INITIATOR_TAIL, tail));
        unauthenticated_peer.offer(&offer.fds());
        end.wait("the peer", |event| matches!(event, Event::Accepted { .. }));
        let error = failed(&mut end);
        assert!(error.contains(expected), "{error}");
        assert_eq!(end.events, []);
    }
    still_serves(&test, &mut end);
}

#[test]
fn a_card_that_is_busy_for_ever_delays_nobody() {
    let test = Emulated::new();
    let mut end = rack(&test);
    let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
    let offer = Offer::good();
    for direction in [0x80, 0x100] {
        ok(memory(&offer.card, CARD_LEN).store(direction, u64::MAX));
    }
    unauthenticated_peer.offer(&offer.fds());
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = end.wait("the peer", accepted) else { panic!() };
    end.endpoint = endpoint;
    let region = end.register(&memory_of(&test, &[7; 64]));
    ok(end.post(&[write(1, transfer(region, 0, 0, 64)), read(2, transfer(region, 0, 0, 64))]));
    ok(end.completed(1));
    ok(end.completed(2));
}

#[test]
fn an_impossible_head_and_words_on_the_socket_end_the_endpoint() {
    let test = Emulated::new();
    let mut end = rack(&test);
    for on_socket in [false, true] {
        let unauthenticated_peer = UnauthenticatedPeer::connect(&test);
        let offer = Offer::good();
        unauthenticated_peer.offer(&offer.fds());
        let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
        let Event::Accepted { endpoint, .. } = end.wait("the peer", accepted) else { panic!() };
        assert_eq!(unauthenticated_peer.receive()[8], 4, "an offer comes back");
        if on_socket {
            unauthenticated_peer.send(b"psst", &[]);
        } else {
            ok(offer.memory().store(INITIATOR_HEAD, 8));
            let unsent = end.fabric().send(endpoint, b"hello".to_vec()).unwrap_err();
            assert!(matches!(unsent.error, FabricError::Misbehaved { .. }), "{unsent:?}");
            assert!(!end.fabric().arm());
        }
        failed(&mut end);
    }
    still_serves(&test, &mut end);
}

#[test]
fn silent_unauthenticated_peers_keep_nobody_waiting_and_are_hung_up_on() {
    log::listen();
    let test = Emulated::new();
    let mut end = rack(&test);
    let unauthenticated_peers: Vec<_> =
        (0..20).map(|_| UnauthenticatedPeer::connect(&test)).collect();
    still_serves(&test, &mut end);
    for unauthenticated_peer in &unauthenticated_peers {
        assert_eq!(unauthenticated_peer.receive(), []);
    }
    logged("it did not go on with its handshake within 5000 ms");
}

#[test]
fn more_silent_unauthenticated_peers_than_there_is_room_for_keep_nobody_waiting() {
    log::listen();
    raise_file_limit();
    let test = Emulated::new();
    let mut end = rack(&test);
    let unauthenticated_peers: Vec<_> =
        (0..600).map(|_| UnauthenticatedPeer::connect(&test)).collect();
    let began = Instant::now();
    still_serves(&test, &mut end);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "an honest rack needs {took:?} to connect");
    for unauthenticated_peer in &unauthenticated_peers {
        assert_eq!(unauthenticated_peer.receive(), []);
    }
    logged("it did not finish its handshake while many others connected");
}

/// Connects to a listener that does `answer` and nothing else.
fn connect_to(
    answer: impl FnOnce(UnauthenticatedPeer) -> Option<UnauthenticatedPeer>,
) -> FabricError {
    let test = Emulated::new();
    let path = test.directory.path().join("strange.sock");
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let mut end = rack(&test);
    ok(end.fabric().connect(&format!("emulated:{}", path.display())));
    let unauthenticated_peer =
        UnauthenticatedPeer { socket: rustix::net::accept(&listener).unwrap() };
    let _open = answer(unauthenticated_peer);
    connect_failed(&mut end)
}

#[test]
fn bad_listeners_are_errors_of_connect() {
    let error = connect_to(|unauthenticated_peer| {
        assert_eq!(unauthenticated_peer.receive().len(), 68);
        unauthenticated_peer.send(&hello(99), &[]);
        Some(unauthenticated_peer)
    });
    assert_eq!(error, FabricError::Version { ours: 2, theirs: 99 });

    let error = connect_to(|unauthenticated_peer| {
        unauthenticated_peer.send(&packets::packet(MAGIC, 2, 2, b"full"), &[]);
        Some(unauthenticated_peer)
    });
    assert_eq!(error, FabricError::Refused { reason: "full".into() });
    assert_eq!(error.class(), ErrorClass::Fatal);

    let error = connect_to(|unauthenticated_peer| {
        unauthenticated_peer.send(b"What?", &[]);
        Some(unauthenticated_peer)
    });
    assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}");

    let error = connect_to(|_| None);
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("without an answer"), "{error}");

    let error = connect_to(Some);
    assert!(matches!(error, FabricError::Silent { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::PeerGone);
}
