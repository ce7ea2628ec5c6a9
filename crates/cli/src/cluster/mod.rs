//! A pool on this machine: a metadata server and rack daemons as child processes.
//!
//! The children stop when their standard input ends, so none of them outlives the process that
//! started it, however that ends.

mod child;
mod supervisor;

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use rackpool_client::RackId;
use rackpool_model::FabricKind;
use rackpool_output::UsageError;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::folder::{self, FolderError};
use rackpool_shm::memory::{MemoryKind, outside};

pub use child::Child;
pub(crate) use child::find;
pub use supervisor::Supervisor;

/// How long a process may take to be ready.
const START: Duration = Duration::from_secs(120);

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
            memory: 1 << 30,
            page_size: 2 << 20,
            memory_kind: MemoryKind::default(),
            cxl_latency_ns: 0,
            numa_node: "auto".into(),
            cpus: Vec::new(),
            fabric: FabricKind::Emulated,
            latency_us: 2.0,
            bandwidth_gbps: 100.0,
            lease_ms: 2000,
            daemon_arguments: Vec::new(),
            ephemeral: true,
        })
    }

    /// Checks that every rack has a processor, or none has.
    fn check_cpus(&self) -> anyhow::Result<()> {
        let (racks, cpus) = (usize::from(self.racks), self.cpus.len());
        if cpus != 0 && cpus != racks {
            bail!(UsageError::new(format!(
                "--cpus takes one processor for each of {racks} racks, in their order, and names {cpus}"
            )));
        }
        Ok(())
    }

    /// Removes the pool's folder and the store's folder; both belong to the pool alone.
    pub(crate) fn remove_files(&self) {
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
        let racks = (0..self.racks).map(RackId);
        racks.filter_map(|rack| outside(&RackDirectory::new(&self.dir, rack))).collect()
    }

    /// The file to which the metadata server writes its address.
    #[must_use]
    pub fn address_file(&self) -> PathBuf {
        address_file(&self.dir)
    }
}

/// Returns a name that no other folder has.
pub(crate) fn unique_name() -> anyhow::Result<String> {
    static STARTED: AtomicU64 = AtomicU64::new(0);

    // A process of another container may have the same id and share the folder; two threads may
    // read the same time.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos();
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(format!("rackpool-{}-{now:x}-{number}", std::process::id()))
}

/// The file to which the metadata server of the pool in `dir` writes its address.
#[must_use]
pub fn address_file(dir: &Path) -> PathBuf {
    dir.join("metadata.addr")
}

/// Returns the racks that have a folder in `dir`.
pub fn racks_in(dir: &Path) -> anyhow::Result<Vec<RackId>> {
    let entries = std::fs::read_dir(dir).with_context(|| {
        format!("no pool in {}: start one with `rackpool up`, or name its --dir", dir.display())
    })?;
    let mut racks = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let rack = name.to_str().and_then(|name| name.strip_prefix("rack-"));
        racks.extend(rack.and_then(|number| number.parse().ok()).map(RackId));
    }
    racks.sort_unstable();
    Ok(racks)
}

/// The running processes of a pool.
#[derive(Debug)]
pub struct Cluster {
    options: ClusterOptions,
    /// Held while the pool runs: it keeps other pools out of the folder.
    _lock: File,
    metadata_address: String,
    metadata: Child,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts all processes and waits until each is ready.
    pub fn start(mut options: ClusterOptions) -> anyhow::Result<Self> {
        if options.racks == 0 || options.racks > 256 {
            let racks = options.racks;
            bail!(UsageError::new(format!("--racks {racks}: a pool has 1 to 256 racks")));
        }
        options.check_cpus()?;
        folder::require_text(&options.dir).map_err(UsageError::new)?;
        options.dir = folder::create(&options.dir)?;
        folder::require_text(&options.dir)?;
        options.logs = folder::create(&options.logs)?;
        let store = folder::create(options.store.parent().unwrap_or(Path::new(".")))?;
        options.store = store.join(options.store.file_name().unwrap_or_default());
        let lock = lock(&options.dir)?;
        let metadata = start_metadata(&options, "127.0.0.1:0")?;
        let mut cluster = Self {
            _lock: lock,
            metadata_address: metadata_address(&options.dir)?,
            options,
            metadata,
            daemons: Vec::new(),
        };
        for rack in 0..cluster.options.racks {
            let daemon = cluster.start_daemon(RackId(rack))?;
            cluster.daemons.push(daemon);
        }
        for rack in 0..cluster.options.racks {
            cluster.wait_for_daemon(RackId(rack))?;
        }
        Ok(cluster)
    }

    /// The options that the pool was started with.
    #[must_use]
    pub const fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Describes the fabric.
    #[must_use]
    pub fn fabric(&self) -> String {
        let options = &self.options;
        match options.fabric {
            FabricKind::Emulated => format!(
                "emulated fabric {} us {} Gbit/s",
                options.latency_us, options.bandwidth_gbps
            ),
            FabricKind::Tcp => "fabric over TCP on this host".into(),
            FabricKind::Verbs => "RDMA fabric on this host".into(),
        }
    }

    /// The metadata server's address.
    #[must_use]
    pub fn metadata_address(&self) -> &str {
        &self.metadata_address
    }

    /// The metadata server's process.
    pub const fn metadata(&mut self) -> &mut Child {
        &mut self.metadata
    }

    /// A rack daemon's process.
    pub fn daemon(&mut self, rack: RackId) -> anyhow::Result<&mut Child> {
        self.daemons.get_mut(usize::from(rack.0)).with_context(|| format!("there is no {rack}"))
    }

    /// Restarts the metadata server at the same address. It must be ending or have ended.
    pub fn restart_metadata(&mut self) -> anyhow::Result<()> {
        self.metadata.wait()?;
        self.metadata = start_metadata(&self.options, &self.metadata_address)?;
        Ok(())
    }

    /// Restarts a daemon and waits until it serves. It must be ending or have ended.
    pub fn restart_daemon(&mut self, rack: RackId) -> anyhow::Result<()> {
        self.daemon(rack)?.wait()?;
        let started = self.start_daemon(rack)?;
        *self.daemon(rack)? = started;
        self.wait_for_daemon(rack)
    }

    fn socket(&self, rack: RackId) -> PathBuf {
        self.options.dir.join(format!("rack-{}", rack.0)).join("daemon.sock")
    }

    fn start_daemon(&self, rack: RackId) -> anyhow::Result<Child> {
        let options = &self.options;
        let arguments = [
            ("--rack", rack.0.to_string()),
            ("--dir", options.dir.display().to_string()),
            ("--metadata", self.metadata_address.clone()),
            ("--memory", options.memory.to_string()),
            ("--page-size", options.page_size.to_string()),
            ("--memory-kind", options.memory_kind.to_string()),
            ("--cxl-latency-ns", options.cxl_latency_ns.to_string()),
            ("--numa-node", options.numa_node.clone()),
            ("--fabric", options.fabric.to_string()),
            ("--latency-us", options.latency_us.to_string()),
            ("--bandwidth-gbps", options.bandwidth_gbps.to_string()),
            ("--lease-ms", options.lease_ms.to_string()),
        ];
        let cpu = options.cpus.get(usize::from(rack.0)).map(|cpu| ("--cpu", cpu.to_string()));
        let arguments = [&arguments[..], cpu.as_slice(), &options.daemon_arguments].concat();
        let log = options.logs.join(format!("rack-{}.log", rack.0));
        Child::start("rackpool-daemon", &arguments, &log)
    }

    fn wait_for_daemon(&mut self, rack: RackId) -> anyhow::Result<()> {
        let socket = self.socket(rack);
        self.daemon(rack)?
            .wait_until(START, || std::os::unix::net::UnixStream::connect(&socket).is_ok())
    }

    /// Returns a process and its role. The metadata server is 0, the daemon of rack N is N + 1.
    fn process(&mut self, index: usize) -> anyhow::Result<(String, &mut Child)> {
        match index.checked_sub(1) {
            None => Ok(("the metadata server".into(), &mut self.metadata)),
            Some(rack) => {
                let daemon = self.daemons.get_mut(rack);
                let daemon = daemon.with_context(|| format!("there is no rack {rack}"))?;
                Ok((format!("the daemon of rack {rack}"), daemon))
            }
        }
    }

    /// Restarts a process that has ended, without waiting until it serves.
    fn start_again(&mut self, index: usize) -> anyhow::Result<()> {
        let started = match index.checked_sub(1) {
            None => spawn_metadata(&self.options, &self.metadata_address)?,
            Some(rack) => self.start_daemon(RackId(u16::try_from(rack)?))?,
        };
        *self.process(index)?.1 = started;
        Ok(())
    }

    /// All processes: the metadata server, then the daemons.
    pub fn processes(&self) -> impl Iterator<Item = &Child> {
        std::iter::once(&self.metadata).chain(&self.daemons)
    }

    /// Stops all processes, the daemons first. Removes the files of an ephemeral pool.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.stop_processes()
    }

    fn stop_processes(&mut self) -> anyhow::Result<()> {
        for daemon in &mut self.daemons {
            daemon.terminate();
        }
        let mut result = Ok(());
        for daemon in &mut self.daemons {
            result = result.and(daemon.wait_or_kill());
        }
        self.metadata.terminate();
        result = result.and(self.metadata.wait_or_kill());
        if self.options.ephemeral {
            self.options.remove_files();
        }
        result
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // After `stop` this does nothing.
        let _ = self.stop_processes();
    }
}

fn lock(dir: &Path) -> anyhow::Result<File> {
    let path = dir.join("lock");
    let file = File::options().create(true).append(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("can't write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("{} is in use by a running pool: stop it, or name another --dir", dir.display())
        }
        Err(TryLockError::Error(error)) => Err(error).context(path.display().to_string()),
    }
}

fn start_metadata(options: &ClusterOptions, listen: &str) -> anyhow::Result<Child> {
    let mut child = spawn_metadata(options, listen)?;
    let file = options.address_file();
    child.wait_until(START, || file.exists())?;
    Ok(child)
}

fn spawn_metadata(options: &ClusterOptions, listen: &str) -> anyhow::Result<Child> {
    let file = options.address_file();
    // The file may hold the address of an earlier server.
    let _ = std::fs::remove_file(&file);
    let arguments: [(&str, OsString); 4] = [
        ("--listen", listen.into()),
        ("--store", options.store.clone().into()),
        ("--lease-ms", options.lease_ms.to_string().into()),
        ("--address-file", file.into()),
    ];
    let log = options.logs.join("metadata.log");
    Child::start("rackpool-metaserver", &arguments, &log)
}

/// Reads the address of the metadata server of the pool in `dir`.
pub fn metadata_address(dir: &Path) -> anyhow::Result<String> {
    let text = match folder::require_trusted(dir) {
        Ok(dir) => std::fs::read_to_string(address_file(&dir)),
        Err(FolderError::Io { source, .. }) => Err(source),
        Err(error) => return Err(error.into()),
    };
    let text = text.with_context(|| {
        format!(
            "no pool runs in {}: start one with `rackpool up`, or name its --dir",
            dir.display()
        )
    })?;
    Ok(text.trim().to_owned())
}

/// Polls the condition every 2 ms. Returns whether it became true before `timeout`.
pub(crate) fn wait_for(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
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
