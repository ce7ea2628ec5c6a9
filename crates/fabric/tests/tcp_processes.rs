//! Peers over TCP that are killed, stopped or cut off, and targets that never poll.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::Tcp;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{
    End, FRAMES_LEN, Pair, bytes_of, memory_of, ok, pattern, read, transfer, write,
};
use rackpool_fabric::conformance::peer::{Peer, starter};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::tcp::TcpFabric;
use rackpool_fabric::{DisconnectReason, ErrorClass, Event, MemoryRegion};
use rackpool_model::RackId;
use rackpool_testing::skipped;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

const CUT: &str = "RACKPOOL_TEST_FABRIC_CUT";
const LEN: u32 = 256 << 10;
/// Tolerance for delays on a busy host.
const BUSY: Duration = Duration::from_secs(5);

/// A rack whose `dead_after` is one second.
fn impatient(rack: u16) -> End {
    let frames: Arc<dyn MemoryRegion> = Arc::new(FileMemory::anonymous(FRAMES_LEN));
    let mut options = Tcp::default().options(RackId(rack), Arc::clone(&frames));
    options.dead_after = Duration::from_secs(1);
    End::alone(Node { fabric: Box::new(TcpFabric::new(options).unwrap()), frames })
}

fn connect(a: &mut End, b: &mut End) {
    a.endpoint = ok(a.node.fabric.connect(&b.node.fabric.address()));
    a.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = b.wait("the peer", accepted) else { panic!() };
    b.endpoint = endpoint;
}

fn ended(end: &mut End) -> DisconnectReason {
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
    reason
}

/// Not a test: a peer that writes to the frames of the rack that started it, until it is
/// disconnected.
#[test]
fn peer() {
    let Some(address) = starter() else { return };
    let test = Tcp::default();
    let mut end = End::alone(test.start(RackId(2), 1 << 20, Hardware::FAST));
    end.endpoint = end.node.fabric.connect(&address).unwrap();
    end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    let region = end.register(&memory_of(&test, &vec![7; LEN as usize]));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        // Fails when the queue is full, and at the end.
        let _ = end.post(&[write(1, transfer(region, 0, 0, LEN))]);
        end.poll();
        if let Some(Event::Disconnected { reason, .. }) = end.events.last() {
            assert_eq!(*reason, DisconnectReason::Peer);
            return;
        }
        end.events.clear();
    }
    panic!("nobody ended this");
}

fn start() -> (End, Peer) {
    let mut end = End::alone(Tcp::default().start(RackId(1), 1 << 20, Hardware::FAST));
    let peer = Peer::running("peer", &end.node.fabric.address());
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, peer: rack, .. } = end.wait("the peer", accepted) else {
        panic!()
    };
    assert_eq!(rack, RackId(2));
    end.endpoint = endpoint;
    // Waits until the peer is writing.
    let start = Instant::now();
    while bytes_of(&end.node.frames, 0, 1) != [7] {
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    (end, peer)
}

#[test]
fn a_killed_peer_is_noticed_at_once_and_nothing_is_left_open() {
    let test = Tcp::default();
    for round in 0..5 {
        let (mut end, mut peer) = start();
        let region = end.register(&memory_of(&test, &[1; 8]));
        thread::sleep(Duration::from_micros(300 * round));
        peer.stop();
        let list: Vec<_> = (0..20).map(|id| write(id, transfer(region, 0, id * 8, 8))).collect();
        ok(end.post(&list));
        peer.0.kill().unwrap();
        peer.0.wait().unwrap();
        let killed = Instant::now();
        assert_eq!(ended(&mut end), DisconnectReason::PeerGone);
        assert!(killed.elapsed() < BUSY, "{:?}", killed.elapsed());
        assert_eq!(end.events.len(), 20);
        for (expected, event) in (0..).zip(&end.events) {
            let Event::Completed { id, result: Err(error), .. } = event else { panic!() };
            assert_eq!((*id, error.class()), (expected, ErrorClass::PeerGone));
        }
    }
}

#[test]
fn a_stopped_peer_is_fenced_at_once_and_what_it_sent_is_never_applied() {
    for round in 0..8 {
        let (mut end, mut peer) = start();
        thread::sleep(Duration::from_micros(700 * round));
        peer.stop();
        let endpoint = end.endpoint;
        end.fabric().disconnect(endpoint);
        let start = Instant::now();
        assert_eq!(ended(&mut end), DisconnectReason::Local);
        assert!(start.elapsed() < BUSY, "a stopped peer delays its fence");
        let zeroes = vec![0; LEN as usize];
        end.node.frames.write(0, &zeroes).unwrap();
        peer.signal(Signal::CONT);
        peer.0.wait().unwrap();
        assert!(bytes_of(&end.node.frames, 0, zeroes.len()) == zeroes, "a late write landed");
    }
}

/// Not a test: a rack that is stopped while a peer writes to it.
#[test]
fn target() {
    let Some(address) = starter() else { return };
    let mut end = impatient(2);
    end.endpoint = end.node.fabric.connect(&address).unwrap();
    end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    ended(&mut end);
    // Time for bytes sent before the end.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(bytes_of(&end.node.frames, 0, 1), [7], "nothing was written before the stop");
    assert_eq!(bytes_of(&end.node.frames, 8, 4096), [0; 4096], "a write landed after the end");
}

#[test]
fn what_was_sent_to_a_stopped_target_does_not_land_after_the_end() {
    let mut end = impatient(1);
    let mut peer = Peer::running("target", &end.node.fabric.address());
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = end.wait("the peer", accepted) else { panic!() };
    end.endpoint = endpoint;
    let region = end.register(&memory_of(&Tcp::default(), &[7; 4096]));
    ok(end.post(&[write(1, transfer(region, 0, 0, 8))]));
    ok(end.completed(1));
    // The server of the peer sleeps when it is stopped.
    thread::sleep(Duration::from_millis(50));
    peer.stop();
    ok(end.post(&[write(2, transfer(region, 0, 8, 4096))]));
    // Taken before the wait can begin, since a busy host may delay this thread afterwards.
    let start = Instant::now();
    end.fabric().disconnect(endpoint);
    end.wait("the fence", |event| *event == Event::Fenced { endpoint });
    assert_eq!(ended(&mut end), DisconnectReason::Local);
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1), "after {took:?} the write can still land");
    assert!(took < Duration::from_secs(1) + BUSY, "a stopped target delays the end for {took:?}");
    peer.signal(Signal::CONT);
    assert!(peer.0.wait().unwrap().success());
}

#[test]
fn a_target_that_never_polls_is_read_and_written() {
    let test = Tcp::default();
    let Pair { mut a, b } = Pair::new(&test, Hardware::FAST);
    let content = pattern(1 << 20, 3);
    let (from, to) = (a.register(&memory_of(&test, &content)), test.memory(1 << 20));
    let own = a.register(&to);
    for round in 0..10 {
        ok(a.post(&[
            write(1, transfer(from, 0, round * 8, 1 << 20)),
            read(2, transfer(own, 0, round * 8, 1 << 20)),
        ]));
        ok(a.completed(2));
        assert!(bytes_of(&to, 0, 1 << 20) == content);
        a.events.clear();
    }
    // Messages that the peer does not take stop at the window, and block nothing else.
    while a.send(&content[..60_000]).is_ok() {}
    ok(a.post(&[read(3, transfer(own, 0, 0, 4096))]));
    ok(a.completed(3));
    assert_eq!(b.events, []);
}

#[test]
fn answers_wake_a_reader_that_sleeps() {
    let test = Tcp::default();
    let Pair { mut a, b: _b } = Pair::new(&test, Hardware::FAST);
    let region = a.register(&test.memory(1 << 20));
    let mut slept = 0;
    for round in 0..200 {
        ok(a.post(&[read(round, transfer(region, 0, 0, 1 << (round % 21)))]));
        while a.events.is_empty() {
            a.fabric().disarm();
            a.poll();
            if a.events.is_empty() && a.fabric().arm() {
                let fd = PollFd::from_borrowed_fd(a.node.fabric.wake_fd(), PollFlags::IN);
                let timeout = Timespec { tv_sec: 30, tv_nsec: 0 };
                let woken = rustix::event::poll(&mut [fd], Some(&timeout)).unwrap();
                assert_eq!(woken, 1, "an answer did not wake");
                slept += 1;
            }
        }
        a.fabric().disarm();
        ok(a.completed(round));
    }
    assert!(slept > 0, "nothing was tested: it never slept");
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).stdin(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Not a test: two racks in a network namespace of their own, which is cut between them.
#[test]
fn cut_off() {
    if std::env::var_os(CUT).is_none() {
        return;
    }
    assert!(run("ip", &["link", "set", "lo", "up"]));
    let (mut a, mut b) = (impatient(1), impatient(2));
    connect(&mut a, &mut b);
    let (mut idle_a, mut idle_b) = (impatient(3), impatient(4));
    connect(&mut idle_a, &mut idle_b);
    let region = a.register(&memory_of(&Tcp::default(), &[1; 4096]));
    // From here on, all packets are lost silently.
    assert!(run("ip", &["link", "set", "lo", "down"]));
    let cut = Instant::now();
    ok(a.post(&[write(1, transfer(region, 0, 0, 4096))]));
    assert_eq!(ended(&mut a), DisconnectReason::PeerGone);
    let [Event::Completed { id: 1, result: Err(error), .. }] = &a.events[..] else { panic!() };
    assert_eq!(error.class(), ErrorClass::PeerGone);
    println!("busy: {:?}", cut.elapsed());
    for end in [&mut b, &mut idle_a, &mut idle_b] {
        assert_eq!(ended(end), DisconnectReason::PeerGone);
        println!("idle: {:?}", cut.elapsed());
    }
    assert!(cut.elapsed() < Duration::from_secs(3) + BUSY, "{:?}", cut.elapsed());
}

#[test]
fn a_network_that_is_cut_without_a_word_ends_the_endpoint_in_time() {
    let namespace = ["--net", "--map-root-user"];
    if !run("unshare", &[&namespace[..], &["ip", "link", "set", "lo", "up"]].concat()) {
        return skipped("a network to be cut needs ip and the right to unshare one");
    }
    let own = std::env::current_exe().unwrap();
    let test = [own.to_str().unwrap(), "--exact", "cut_off", "--nocapture"];
    let mut child = Command::new("unshare")
        .args([&namespace[..], &test].concat())
        .env(CUT, "1")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
}
