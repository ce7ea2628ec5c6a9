//! What is measured: one configuration, and the product of lists of values.

use std::fmt;
use std::str::FromStr;

use crate::{NodeChoice, StudyError};

/// The largest size of an operation in bytes.
pub const MAX_BYTES: u32 = 1 << 20;
/// The most connections.
pub const MAX_QUEUE_PAIRS: u32 = 64;
/// The most load threads, and the most workers.
pub const MAX_THREADS: u32 = 1024;
/// The most configurations of one study.
pub const MAX_CONFIGURATIONS: usize = 1000;

/// What the connections do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One-sided reads.
    Read,
    /// One-sided writes.
    Write,
    /// A key-value server like memcached: requests as messages, values by one-sided reads.
    KeyValue,
}

/// When a connection issues its next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopKind {
    /// When the one before has completed: measures latency.
    Closed,
    /// While fewer than a window of operations are outstanding: measures throughput.
    Open,
}

/// Threads beside the server that access private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The number of threads.
    pub threads: u32,
    /// Where the threads and their memory are.
    pub node: NodeChoice,
    /// The memory that all threads together access at random, in bytes.
    pub buffer_bytes: u64,
    /// Writes among the accesses, in percent.
    pub write_percent: u8,
}

/// Threads of the server that access the registered memory. They run on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// The number of threads.
    pub threads: u32,
    /// Writes among the accesses, in percent.
    pub write_percent: u8,
}

/// One configuration of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// What the connections do.
    pub workload: Workload,
    /// Bytes of an operation; of a key-value pair, which is always 67 B.
    pub bytes: u32,
    /// The number of connections, each with a queue pair of its own.
    pub queue_pairs: u32,
    /// When a connection issues its next operation.
    pub loop_kind: LoopKind,
    /// Threads beside the server.
    pub load: Load,
    /// Threads on the registered memory.
    pub workers: Workers,
}

/// Lists of values, tried in each combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Bytes of an operation.
    pub bytes: Vec<u32>,
    /// Numbers of connections.
    pub queue_pairs: Vec<u32>,
    /// Loops.
    pub loops: Vec<LoopKind>,
    /// Numbers of load threads.
    pub load_threads: Vec<u32>,
    /// Nodes of the load.
    pub load_nodes: Vec<NodeChoice>,
    /// Bytes of the load's memory.
    pub load_buffers: Vec<u64>,
    /// Writes of the load, in percent.
    pub load_write_percent: u8,
    /// Numbers of workers.
    pub workers: Vec<u32>,
    /// Writes of the workers, in percent.
    pub worker_write_percent: u8,
}

impl Grid {
    /// All combinations, each once: the load's node and memory make no difference without load
    /// threads, and bytes and loop none to the key-value workload.
    ///
    /// # Errors
    /// If a value is outside its range, or there are more than [`MAX_CONFIGURATIONS`].
    pub fn configurations(&self) -> Result<Vec<Configuration>, StudyError> {
        let mut all: Vec<Configuration> = Vec::new();
        for (workload, loop_kind, bytes) in self.accesses() {
            for (load, workers) in self.threads() {
                for queue_pairs in self.queue_pairs.iter().copied() {
                    let configuration =
                        Configuration { workload, bytes, queue_pairs, loop_kind, load, workers };
                    configuration.check()?;
                    if !all.contains(&configuration) {
                        all.push(configuration);
                    }
                    if all.len() > MAX_CONFIGURATIONS {
                        let most = MAX_CONFIGURATIONS;
                        let message = format!("more than {most} combinations of values: give less");
                        return Err(StudyError::Option(message));
                    }
                }
            }
        }
        Ok(all)
    }

    fn accesses(&self) -> Vec<(Workload, LoopKind, u32)> {
        let mut all = Vec::new();
        for workload in self.workloads.iter().copied() {
            if workload == Workload::KeyValue {
                all.push((workload, LoopKind::Closed, crate::kv::PAIR_BYTES));
                continue;
            }
            for loop_kind in self.loops.iter().copied() {
                all.extend(self.bytes.iter().map(|bytes| (workload, loop_kind, *bytes)));
            }
        }
        all
    }

    fn threads(&self) -> Vec<(Load, Workers)> {
        let mut all = Vec::new();
        for threads in self.load_threads.iter().copied() {
            for node in self.load_nodes.iter().copied() {
                for buffer_bytes in self.load_buffers.iter().copied() {
                    let mut load = Load {
                        threads,
                        node,
                        buffer_bytes,
                        write_percent: self.load_write_percent,
                    };
                    if threads == 0 {
                        load = Load { node: NodeChoice::Any, buffer_bytes: 0, ..load };
                    }
                    let workers = self.workers.iter().map(|threads| Workers {
                        threads: *threads,
                        write_percent: self.worker_write_percent,
                    });
                    all.extend(workers.map(|workers| (load, workers)));
                }
            }
        }
        all
    }
}

impl Configuration {
    /// Checks the values.
    ///
    /// # Errors
    /// If a value is outside its range.
    pub fn check(&self) -> Result<(), StudyError> {
        let threads = |count: u32| count <= MAX_THREADS;
        let rules = [
            ((1..=MAX_BYTES).contains(&self.bytes), "bytes: give 1 to 1048576"),
            ((1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs), "queue pairs: give 1 to 64"),
            (threads(self.load.threads), "load threads: give at most 1024"),
            (threads(self.workers.threads), "workers: give at most 1024"),
            (self.load.write_percent <= 100, "writes of the load: give 0 to 100 percent"),
            (self.workers.write_percent <= 100, "writes of the workers: give 0 to 100 percent"),
            (
                self.load.threads == 0 || (4096..=1 << 40).contains(&self.load.buffer_bytes),
                "memory of the load: give 4K to 1T",
            ),
            (
                self.workload != Workload::KeyValue || self.workers.threads == 0,
                "workers: the key-value workload has none",
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, advice)) => Err(StudyError::Option(advice.into())),
            None => Ok(()),
        }
    }
}

/// The text names no workload or loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write {0}")]
pub struct NameError(&'static str);

impl NameError {
    /// The error that lists the names.
    pub(crate) const fn new(names: &'static str) -> Self {
        Self(names)
    }
}

impl FromStr for Workload {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "kv" => Ok(Self::KeyValue),
            _ => Err(NameError("read, write or kv")),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::KeyValue => "kv",
        })
    }
}

impl FromStr for LoopKind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text {
            "closed" => Ok(Self::Closed),
            "open" => Ok(Self::Open),
            _ => Err(NameError("closed or open")),
        }
    }
}

impl fmt::Display for LoopKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Closed => "closed",
            Self::Open => "open",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        Grid {
            workloads: vec![Workload::Read, Workload::Write],
            bytes: vec![8, 64],
            queue_pairs: vec![1, 8],
            loops: vec![LoopKind::Closed],
            load_threads: vec![0],
            load_nodes: vec![NodeChoice::Local, NodeChoice::Remote],
            load_buffers: vec![1 << 20],
            load_write_percent: 50,
            workers: vec![0, 4],
            worker_write_percent: 90,
        }
    }

    #[test]
    fn lists_give_their_product_without_repetitions() {
        assert_eq!(grid().configurations().unwrap().len(), 2 * 2 * 2 * 2);
        let loaded = Grid { load_threads: vec![0, 3], ..grid() };
        assert_eq!(loaded.configurations().unwrap().len(), 16 * 3, "none, local, remote");
        let workloads = vec![Workload::KeyValue];
        let kv = Grid { workloads, workers: vec![0], ..grid() }.configurations().unwrap();
        assert_eq!(kv.len(), 2);
        assert!(kv.iter().all(|one| one.bytes == 67));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let refused = |grid: Grid| grid.configurations().unwrap_err().to_string();
        assert!(refused(Grid { bytes: vec![0], ..grid() }).contains("bytes"));
        assert!(refused(Grid { queue_pairs: vec![65], ..grid() }).contains("queue pairs"));
        assert!(refused(Grid { worker_write_percent: 101, ..grid() }).contains("percent"));
        let load = Grid { load_threads: vec![1], load_buffers: vec![1], ..grid() };
        assert!(refused(load).contains("memory of the load"));
        let kv = Grid { workloads: vec![Workload::KeyValue], ..grid() };
        assert!(refused(kv).contains("the key-value workload has none"));
        let many = Grid { bytes: (1..600).collect(), ..grid() };
        assert!(refused(many).contains("more than 1000"));
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for workload in [Workload::Read, Workload::Write, Workload::KeyValue] {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        for kind in [LoopKind::Closed, LoopKind::Open] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("reads".parse::<Workload>().is_err() && "".parse::<LoopKind>().is_err());
    }
}
