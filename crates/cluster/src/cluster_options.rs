//! The options of a pool on this machine.

use std::path::{Path, PathBuf};

use anyhow::bail;
use rackpool_model::{ByteSize, FabricKind, MAX_RACKS, RackId};
use rackpool_output::UsageError;
use rackpool_shm::directory::{MAX_DAEMONS, RackDirectory};
use rackpool_shm::memory::{MemoryKind, outside};

use super::pool_folder::{address_file, unique_name};

/// The options of a pool on this machine.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Folder of the pool's memory, on a file system that is memory.
    pub dir: PathBuf,
    /// File of the metadata server's store.
    pub store: PathBuf,
    /// Folder of the processes' logs.
    pub logs: PathBuf,
    /// Number of racks.
    pub racks: u16,
    /// Number of daemons of each rack. Those of rack R have the numbers from R times this on.
    pub daemons: u16,
    /// Memory of each rack in bytes.
    pub memory: u64,
    /// Page size in bytes.
    pub page_size: u64,
    /// Kind of memory, as `rackpool-daemon --memory-kind` takes it.
    pub memory_kind: MemoryKind,
    /// Extra latency of each local access in nanoseconds, to emulate CXL memory.
    pub cxl_latency_ns: u32,
    /// NUMA node of the daemons' threads and of the clients' files: a number, `auto` or `none`.
    pub numa_node: String,
    /// NUMA node of the frames: a number, `auto` or `none`.
    pub frames_node: String,
    /// The processor of each daemon's data plane; empty to leave them to the kernel.
    pub cpus: Vec<u32>,
    /// The fabric between the racks.
    pub fabric: FabricKind,
    /// Latency of the emulated fabric in microseconds.
    pub latency_us: f64,
    /// Bandwidth of the emulated fabric in Gbit/s.
    pub bandwidth_gbps: f64,
    /// A rack's lease at the metadata server, in milliseconds.
    pub lease_ms: u64,
    /// Further arguments of the daemons: names and values, as `rackpool-daemon` accepts them.
    pub daemon_arguments: Vec<(&'static str, String)>,
    /// Whether memory and store are removed when the pool stops.
    pub ephemeral: bool,
}

impl ClusterOptions {
    /// Returns the options of two racks of 1 GiB, in a folder of their own that is removed when the
    /// pool stops.
    pub fn ephemeral() -> anyhow::Result<Self> {
        let memory = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let name = unique_name()?;
        Ok(Self {
            dir: Path::new(memory).join(&name),
            logs: Path::new(memory).join(&name),
            store: std::env::temp_dir().join(name).join("metadata.redb"),
            racks: 2,
            daemons: 1,
            memory: 1 << 30,
            page_size: 2 << 20,
            memory_kind: MemoryKind::default(),
            cxl_latency_ns: 0,
            numa_node: "auto".into(),
            frames_node: "auto".into(),
            cpus: Vec::new(),
            fabric: FabricKind::Emulated,
            latency_us: 2.0,
            bandwidth_gbps: 100.0,
            lease_ms: 2000,
            daemon_arguments: Vec::new(),
            ephemeral: true,
        })
    }

    /// The number of daemons in all racks.
    #[must_use]
    pub const fn all_daemons(&self) -> u16 {
        self.racks.saturating_mul(self.daemons)
    }

    /// The numbers of the daemons in the rack of `daemon`.
    #[must_use]
    pub fn daemons_beside(&self, daemon: RackId) -> Vec<RackId> {
        let of_rack = self.daemons.max(1);
        let first = daemon.0 - daemon.0 % of_rack;
        (first..first + of_rack).map(RackId).collect()
    }

    /// The memory of each daemon: an equal number of pages.
    #[must_use]
    pub fn memory_of_daemon(&self) -> u64 {
        let memory = self.memory / u64::from(self.daemons.max(1));
        if self.daemons > 1 { memory - memory % self.page_size.max(1) } else { memory }
    }

    /// Checks the numbers of racks and daemons.
    pub(crate) fn check_numbers(&self) -> anyhow::Result<()> {
        let Self { racks, daemons, .. } = *self;
        if !(1..=MAX_RACKS).contains(&racks) {
            bail!(UsageError::new(format!(
                "--racks {racks} is out of range: give a number from 1 to {MAX_RACKS}"
            )));
        }
        if !(1..=MAX_DAEMONS).contains(&usize::from(daemons)) {
            bail!(UsageError::new(format!(
                "--daemons {daemons} is out of range: give a number from 1 to {MAX_DAEMONS}"
            )));
        }
        if self.memory > 0 && self.memory_of_daemon() == 0 {
            bail!(UsageError::new(format!(
                "--memory {} with --daemons {daemons}: each daemon needs at least a page of {}",
                ByteSize(self.memory),
                ByteSize(self.page_size)
            )));
        }
        if self.all_daemons() > MAX_RACKS {
            bail!(UsageError::new(format!(
                "--racks {racks} with --daemons {daemons}: a pool has at most {MAX_RACKS} daemons"
            )));
        }
        Ok(())
    }

    /// Checks that every daemon has a processor, or none has.
    pub(crate) fn check_cpus(&self) -> anyhow::Result<()> {
        let (daemons, cpus) = (usize::from(self.all_daemons()), self.cpus.len());
        if cpus != 0 && cpus != daemons {
            let of = if self.daemons > 1 { "daemon" } else { "rack" };
            bail!(UsageError::new(format!(
                "--cpus must name one processor for each {of}, in order: it names {cpus} for {daemons} {of}s"
            )));
        }
        Ok(())
    }

    /// Removes the pool's folder and the store's folder; both belong to the pool alone.
    pub fn remove_files(&self) {
        for file in self.files_outside() {
            let _ = std::fs::remove_file(file);
        }
        // It may be gone already.
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(folder) = self.store.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }

    /// Returns the files of the racks' memory outside the pool's folder: those on a hugetlbfs.
    #[must_use]
    pub fn files_outside(&self) -> Vec<PathBuf> {
        let racks = (0..self.all_daemons()).map(RackId);
        racks.filter_map(|rack| outside(&RackDirectory::new(&self.dir, rack))).collect()
    }

    /// The file to which the metadata server writes its address.
    #[must_use]
    pub fn address_file(&self) -> PathBuf {
        address_file(&self.dir)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_ephemeral_pools_share_a_folder() {
        const POOLS: usize = 5000;

        let mut folders = HashSet::new();
        std::thread::scope(|scope| {
            let start = || (0..POOLS).map(|_| ClusterOptions::ephemeral().unwrap().dir).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            for thread in threads {
                let own: Vec<PathBuf> = thread.join().unwrap();
                folders.extend(own);
            }
        });
        assert_eq!(folders.len(), 4 * POOLS);
    }
}
