//! The parameters of the published figures.

use std::fmt;
use std::str::FromStr;

use crate::configuration::NameError;
use crate::{Grid, LoopKind, NodeChoice, Workload};

/// A figure of Nelson and Palmieri.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// 3(a): latency by queue pairs.
    LatencyByQueuePairs,
    /// 3(b): the ratio of the latencies, with at most 16 queue pairs.
    LatencyRatio,
    /// 4: throughput by size.
    ThroughputByBytes,
    /// 5: throughput by workers on the registered memory.
    ThroughputByWorkers,
    /// 6: throughput of the key-value server by connections, unloaded and loaded.
    KeyValue,
}

impl Figure {
    /// All figures, in their order.
    pub const ALL: [Self; 5] = [
        Self::LatencyByQueuePairs,
        Self::LatencyRatio,
        Self::ThroughputByBytes,
        Self::ThroughputByWorkers,
        Self::KeyValue,
    ];

    /// The figure's parameters. `load_threads` is the number of threads of a loaded server: the
    /// published one had all processors that the server left.
    #[must_use]
    pub fn grid(self, load_threads: u32) -> Grid {
        let base = Grid {
            workloads: vec![Workload::Read, Workload::Write],
            bytes: vec![64],
            queue_pairs: vec![8],
            loops: vec![LoopKind::Closed],
            load_threads: vec![0],
            load_nodes: vec![NodeChoice::Any],
            load_buffers: vec![1 << 30],
            load_write_percent: 50,
            workers: vec![0],
            worker_write_percent: 90,
        };
        match self {
            Self::LatencyByQueuePairs => Grid { queue_pairs: vec![1, 2, 4, 8, 16, 24, 32], ..base },
            Self::LatencyRatio => Grid { queue_pairs: vec![1, 2, 4, 8, 16], ..base },
            Self::ThroughputByBytes => Grid {
                bytes: (3..=12).map(|power| 1 << power).collect(),
                loops: vec![LoopKind::Open],
                ..base
            },
            Self::ThroughputByWorkers => Grid {
                bytes: vec![8],
                loops: vec![LoopKind::Open],
                workers: crate::published::FIGURE_5_WORKERS.to_vec(),
                ..base
            },
            Self::KeyValue => Grid {
                workloads: vec![Workload::KeyValue],
                queue_pairs: vec![1, 2, 4, 8, 16, 24, 32],
                load_threads: vec![0, load_threads.max(1)],
                load_nodes: vec![NodeChoice::Any, NodeChoice::Local, NodeChoice::Remote],
                ..base
            },
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::LatencyByQueuePairs => "3a",
            Self::LatencyRatio => "3b",
            Self::ThroughputByBytes => "4",
            Self::ThroughputByWorkers => "5",
            Self::KeyValue => "6",
        }
    }
}

impl FromStr for Figure {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let found = Self::ALL.into_iter().find(|figure| figure.name() == text);
        found.ok_or(NameError::new("3a, 3b, 4, 5 or 6"))
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_valid_parameters() {
        for figure in Figure::ALL {
            assert_eq!(figure.to_string().parse(), Ok(figure));
            assert!(!figure.grid(4).configurations().unwrap().is_empty(), "{figure}");
        }
        assert!("2".parse::<Figure>().is_err());
        let kv = Figure::KeyValue.grid(0).configurations().unwrap();
        assert_eq!(kv.len(), 7 * 4, "unloaded, and load on any, the local and the remote node");
    }
}
