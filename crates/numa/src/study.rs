use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rackpool_fabric::emulated::NumaModel;
use rackpool_shm::host::HostFiles;

use crate::background::{Background, LOAD_BYTES};
use crate::connection::{Clients, Connection};
use crate::experiment::{Experiment, Kind, Pacing};
use crate::fabrics::Provider;
use crate::latency::Latencies;
use crate::measurement::{Measurement, measure};
use crate::memory::Memory;
use crate::pinned::pin_to_node;
use crate::ratio::{MAX_PAIRS, Ratio, Verdict};
use crate::server::Server;

/// Percent of a load thread's accesses that write.
const LOAD_WRITES: u8 = 50;

/// Where an experiment runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// On this host.
    Real {
        /// The node of the card, or of the processors that stand for it.
        card: u32,
        /// The node that is compared with it.
        other: u32,
    },
    /// On the model of the emulated fabric; memory lies anywhere.
    Model {
        /// By how much modelled times are longer.
        dilation: u32,
    },
}

impl Host {
    /// The nodes of a machine: the card's, or else the first with processors and memory, and the
    /// first other one with memory; those with processors come first.
    pub fn of(machine: &HostFiles) -> anyhow::Result<Self> {
        let nodes = machine.nodes();
        let with_memory = nodes.iter().filter(|node| node.memory_bytes > 0);
        let computes = with_memory.clone().find(|node| !node.cpus.is_empty()).map(|node| node.id);
        let card = machine.card_node(None, None).or(computes);
        let other = with_memory
            .filter(|node| Some(node.id) != card)
            .min_by_key(|node| (node.cpus.is_empty(), node.id));
        match (card, other) {
            (Some(card), Some(other)) => Ok(Self::Real { card, other: other.id }),
            _ => bail!(
                "this machine has one NUMA node with memory, there is nothing to compare: --model \
                 runs the study on a model of two nodes"
            ),
        }
    }
}

/// The node of the registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The card's.
    Local,
    /// The other one.
    Remote,
}

/// How experiments are run.
#[derive(Clone, Debug)]
pub struct Study {
    /// Where.
    pub host: Host,
    /// The fabric; the model is one of the emulated fabric only.
    pub provider: Provider,
    /// The node of the clients' thread and memory; `None` for the card's.
    pub client_node: Option<u32>,
    /// Pairs of measurements: 2 to [`MAX_PAIRS`].
    pub pairs: usize,
    /// Time of a measurement.
    pub time: Duration,
}

impl Default for Study {
    /// Five pairs of 0.1 s on the model.
    fn default() -> Self {
        Self {
            host: Host::Model { dilation: 20 },
            provider: Provider::Emulated,
            client_node: None,
            pairs: 5,
            time: Duration::from_millis(100),
        }
    }
}

/// The result of an experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub experiment: Experiment,
    /// The last measurement with the memory on the card's node.
    pub local: Measurement,
    /// The last measurement with the memory on the other node.
    pub remote: Measurement,
    /// Remote to local: of the median latency in a closed loop, of the rate in an open one.
    pub ratio: Ratio,
    /// The ratio that the latencies of loads predict, for a read in a closed loop; `None` if they
    /// can't be measured, for lack of free memory.
    pub predicted: Option<f64>,
}

impl Outcome {
    /// What the ratio says, if a difference of up to `negligible` (0.01 is 1 %) does not count.
    #[must_use]
    pub fn verdict(&self, negligible: f64) -> Verdict {
        self.ratio.verdict(negligible)
    }
}

impl Study {
    /// Runs an experiment.
    ///
    /// # Errors
    /// If the experiment cannot be run as asked, a node cannot be used, or the fabric fails.
    pub fn run(&self, experiment: &Experiment) -> anyhow::Result<Outcome> {
        experiment.check()?;
        ensure!(
            (2..=MAX_PAIRS).contains(&self.pairs),
            "{} pairs: 2 to {MAX_PAIRS} give an interval",
            self.pairs
        );
        if let Host::Model { .. } = self.host {
            ensure!(
                self.provider == Provider::Emulated && experiment.load_threads == 0,
                "the model is one of the emulated fabric, and has no load of other programs"
            );
        }
        let mut sides = Vec::new();
        for pair in 0..self.pairs {
            // Each side is as often first.
            let (local, remote) = if pair % 2 == 0 {
                let local = self.measure(experiment, Side::Local)?;
                (local, self.measure(experiment, Side::Remote)?)
            } else {
                let remote = self.measure(experiment, Side::Remote)?;
                (self.measure(experiment, Side::Local)?, remote)
            };
            sides.push((local, remote));
        }
        let value = |found: &Measurement| match experiment.pacing {
            Pacing::Closed => found.p50_ns,
            Pacing::Open(_) => found.rate,
        };
        let pairs: Vec<(f64, f64)> =
            sides.iter().map(|(local, remote)| (value(local), value(remote))).collect();
        let (local, remote) = sides.pop().context("there are pairs")?;
        Ok(Outcome {
            experiment: *experiment,
            local,
            remote,
            ratio: Ratio::of(&pairs).context("a measured time is zero")?,
            predicted: self.predicted(experiment, &local)?,
        })
    }

    fn predicted(
        &self,
        experiment: &Experiment,
        local: &Measurement,
    ) -> anyhow::Result<Option<f64>> {
        if (experiment.kind, experiment.pacing) != (Kind::Read, Pacing::Closed) {
            return Ok(None);
        }
        let latencies = match self.host {
            Host::Real { card, other } => Latencies::measure(card, other)?,
            Host::Model { .. } => Some(Latencies::of_model()),
        };
        Ok(latencies.map(|latencies| latencies.predicted(local.p50_ns)))
    }

    /// Measures in a thread of its own, which can be bound to processors.
    fn measure(&self, experiment: &Experiment, side: Side) -> anyhow::Result<Measurement> {
        std::thread::scope(|scope| scope.spawn(|| self.measure_here(experiment, side)).join())
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the measuring thread failed")))
    }

    fn measure_here(&self, experiment: &Experiment, side: Side) -> anyhow::Result<Measurement> {
        let (memory_node, client_node, model) = match self.host {
            Host::Real { card, other } => {
                let memory = if side == Side::Local { card } else { other };
                (Some(memory), Some(self.client_node.unwrap_or(card)), None)
            }
            Host::Model { dilation } => (None, None, Some(modelled(experiment, side, dilation))),
        };
        pin_to_node(client_node)?;
        let memory = Memory::new(experiment.memory_bytes(), memory_node)?;
        let folder = tempfile::tempdir()?;
        let server = Server::start(&self.provider, &memory, model, folder.path())?;
        let clients = Clients {
            provider: &self.provider,
            // Nothing is executed at a client; its times are dilated, too.
            model: model.map(|model| NumaModel { is_remote: false, writers: 0, ..model }),
            node: client_node,
            folder: folder.path(),
        };
        let mut connections = (0..experiment.queue_pairs)
            .map(|client| Connection::open(&clients, &server, experiment, client))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut background = Background::new();
        if model.is_none() {
            self.add_background(&mut background, experiment, &memory, memory_node)?;
        }
        memory.check_node()?;
        let dilation = model.map_or(1.0, |model| f64::from(model.dilation));
        let found = measure(&mut connections, self.time, dilation)?;
        memory.check_node()?;
        Ok(found)
    }

    fn add_background(
        &self,
        background: &mut Background,
        experiment: &Experiment,
        memory: &Arc<Memory>,
        node: Option<u32>,
    ) -> anyhow::Result<()> {
        let nodes = HostFiles::here().nodes();
        // Memory without processors is used from anywhere.
        let computing =
            node.filter(|id| nodes.iter().any(|found| found.id == *id && !found.cpus.is_empty()));
        for _ in 0..experiment.workers.threads {
            let (bytes, writes) = (experiment.memory_bytes(), experiment.workers.writes);
            background.add(Arc::clone(memory), bytes, computing, writes)?;
        }
        let needed = 2 * LOAD_BYTES * u64::from(experiment.load_threads);
        let free = nodes.iter().find(|found| Some(found.id) == node).map(|found| found.free_bytes);
        // Binding more than there is would end this process.
        ensure!(
            free.is_none_or(|free| free >= needed),
            "{} load threads take {} MiB each on a node that has too little free",
            experiment.load_threads,
            LOAD_BYTES >> 20
        );
        for _ in 0..experiment.load_threads {
            let private = Memory::new(LOAD_BYTES, node)?;
            background.add(private, LOAD_BYTES, computing, LOAD_WRITES)?;
        }
        Ok(())
    }
}

/// The model of the server. Workers count as writers if at least half of their accesses write.
const fn modelled(experiment: &Experiment, side: Side, dilation: u32) -> NumaModel {
    let workers = experiment.workers;
    NumaModel {
        is_remote: matches!(side, Side::Remote),
        writers: if workers.writes >= 50 { workers.threads } else { 0 },
        dilation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Workers;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, HostFiles) {
        let folder = rackpool_testing::folder_of(files);
        let machine = HostFiles::at(folder.path());
        (folder, machine)
    }

    #[test]
    fn a_machine_with_one_node_is_sent_to_the_model() {
        let meminfo = "Node 0 MemTotal: 1024 kB\n";
        let (_folder, one) = machine(&[
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node0/meminfo", meminfo),
        ]);
        let error = Host::of(&one).unwrap_err().to_string();
        assert!(error.contains("one NUMA node") && error.contains("--model"), "{error}");
    }

    #[test]
    fn the_cards_node_is_compared_with_another_that_computes() {
        let meminfo = "Node 0 MemTotal: 1024 kB\n";
        let node = |id: u32, file: &str| format!("sys/devices/system/node/node{id}/{file}");
        let (n0, n1, n2) = (node(0, "cpulist"), node(1, "cpulist"), node(2, "cpulist"));
        let (m0, m1, m2) = (node(0, "meminfo"), node(1, "meminfo"), node(2, "meminfo"));
        let mut files = vec![
            (&*n0, "\n"),
            (&*m0, meminfo),
            (&*n1, "0-3\n"),
            (&*m1, "Node 1 MemTotal: 1024 kB\n"),
            (&*n2, "4-7\n"),
            (&*m2, "Node 2 MemTotal: 1024 kB\n"),
        ];
        let (_folder, bare) = machine(&files);
        assert_eq!(Host::of(&bare).unwrap(), Host::Real { card: 1, other: 2 });
        files.push(("sys/class/infiniband/mlx5_0/device/numa_node", "2\n"));
        files.push(("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"));
        let (_folder, with_card) = machine(&files);
        assert_eq!(Host::of(&with_card).unwrap(), Host::Real { card: 2, other: 1 });
    }

    #[test]
    fn the_model_has_no_other_fabric_and_no_load() {
        let quick = Study { time: Duration::from_millis(5), pairs: 2, ..Study::default() };
        let tcp = Study { provider: Provider::Tcp, ..quick.clone() };
        assert!(tcp.run(&Experiment::default()).unwrap_err().to_string().contains("model"));
        let loaded = Experiment { load_threads: 1, ..Experiment::default() };
        assert!(quick.run(&loaded).unwrap_err().to_string().contains("load"));
        let one_pair = Study { pairs: 1, ..quick };
        assert!(one_pair.run(&Experiment::default()).unwrap_err().to_string().contains("pairs"));
    }

    #[test]
    fn workers_that_mostly_read_are_no_writers() {
        let with = |writes| Experiment {
            workers: Workers { threads: 8, writes },
            ..Experiment::default()
        };
        assert_eq!(modelled(&with(90), Side::Remote, 5).writers, 8);
        assert_eq!(modelled(&with(10), Side::Local, 5).writers, 0);
        assert!(modelled(&with(90), Side::Remote, 5).is_remote);
    }
}
