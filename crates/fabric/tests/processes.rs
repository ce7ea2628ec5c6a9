//! Peers in other processes that are killed or stopped.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::Emulated;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{End, bytes_of, memory_of, ok, transfer, write};
use rackpool_fabric::conformance::peer::{Peer, starter};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::emulated::{EmulatedFabric, Mapper};
use rackpool_fabric::{DisconnectReason, ErrorClass, Event, MemoryRegion};
use rackpool_model::RackId;
use rustix::process::{Pid, Signal, kill_process};

const LEN: u32 = 256 << 10;

/// Not a test: a peer that writes to the frames of the rack that started it, until it is
/// disconnected.
#[test]
fn peer() {
    let Some(address) = starter() else { return };
    let test = Emulated::at(&address);
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
        // Makes most stops hit between two copies, with requests that are due.
        std::thread::sleep(Duration::from_micros(300));
    }
    panic!("nobody ended this");
}

fn start(hardware: Hardware) -> (Emulated, End, Peer) {
    let test = Emulated::new();
    let mut end = End::alone(test.start(RackId(1), 1 << 20, hardware));
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
    (test, end, peer)
}

#[test]
fn a_killed_peer_is_noticed_at_once_and_nothing_is_left_open() {
    for round in 0..5 {
        let (test, mut end, mut peer) = start(Hardware::STUCK);
        let region = end.register(&memory_of(&test, &[1; 8]));
        let list: Vec<_> = (0..20).map(|id| write(id, transfer(region, 0, id * 8, 8))).collect();
        ok(end.post(&list));
        std::thread::sleep(Duration::from_micros(300 * round));
        peer.0.kill().unwrap();
        peer.0.wait().unwrap();
        let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
        let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
        assert_eq!(reason, DisconnectReason::PeerGone);
        assert_eq!(end.events.len(), 20);
        for (expected, event) in (0..).zip(&end.events) {
            let Event::Completed { id, result: Err(error), .. } = event else { panic!() };
            assert_eq!((*id, error.class()), (expected, ErrorClass::PeerGone));
        }
        assert_eq!(end.node.fabric.next_completion(), None);
    }
}

#[test]
fn what_a_killed_peer_had_charged_to_the_card_passes() {
    let (test, mut end, mut peer) = start(Hardware::FAST);
    peer.0.kill().unwrap();
    peer.0.wait().unwrap();
    end.wait("the end", |event| matches!(event, Event::Disconnected { .. }));
    let mut other = End::alone(test.start(RackId(3), 4096, Hardware::FAST));
    other.endpoint = ok(other.node.fabric.connect(&end.node.fabric.address()));
    other.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    let region = other.register(&memory_of(&test, &[1; 64]));
    ok(other.post(&[write(1, transfer(region, 0, 0, 64))]));
    // A full queue of writes of 256 KiB takes 21 ms.
    let queued = Duration::from_millis(21);
    let due = other.node.fabric.next_completion().unwrap();
    assert!(due <= queued + Duration::from_millis(1), "due in {due:?}");
    ok(other.completed(1));
}

#[test]
fn a_stopped_peer_cannot_write_after_the_fence() {
    let (mut fenced_stopped, mut fenced_later) = (0, 0);
    // Continues beyond 8 rounds if no peer was stopped between two copies: on a busy host, most are
    // stopped where they were preempted, which is often within a copy.
    for round in 0.. {
        if round >= 8 && fenced_stopped > 0 {
            break;
        }
        assert!(round < 200, "a stopped peer always delays the end");
        let (_test, mut end, mut peer) = start(Hardware::FAST);
        std::thread::sleep(Duration::from_micros(700 * (round % 8)));
        peer.stop();
        let endpoint = end.endpoint;
        end.fabric().disconnect(endpoint);
        let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
        let start = Instant::now();
        while !end.events.iter().any(is_end) && start.elapsed() < Duration::from_millis(200) {
            end.poll();
        }
        if end.events.iter().any(is_end) {
            fenced_stopped += 1;
        } else {
            // The peer was stopped within a copy, which only ends when the peer runs or dies.
            fenced_later += 1;
            match round % 2 {
                0 => peer.signal(Signal::CONT),
                _ => peer.0.kill().unwrap(),
            }
            end.wait("the end", is_end);
        }
        let zeroes = vec![0; LEN as usize];
        end.node.frames.write(0, &zeroes).unwrap();
        // Fails if the peer was killed above.
        let _ = kill_process(Pid::from_child(&peer.0), Signal::CONT);
        peer.0.wait().unwrap();
        assert!(bytes_of(&end.node.frames, 0, zeroes.len()) == zeroes, "a late write landed");
    }
    println!("fenced while stopped: {fenced_stopped}, after the copy: {fenced_later}");
}

/// Not a test: a rack that waits to be killed.
#[test]
fn target() {
    let Some(address) = starter() else { return };
    let test = Emulated::at(&address);
    let mut end = End::alone(test.start(RackId(2), LEN.into(), Hardware::FAST));
    end.endpoint = end.node.fabric.connect(&address).unwrap();
    end.wait("the end", |event| matches!(event, Event::Disconnected { .. }));
}

/// Keeps the peer's frames, which outlive its process: the next incarnation serves them again.
#[derive(Clone, Default)]
struct Keeping(Arc<OnceLock<Arc<dyn MemoryRegion>>>);

impl Mapper for Keeping {
    fn map(&self, fd: OwnedFd, len: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        let memory: Arc<dyn MemoryRegion> = Arc::new(FileMemory::new(fd, len));
        if len == LEN.into() {
            assert!(self.0.set(Arc::clone(&memory)).is_ok(), "one peer, one region");
        }
        Ok(memory)
    }
}

/// The poster looks stopped, since it is not polled. Its peer is killed meanwhile, so only the
/// kernel reports the end of the link, and the next daemon may hand the frames to others.
#[test]
fn what_was_queued_to_a_peer_that_was_killed_does_not_land_later() {
    let test = Emulated::new();
    let kept = Keeping::default();
    let frames = FileMemory::anonymous(1 << 20);
    let mut options = test.options(RackId(1), &frames);
    options.mapper = Arc::new(kept.clone());
    let fabric = Box::new(EmulatedFabric::new(options).unwrap());
    let mut end = End::alone(Node { fabric, frames: Arc::new(frames) });
    let mut peer = Peer::running("target", &end.node.fabric.address());
    let accepted = |event: &Event| matches!(event, Event::Accepted { .. });
    let Event::Accepted { endpoint, .. } = end.wait("the peer", accepted) else { panic!() };
    end.endpoint = endpoint;
    let kept = kept.0.get().unwrap();

    let region = end.register(&memory_of(&test, &[7; 4096]));
    let list = [0, 1].map(|id| write(id, transfer(region, 0, id * 4096, 4096)));
    ok(end.post(&list[..1]));
    ok(end.completed(0));
    assert_eq!(bytes_of(kept, 0, 1), [7], "this is the memory of the peer");
    ok(end.post(&list[1..]));
    peer.0.kill().unwrap();
    peer.0.wait().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    end.poll();
    assert!(bytes_of(kept, 4096, 4096) == [0; 4096], "a late write landed");
    let Err(error) = end.completed(1) else { panic!("it is told that it was done") };
    assert_eq!(error.class(), ErrorClass::PeerGone);
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
    assert_eq!(reason, DisconnectReason::PeerGone);
}
