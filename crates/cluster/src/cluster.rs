//! The processes of a pool.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rackpool_model::{FabricKind, RackId};
use rackpool_output::UsageError;
use rackpool_shm::folder;

use super::child::Child;
use super::cluster_options::ClusterOptions;
use super::pool_folder::{lock, metadata_address};

/// How long a process may take to be ready.
const START: Duration = Duration::from_secs(120);

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
        options.check_numbers()?;
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
        for rack in 0..cluster.options.all_daemons() {
            let daemon = cluster.start_daemon(RackId(rack))?;
            cluster.daemons.push(daemon);
        }
        for rack in 0..cluster.options.all_daemons() {
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
            ("--rack-daemons", numbers(&options.daemons_beside(rack))),
            ("--memory", options.memory_of_daemon().to_string()),
            ("--page-size", options.page_size.to_string()),
            ("--memory-kind", options.memory_kind.to_string()),
            ("--cxl-latency-ns", options.cxl_latency_ns.to_string()),
            ("--numa-node", options.numa_node.clone()),
            ("--frames-node", options.frames_node.clone()),
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
    pub(crate) fn process(&mut self, index: usize) -> anyhow::Result<(String, &mut Child)> {
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
    pub(crate) fn start_again(&mut self, index: usize) -> anyhow::Result<()> {
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

fn numbers(daemons: &[RackId]) -> String {
    let numbers: Vec<String> = daemons.iter().map(|daemon| daemon.0.to_string()).collect();
    numbers.join(",")
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
