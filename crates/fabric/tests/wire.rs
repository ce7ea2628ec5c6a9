//! When the emulated fabric moves bytes, and when it reports them.

#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Emulated;
use rackpool_fabric::conformance::Node;
use rackpool_fabric::conformance::memory::FileMemory;
use rackpool_fabric::conformance::pair::{End, bytes_of, memory_of, read, transfer, write};
use rackpool_fabric::emulated::EmulatedFabric;
use rackpool_fabric::{ErrorClass, Event, MemoryRegion, RegionId};
use rackpool_model::RackId;

/// Half of the latency is the longest pause of this process that does not fail the test.
const LATENCY: Duration = Duration::from_secs(4);

fn rack(test: &Emulated, id: u16) -> End {
    let frames = FileMemory::anonymous(4096);
    let mut options = test.options(RackId(id), &frames);
    options.latency = LATENCY;
    let fabric = Box::new(EmulatedFabric::new(options).unwrap());
    End::alone(Node { fabric, frames: Arc::new(frames) })
}

/// Two racks with a write of sevens from the first to the second and a read from the second to the
/// first in flight; also the first rack's memory and the start time.
fn on_the_way(test: &Emulated) -> (End, End, Arc<dyn MemoryRegion>, Instant) {
    let (mut a, mut b) = (rack(test, 1), rack(test, 2));
    a.endpoint = a.node.fabric.connect(&b.node.fabric.address()).unwrap();
    a.wait("the connection", |event| matches!(event, Event::Connected { .. }));
    b.wait("the peer", |event| matches!(event, Event::Accepted { .. }));
    let memory = memory_of(test, &[7; 4096]);
    let region: RegionId = a.register(&memory);
    let start = Instant::now();
    a.post(&[write(1, transfer(region, 0, 0, 64)), read(2, transfer(region, 1024, 1024, 64))])
        .unwrap();
    (a, b, memory, start)
}

/// Polls until the bytes of both operations have been moved.
fn wait_for_bytes(a: &mut End, b: &End, memory: &Arc<dyn MemoryRegion>, start: Instant) {
    let moved = |b: &End| {
        bytes_of(&b.node.frames, 0, 64) == [7; 64] && bytes_of(memory, 1024, 64) == [0; 64]
    };
    while !moved(b) {
        a.poll();
        assert!(start.elapsed() < 10 * LATENCY, "nothing moves");
    }
    assert!(start.elapsed() >= LATENCY / 2, "sooner than the wire allows");
}

#[test]
fn bytes_are_moved_before_it_is_told() {
    let test = Emulated::new();
    let (mut a, b, memory, start) = on_the_way(&test);
    wait_for_bytes(&mut a, &b, &memory, start);
    assert_eq!(a.events, [], "told with the bytes, and not a latency after it was posted");
    assert!(a.node.fabric.next_completion().is_some(), "it would be slept through");
    a.completed(1).unwrap();
    a.completed(2).unwrap();
    assert!(start.elapsed() >= LATENCY);
    assert_eq!(a.node.fabric.next_completion(), None);
}

#[test]
fn what_was_moved_and_not_told_ends_with_its_endpoint() {
    let test = Emulated::new();
    let (mut a, b, memory, start) = on_the_way(&test);
    wait_for_bytes(&mut a, &b, &memory, start);
    a.node.fabric.disconnect(a.endpoint);
    for id in [1, 2] {
        let error = a.completed(id).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Fenced, "{error}");
    }
    let is_end = |event: &Event| matches!(event, Event::Disconnected { .. });
    a.wait("the end", is_end);
    assert_eq!(a.node.fabric.next_completion(), None);
}
