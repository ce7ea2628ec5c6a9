//! The memory registered with an RDMA device, by the kernel's count of locked pages, on hosts with
//! an RDMA port.
#![allow(clippy::unwrap_used, reason = "a panic is the failure of the test")]

mod common;

use std::fs;
use std::sync::Arc;

use common::{Verbs, is_there};
use rackpool_fabric::MemoryRegion;
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_model::RackId;

const FRAMES_KIB: u64 = 16 << 10;

/// Memory of this process locked by devices, in KiB.
fn locked() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn what_is_exported_is_registered_once_and_other_memory_by_itself() {
    if !is_there() {
        return;
    }
    let before = locked();
    let Node { mut fabric, frames } = Verbs.start(RackId(1), FRAMES_KIB << 10, Hardware::FAST);
    let exported = locked();
    assert!(exported - before >= FRAMES_KIB, "{before} KiB, then {exported} KiB");

    let own = fabric.register(Arc::clone(&frames));
    assert_eq!(locked(), exported, "the frames are registered twice");
    let half: Arc<dyn MemoryRegion> = Verbs.memory(FRAMES_KIB << 9);
    let other = fabric.register(half);
    assert_eq!(locked(), exported + FRAMES_KIB / 2);

    fabric.unregister(other);
    fabric.unregister(own);
    assert_eq!(locked(), exported, "peers may still access the frames");
    drop(fabric);
    assert_eq!(locked(), before);
}
