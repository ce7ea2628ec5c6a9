//! Peers in other processes that are killed or stopped, on hosts with an RDMA port.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::time::{Duration, Instant};

use common::Verbs;
use rackpool_fabric::conformance::pair::{End, bytes_of, memory_of, ok, transfer, write};
use rackpool_fabric::conformance::peer::{Peer, starter};
use rackpool_fabric::conformance::{Factory, Hardware};
use rackpool_fabric::{DisconnectReason, ErrorClass, Event};
use rackpool_model::RackId;
use rustix::process::Signal;

const LEN: u32 = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(300);

/// Not a test: a peer that writes to the frames of the rack that started it, until it is
/// disconnected.
#[test]
fn peer() {
    let Some(address) = starter() else { return };
    let mut end = End::alone(Verbs.start(RackId(2), 1 << 20, Hardware::FAST));
    end.endpoint = end.node.fabric.connect(&address).unwrap();
    end.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    let region = end.register(&memory_of(&Verbs, &vec![7; LEN as usize]));
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        // Fails when the queue is full, and at the end. Several writes are in flight, so the device
        // is busy whenever this process is killed or stopped.
        let _ = end.post(&[write(1, transfer(region, 0, 0, LEN))]);
        end.poll();
        if let Some(Event::Disconnected { reason, .. }) = end.events.last() {
            assert_eq!(*reason, DisconnectReason::Peer);
            return;
        }
        end.events.clear();
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("nobody ended this");
}

fn start() -> (End, Peer) {
    let mut end = End::alone(Verbs.start(RackId(1), 1 << 20, Hardware::FAST));
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
        assert!(start.elapsed() < TIMEOUT);
    }
    (end, peer)
}

fn ended(end: &mut End) -> DisconnectReason {
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    let Event::Disconnected { reason, .. } = end.wait("the end", is_end) else { panic!() };
    reason
}

#[test]
fn a_killed_peer_is_noticed_and_every_request_ends() {
    if !common::is_there() {
        return;
    }
    for round in 0..3 {
        let (mut end, mut peer) = start();
        let region = end.register(&memory_of(&Verbs, &[1; 8]));
        std::thread::sleep(Duration::from_millis(3 * round));
        peer.0.kill().unwrap();
        peer.0.wait().unwrap();
        let list: Vec<_> = (0..20).map(|id| write(id, transfer(region, 0, id * 8, 8))).collect();
        let posted = end.post(&list);
        assert_eq!(ended(&mut end), DisconnectReason::PeerGone);
        let expected = if posted.is_ok() { 20 } else { 0 };
        assert_eq!(end.events.len(), expected);
        for (expected, event) in (0..).zip(&end.events) {
            let Event::Completed { id, result: Err(error), .. } = event else { panic!() };
            assert_eq!((*id, error.class()), (expected, ErrorClass::PeerGone));
        }
        assert_eq!(end.node.fabric.next_completion(), None);
    }
}

#[test]
fn a_stopped_peer_is_fenced_at_once_and_cannot_write_afterwards() {
    if !common::is_there() {
        return;
    }
    for round in 0..4 {
        let (mut end, mut peer) = start();
        std::thread::sleep(Duration::from_millis(3 * round));
        // The peer's device continues with the requests in its queue.
        peer.stop();
        let endpoint = end.endpoint;
        end.fabric().disconnect(endpoint);
        assert_eq!(ended(&mut end), DisconnectReason::Local);
        let zeroes = vec![0; LEN as usize];
        ok(end.node.frames.write(0, &zeroes));
        peer.signal(Signal::CONT);
        assert!(peer.0.wait().unwrap().success(), "it did not learn that it was disconnected");
        assert!(bytes_of(&end.node.frames, 0, zeroes.len()) == zeroes, "a late write landed");
    }
}
