//! RRPC over the fabrics that need no device, plain and decorated.
#![allow(clippy::unwrap_used, reason = "a panic is a test's failure")]

mod suite;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;

use rackpool_fabric::MemoryRegion;
use rackpool_fabric::conformance::decorated::{Late, Slow};
use rackpool_fabric::conformance::memory::{FileMapper, FileMemory};
use rackpool_fabric::conformance::{Factory, Hardware, Node};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_model::{Incarnation, RackId};

/// Racks whose sockets lie in a directory of the test.
struct Emulated {
    directory: tempfile::TempDir,
}

impl Emulated {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn socket(&self, rack: RackId) -> PathBuf {
        self.directory.path().join(format!("rack{}.sock", rack.0))
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
        let (listen, mapper) = (self.socket(rack), Arc::new(FileMapper));
        let mut options = EmulatedOptions::new(rack, incarnation, listen, mapper);
        options.exports = vec![ExportedRegion { fd: frames.share().unwrap(), len: frames.len() }];
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

/// Racks on free ports of this host.
struct Tcp;

impl Factory for Tcp {
    fn start_incarnation(
        &self,
        (rack, incarnation): (RackId, Incarnation),
        frames_len: u64,
        _hardware: Hardware,
    ) -> Node {
        let frames: Arc<dyn MemoryRegion> = Arc::new(FileMemory::anonymous(frames_len));
        let mut options = TcpOptions::new(rack, incarnation);
        options.exports = vec![Arc::clone(&frames)];
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

mod emulated {
    crate::rrpc_tests!(crate::Emulated::new());
}

mod tcp {
    crate::rrpc_tests!(crate::Tcp);
}

mod emulated_with_faults {
    crate::rrpc_tests!(crate::Late(crate::Emulated::new()));
}

mod tcp_with_faults {
    crate::rrpc_tests!(crate::Late(crate::Tcp));
}

mod emulated_throttled {
    crate::rrpc_tests!(crate::Slow::new(crate::Emulated::new()));
}

mod tcp_throttled {
    crate::rrpc_tests!(crate::Slow::new(crate::Tcp));
}
