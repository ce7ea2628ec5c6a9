//! Fabrics for tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses its part; a panic is its failure"
)]

pub(crate) mod packets;
pub(crate) mod rack;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rackpool_fabric::MemoryRegion;
use rackpool_fabric::conformance::memory::{FileMapper, FileMemory};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_model::{FabricKey, Incarnation, RackId};

/// Racks whose sockets lie in a directory of the test.
pub(crate) struct Emulated {
    pub(crate) directory: tempfile::TempDir,
}

impl Emulated {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// For a process that will be killed: puts its files into the directory of the rack at
    /// `address`, which removes them.
    pub(crate) fn at(address: &str) -> Self {
        let socket = Path::new(address.strip_prefix("emulated:").unwrap());
        Self { directory: tempfile::tempdir_in(socket.parent().unwrap()).unwrap() }
    }

    pub(crate) fn socket(&self, rack: RackId) -> PathBuf {
        self.directory.path().join(format!("rack{}.sock", rack.0))
    }

    /// Options for a rack that exports this memory.
    pub(crate) fn options(&self, rack: RackId, frames: &FileMemory) -> EmulatedOptions {
        let (listen, mapper) = (self.socket(rack), Arc::new(FileMapper));
        let mut options = EmulatedOptions::new(rack, Incarnation(1), listen, mapper);
        options.exports = vec![ExportedRegion { fd: frames.share().unwrap(), len: frames.len() }];
        options
    }
}

impl Factory for Emulated {
    fn start_incarnation(
        &self,
        (rack, incarnation): (RackId, Incarnation),
        frames_len: u64,
        hardware: Hardware,
    ) -> Node {
        let frames = FileMemory::anonymous(frames_len);
        let mut options = self.options(rack, &frames);
        options.incarnation = incarnation;
        if incarnation != Incarnation(1) {
            // The first incarnation may still listen.
            let name = format!("rack{}.{}.sock", rack.0, incarnation.0);
            options.listen = self.directory.path().join(name);
        }
        options.latency = hardware.latency;
        options.bandwidth_gbps = hardware.bandwidth_gbps;
        Node { fabric: Box::new(EmulatedFabric::new(options).unwrap()), frames: Arc::new(frames) }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        Arc::new(FileMemory::anonymous(len))
    }

    fn nowhere(&self) -> String {
        format!("emulated:{}", self.directory.path().join("nobody.sock").display())
    }

    fn models_time(&self) -> bool {
        true
    }
}

/// Racks on free ports of this host, with or without a key.
#[derive(Clone, Default)]
pub(crate) struct Tcp {
    pub(crate) key: Option<FabricKey>,
}

impl Tcp {
    /// Options for a rack that exports this memory.
    pub(crate) fn options(&self, rack: RackId, frames: Arc<dyn MemoryRegion>) -> TcpOptions {
        let mut options = TcpOptions::new(rack, Incarnation(1));
        options.key = self.key.clone().into();
        options.exports = vec![frames];
        options
    }
}

impl Factory for Tcp {
    fn start_incarnation(
        &self,
        (rack, incarnation): (RackId, Incarnation),
        frames_len: u64,
        _hardware: Hardware,
    ) -> Node {
        let frames: Arc<dyn MemoryRegion> = Arc::new(FileMemory::anonymous(frames_len));
        let mut options = self.options(rack, Arc::clone(&frames));
        options.incarnation = incarnation;
        Node { fabric: Box::new(TcpFabric::new(options).unwrap()), frames }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        Arc::new(FileMemory::anonymous(len))
    }

    fn nowhere(&self) -> String {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("tcp:{}", free.local_addr().unwrap())
    }

    fn models_time(&self) -> bool {
        false
    }
}
