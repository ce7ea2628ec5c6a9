use std::path::PathBuf;

use clap::ValueEnum;
use rackpool_model::{ByteSize, FabricKind};
use rackpool_numa::{
    ClientPlacement, Figure, Grid, Length, LoopKind, Model, NodeChoice, NodeSelection, NumberList,
    StudyOptions, Topology, Workload,
};
use rackpool_output::UsageError;

/// What is measured, and how. Several values of an option, like 1,2,4 or 8..4096 (each doubling),
/// are measured in each combination.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StudyArguments {
    /// Use the parameters of a published figure: 3a, 3b, 4, 5 or 6. Other options change them.
    #[arg(long)]
    pub(super) figure: Option<Figure>,
    /// What the connections do [default: one-sided, or the figure's].
    #[arg(long, value_enum)]
    workload: Option<WorkloadKind>,
    /// One-sided operations [default: read,write].
    #[arg(long, value_enum, value_delimiter = ',')]
    operation: Option<Vec<OperationKind>>,
    /// Bytes of an operation [default: 64].
    #[arg(long, value_name = "LIST")]
    bytes: Option<NumberList>,
    /// Connections, each with a queue pair of its own [default: 8].
    #[arg(long, value_name = "LIST")]
    queue_pairs: Option<NumberList>,
    /// When a connection issues its next operation: closed (after the one before: latency) or open
    /// (while the window has room: throughput) [default: closed].
    #[arg(long = "loop", value_name = "LOOP", value_delimiter = ',')]
    loops: Option<Vec<LoopKind>>,
    /// Threads beside the server that access private memory [default: 0].
    #[arg(long, value_name = "LIST")]
    load_threads: Option<NumberList>,
    /// Node of the load: local (the card's), remote or any [default: any].
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    load_node: Option<Vec<NodeChoice>>,
    /// Memory of the load [default: 1G].
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    load_buffer: Option<Vec<ByteSize>>,
    /// Writes of the load, in percent [default: 50].
    #[arg(long, value_name = "PERCENT")]
    load_writes: Option<u8>,
    /// Threads that access the registered memory, on its node [default: 0].
    #[arg(long, value_name = "LIST")]
    workers: Option<NumberList>,
    /// Writes of the workers, in percent [default: 90].
    #[arg(long, value_name = "PERCENT")]
    worker_writes: Option<u8>,
    /// Node of the client's threads: local, remote or any [default: local].
    #[arg(long, value_name = "NODE")]
    thread_node: Option<NodeChoice>,
    /// Node of the client's memory: local, remote or any [default: local].
    #[arg(long, value_name = "NODE")]
    client_memory_node: Option<NodeChoice>,
    /// Threads of the client, which poll their connections in turn.
    #[arg(long, value_name = "THREADS", default_value_t = 1)]
    client_threads: u32,
    /// Outstanding operations of a connection in an open loop.
    #[arg(long, value_name = "OPERATIONS", default_value_t = 16)]
    window: u32,
    /// Length of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// Length of each measurement in operations of each connection, instead of --seconds.
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    operations: Option<u64>,
    /// Measurements of each placement, in turn.
    #[arg(long, default_value_t = 5)]
    pub(super) pairs: u32,
    /// Difference that counts as none, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    negligible: f64,
    /// Fabric: emulated, tcp or verbs.
    #[arg(long, default_value = "emulated")]
    pub(super) fabric: FabricKind,
    /// RDMA device, whose NUMA node is the local one [default: the first active one].
    #[arg(long, value_name = "DEVICE")]
    rdma_device: Option<String>,
    /// The local node [default: that of the RDMA device, else the first with processors].
    #[arg(long, value_name = "NODE")]
    card_node: Option<u32>,
    /// The node that is compared with it [default: the nearest with memory].
    #[arg(long, value_name = "NODE")]
    other_node: Option<u32>,
    /// Model the effects of NUMA and of the cache instead of placing memory: runs on any machine.
    #[arg(long, conflicts_with_all = [
        "thread_node", "client_memory_node", "card_node", "other_node", "rdma_device",
    ])]
    pub(super) model: bool,
    /// Factor by which modelled times take longer, so that this machine keeps up. Results are
    /// shown without it.
    #[arg(long, value_name = "FACTOR", default_value_t = 20, requires = "model")]
    dilation: u32,
    /// Write the results to this file as comma-separated values.
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Write plots (SVG), their values (CSV, JSON) and a page to this folder.
    #[arg(long, value_name = "FOLDER")]
    pub(super) svg: Option<PathBuf>,
}

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WorkloadKind {
    /// One-sided operations.
    OneSided,
    /// A key-value server like memcached: requests as messages, values by one-sided reads.
    Kv,
}

/// A one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OperationKind {
    Read,
    Write,
}

impl StudyArguments {
    /// Lists of the values to combine. `load_threads` is the number of threads of a figure's load.
    pub(super) fn grid(&self, load_threads: u32) -> Grid {
        let figure = self.figure.unwrap_or(Figure::LatencyByQueuePairs);
        let mut grid = figure.grid(load_threads);
        if self.figure.is_none() {
            grid.queue_pairs = vec![8];
        }
        let numbers = |list: &Option<NumberList>, into: &mut Vec<u32>| {
            if let Some(NumberList(numbers)) = list {
                into.clone_from(numbers);
            }
        };
        numbers(&self.bytes, &mut grid.bytes);
        numbers(&self.queue_pairs, &mut grid.queue_pairs);
        numbers(&self.load_threads, &mut grid.load_threads);
        numbers(&self.workers, &mut grid.workers);
        if let (Some(operations), false) = (&self.operation, grid.workloads == [Workload::KeyValue])
        {
            grid.workloads = operations.iter().map(|operation| operation.workload()).collect();
        }
        match self.workload {
            Some(WorkloadKind::Kv) => grid.workloads = vec![Workload::KeyValue],
            Some(WorkloadKind::OneSided) if grid.workloads == [Workload::KeyValue] => {
                grid.workloads = vec![Workload::Read, Workload::Write];
            }
            _ => {}
        }
        grid.loops = self.loops.clone().unwrap_or(grid.loops);
        grid.load_nodes = self.load_node.clone().unwrap_or(grid.load_nodes);
        if let Some(buffers) = &self.load_buffer {
            grid.load_buffers = buffers.iter().map(|ByteSize(bytes)| *bytes).collect();
        }
        grid.load_write_percent = self.load_writes.unwrap_or(grid.load_write_percent);
        grid.worker_write_percent = self.worker_writes.unwrap_or(grid.worker_write_percent);
        grid
    }

    /// Refuses options that the key-value workload does not have.
    pub(super) fn check(&self, grid: &Grid) -> Result<(), UsageError> {
        let given = [
            ("--bytes", self.bytes.is_some()),
            ("--loop", self.loops.is_some()),
            ("--operation", self.operation.is_some()),
            ("--thread-node", self.thread_node.is_some()),
            ("--client-memory-node", self.client_memory_node.is_some()),
        ];
        let is_kv = grid.workloads.contains(&Workload::KeyValue);
        match given.into_iter().find(|(_, is_given)| is_kv && *is_given) {
            Some((option, _)) => Err(UsageError::new(format!(
                "{option}: the key-value workload has pairs of 67 B, a closed loop, and placements \
                 of its own: leave the option out"
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn nodes(&self) -> NodeSelection {
        NodeSelection {
            device: self.rdma_device.clone(),
            card_node: self.card_node,
            other_node: self.other_node,
        }
    }

    /// What all configurations share; without a topology for a model.
    pub(super) fn study(&self, topology: Option<Topology>) -> StudyOptions {
        StudyOptions {
            fabric: self.fabric,
            rdma_device: self.rdma_device.clone(),
            topology,
            model: self.model.then_some(Model { dilation: self.dilation }),
            length: self.operations.map_or(Length::Seconds(self.seconds), Length::Operations),
            pairs: self.pairs,
            negligible: self.negligible / 100.0,
            client_threads: self.client_threads,
            window: self.window,
            client: ClientPlacement {
                threads: self.thread_node.unwrap_or(NodeChoice::Local),
                memory: self.client_memory_node.unwrap_or(NodeChoice::Local),
            },
        }
    }

    /// Where the values come from: every output says it.
    pub(super) const fn source(&self) -> &'static str {
        if self.model { "model" } else { "measured" }
    }
}

impl OperationKind {
    const fn workload(self) -> Workload {
        match self {
            Self::Read => Workload::Read,
            Self::Write => Workload::Write,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: StudyArguments,
    }

    pub(in super::super) fn parsed(line: &str) -> StudyArguments {
        let words = std::iter::once("study").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().arguments
    }

    #[test]
    fn options_change_the_parameters_of_a_figure() {
        let grid = parsed("--figure 5 --operation write --workers 0,8").grid(1);
        assert_eq!(grid.workloads, [Workload::Write]);
        assert_eq!((grid.workers, grid.bytes), (vec![0, 8], vec![8]));
        let grid = parsed("--bytes 8..32 --loop closed,open --load-buffer 1M").grid(1);
        assert_eq!((grid.bytes, grid.queue_pairs), (vec![8, 16, 32], vec![8]));
        assert_eq!((grid.loops.len(), grid.load_buffers), (2, vec![1 << 20]));
        assert_eq!(parsed("--workload kv").grid(1).workloads, [Workload::KeyValue]);
        assert_eq!(parsed("--figure 6 --workload one-sided").grid(1).workloads.len(), 2);
    }

    #[test]
    fn options_that_the_key_value_workload_lacks_are_refused() {
        let check = |line: &str| {
            let arguments = parsed(line);
            arguments.check(&arguments.grid(1)).map_err(|error| error.to_string())
        };
        for line in ["--figure 6 --bytes 8", "--workload kv --thread-node remote"] {
            assert!(check(line).unwrap_err().contains("leave the option out"), "{line}");
        }
        assert_eq!(check("--figure 6 --queue-pairs 1..8"), Ok(()));
        assert_eq!(check("--bytes 8 --loop open --operation read"), Ok(()));
    }

    #[test]
    fn only_a_model_has_a_dilation() {
        assert!(Line::try_parse_from(["study", "--dilation", "2"]).is_err());
        let model = parsed("--model --dilation 2");
        assert_eq!(model.study(None).model, Some(Model { dilation: 2 }));
        assert_eq!((model.source(), parsed("").source()), ("model", "measured"));
        assert_eq!(parsed("").study(None).model, None);
        let placed = ["study", "--model", "--client-memory-node", "remote"];
        assert!(Line::try_parse_from(placed).is_err(), "a model places nothing");
    }
}
