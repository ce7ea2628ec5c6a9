//! Verbs fabrics for tests, on hosts with an RDMA port.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses its part; a panic is its failure"
)]

use std::net::{IpAddr, SocketAddr};
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::{MemoryRegion, OutOfRange, ReceiveRoom};
use rackpool_fabric_verbs::{DeviceLimits, VerbsFabric, VerbsOptions};
use rackpool_model::{FabricKey, Incarnation, RackId};
use rackpool_shm::Mapping;
use rackpool_shm::memory::scratch;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};
use rackpool_testing::skipped;

/// The IP address of an RDMA port. `cargo x lab` sets it; without it, tests that need a port are
/// skipped.
const ADDRESS: &str = "RACKPOOL_RDMA_ADDRESS";

/// Returns true if the host has an RDMA port for tests.
pub(crate) fn is_there() -> bool {
    let there = std::env::var_os(ADDRESS).is_some();
    if !there {
        skipped(&format!("{ADDRESS} does not name the address of an RDMA port"));
    }
    there
}

/// Racks that share the port.
pub(crate) struct Verbs;

impl Verbs {
    pub(crate) fn address() -> IpAddr {
        std::env::var(ADDRESS).unwrap().parse().unwrap()
    }

    /// Options for a rack that exports this memory.
    pub(crate) fn options(rack: RackId, frames: &Arc<dyn MemoryRegion>) -> VerbsOptions {
        // Racks with even ids have the largest receive capacity, the others the smallest.
        let receive_bytes = if rack.0.is_multiple_of(2) { u64::MAX } else { 1 };
        VerbsOptions {
            rack,
            incarnation: Incarnation(1),
            listen: SocketAddr::new(Self::address(), 0),
            exports: vec![Arc::clone(frames)],
            device: None,
            port: None,
            gid_index: None,
            key: Some(FabricKey::new([7; 32])).into(),
            receive_room: ReceiveRoom::new(receive_bytes),
            limits: DeviceLimits::ANY,
        }
    }
}

impl Factory for Verbs {
    fn start_incarnation(
        &self,
        (rack, incarnation): (RackId, Incarnation),
        frames_len: u64,
        _hardware: Hardware,
    ) -> Node {
        let frames = self.memory(frames_len);
        let options = VerbsOptions { incarnation, ..Self::options(rack, &frames) };
        let fabric = VerbsFabric::new(options).unwrap();
        Node { fabric: Box::new(fabric), frames }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        Arc::new(Memory::new(len))
    }

    fn nowhere(&self) -> String {
        format!("verbs:{}", SocketAddr::new(Self::address(), 9))
    }

    fn models_time(&self) -> bool {
        false
    }
}

/// Mapped memory of this process.
struct Memory(Mapping);

impl Memory {
    fn new(len: u64) -> Self {
        Self(scratch(len, None, None).unwrap())
    }

    fn outside(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: self.0.len() }
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.0.view(offset).map_err(|_| self.outside(offset, 8))
    }
}

impl MemoryRegion for Memory {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn base(&self) -> Option<NonNull<u8>> {
        Some(self.0.base())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let len = into.len() as u64;
        self.0.read(offset, into).map_err(|_| self.outside(offset, len))
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(offset, from).map_err(|_| self.outside(offset, from.len() as u64))
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let cell = self.word(offset)?;
        let found = cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}
