use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use rackpool_model::FabricKind;
use rackpool_numa::figures::Figure;
use rackpool_numa::{Experiment, Host, Kind, Pacing, Provider, Study, Workers};
use rackpool_output::UsageError;
use rackpool_shm::host::HostFiles;

/// The experiments, and how they are run. Several values of an option, like 8,64, are tried one
/// after the other, in each combination.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StudyOptions {
    /// The operations.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read,write")]
    pub(super) operation: Vec<Operation>,
    /// Their size in bytes, up to 64 KiB.
    #[arg(long, value_delimiter = ',', default_value = "64")]
    pub(super) bytes: Vec<u32>,
    /// Queue pairs, each with a part of the memory; the parts are adjacent.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(super) queue_pairs: Vec<u16>,
    /// Operations in flight on each queue pair: 1 is a closed loop and compares latencies, more is
    /// an open loop and compares rates.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(super) in_flight: Vec<u16>,
    /// Threads that access the registered memory, on its node.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(super) workers: Vec<u32>,
    /// Percent of their accesses that write.
    #[arg(long, default_value_t = 90)]
    pub(super) worker_writes: u8,
    /// Threads that access 64 MiB each of other memory of that node.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(super) load_threads: Vec<u32>,
    /// Run the experiments of a published figure instead.
    #[arg(long, value_enum, conflicts_with_all = [
        "operation", "bytes", "queue_pairs", "in_flight", "workers", "load_threads",
    ])]
    pub(super) figure: Option<Published>,
    /// Run on a model of two NUMA nodes and their caches, on any machine.
    #[arg(long, conflicts_with_all = ["fabric", "node", "other_node", "client_node"])]
    pub(super) model: bool,
    /// By how much modelled times are longer, so that this machine keeps up.
    #[arg(long, default_value_t = 20, requires = "model")]
    pub(super) dilation: u32,
    /// The fabric between clients and server.
    #[arg(long, value_name = "FABRIC", default_value = "emulated")]
    pub(super) fabric: FabricKind,
    /// An address of the RDMA card's interface, for --fabric verbs.
    #[arg(long, value_name = "ADDRESS", required_if_eq("fabric", "verbs"))]
    pub(super) fabric_listen: Option<IpAddr>,
    /// The RDMA device [default: the one of the address].
    #[arg(long, value_name = "DEVICE")]
    pub(super) rdma_device: Option<String>,
    /// The card's NUMA node [default: what the kernel says].
    #[arg(long, value_name = "NODE", requires = "other_node")]
    pub(super) node: Option<u32>,
    /// The node to compare with [default: the first other one that computes].
    #[arg(long, value_name = "NODE", requires = "node")]
    pub(super) other_node: Option<u32>,
    /// The node of the clients' thread and memory [default: the card's].
    #[arg(long, value_name = "NODE")]
    pub(super) client_node: Option<u32>,
    /// Pairs of measurements, from 2 to 31.
    #[arg(long, default_value_t = 5)]
    pub(super) pairs: usize,
    /// Time of one measurement, in seconds.
    #[arg(long, default_value_t = 0.1)]
    pub(super) seconds: f64,
    /// Differences up to this many percent count as no effect.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub(super) negligible: f64,
    /// Print comma-separated values.
    #[arg(long)]
    pub(super) csv: bool,
    /// Write a page with the plots of the figure, their values as CSV and SVG, into this folder.
    #[arg(long, value_name = "DIR", requires = "figure")]
    pub(super) report: Option<PathBuf>,
}

/// A published figure (Nelson and Palmieri, SRDS 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Published {
    /// Latency by queue pairs.
    #[value(name = "3")]
    Latency,
    /// Rate by size.
    #[value(name = "4")]
    Size,
    /// Rate by threads that write the registered memory.
    #[value(name = "5")]
    Workers,
}

impl Published {
    pub(super) const fn figure(self) -> Figure {
        match self {
            Self::Latency => Figure::Latency,
            Self::Size => Figure::Size,
            Self::Workers => Figure::Workers,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Operation {
    /// One-sided reads.
    Read,
    /// One-sided writes.
    Write,
}

impl StudyOptions {
    /// The experiments, in the order of the table.
    pub(super) fn experiments(&self) -> Vec<Experiment> {
        if let Some(figure) = self.figure {
            return figure.figure().experiments();
        }
        let mut all = Vec::new();
        for operation in &self.operation {
            let kind = match operation {
                Operation::Read => Kind::Read,
                Operation::Write => Kind::Write,
            };
            for &bytes in &self.bytes {
                for &queue_pairs in &self.queue_pairs {
                    for &in_flight in &self.in_flight {
                        let pacing = match in_flight {
                            1 => Pacing::Closed,
                            more => Pacing::Open(more),
                        };
                        let base = Experiment {
                            kind,
                            bytes,
                            queue_pairs,
                            pacing,
                            ..Experiment::default()
                        };
                        all.extend(self.with_threads(&base));
                    }
                }
            }
        }
        all
    }

    fn with_threads(&self, base: &Experiment) -> Vec<Experiment> {
        let with = |threads: &u32| {
            let workers = Workers { threads: *threads, writes: self.worker_writes };
            self.load_threads.iter().map(move |&load_threads| Experiment {
                workers,
                load_threads,
                ..*base
            })
        };
        self.workers.iter().flat_map(with).collect()
    }

    /// How they are run.
    pub(super) fn study(&self, machine: &HostFiles) -> anyhow::Result<Study> {
        let time = Duration::try_from_secs_f64(self.seconds)
            .ok()
            .filter(|time| !time.is_zero())
            .ok_or_else(|| UsageError::new(format!("--seconds {}: give a time", self.seconds)))?;
        let host = match (self.model, self.node, self.other_node) {
            (true, ..) => Host::Model { dilation: self.dilation },
            (false, Some(card), Some(other)) => Host::Real { card, other },
            _ => Host::of(machine)?,
        };
        let provider = match (self.fabric, self.fabric_listen) {
            (FabricKind::Verbs, Some(address)) => {
                Provider::Verbs { device: self.rdma_device.clone(), address }
            }
            (FabricKind::Tcp, _) => Provider::Tcp,
            _ => Provider::Emulated,
        };
        let (pairs, client_node) = (self.pairs, self.client_node);
        Ok(Study { host, provider, client_node, pairs, time })
    }
}
