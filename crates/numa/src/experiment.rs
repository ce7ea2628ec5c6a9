use anyhow::ensure;

/// Size of the largest operation in bytes.
const MAX_BYTES: u32 = 64 << 10;
/// The most queue pairs.
const MAX_QUEUE_PAIRS: u16 = 64;

/// The operation that clients post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A one-sided read of the server's memory.
    Read,
    /// A one-sided write of it.
    Write,
}

/// When a client posts its next operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// When the one before has completed: for latencies.
    Closed,
    /// As soon as fewer than this number are in flight on its queue pair: for rates.
    Open(u16),
}

/// Threads of the server that access the registered memory all the time, on its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// Their number.
    pub threads: u32,
    /// Percent of their accesses that write.
    pub writes: u8,
}

/// One setting of the study. It is measured with the registered memory on both nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// The operation.
    pub kind: Kind,
    /// Its size in bytes.
    pub bytes: u32,
    /// Clients, each with a queue pair and a part of the memory of its own. The parts are adjacent.
    pub queue_pairs: u16,
    /// Closed or open loop.
    pub pacing: Pacing,
    /// Threads on the registered memory.
    pub workers: Workers,
    /// Threads on a private buffer on the node of the registered memory.
    pub load_threads: u32,
}

impl Default for Experiment {
    /// Reads of 64 B by one client in a closed loop, without load.
    fn default() -> Self {
        Self {
            kind: Kind::Read,
            bytes: 64,
            queue_pairs: 1,
            pacing: Pacing::Closed,
            workers: Workers::default(),
            load_threads: 0,
        }
    }
}

impl Experiment {
    /// Fails with the reason if the experiment cannot be run.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=MAX_BYTES).contains(&self.bytes),
            "{} B: an operation has 1 B to 64 KiB",
            self.bytes
        );
        ensure!(
            (1..=MAX_QUEUE_PAIRS).contains(&self.queue_pairs),
            "{} queue pairs: 1 to {MAX_QUEUE_PAIRS} can be measured",
            self.queue_pairs
        );
        ensure!(
            !matches!(self.pacing, Pacing::Open(0 | 1025..)),
            "an open loop has 1 to 1024 operations in flight on a queue pair"
        );
        ensure!(self.workers.writes <= 100, "{} % of accesses", self.workers.writes);
        Ok(())
    }

    /// Operations in flight on a queue pair.
    pub(crate) const fn window(&self) -> u16 {
        match self.pacing {
            Pacing::Closed => 1,
            Pacing::Open(window) => window,
        }
    }

    /// Bytes of the registered memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        u64::from(self.queue_pairs) * u64::from(self.bytes)
    }

    /// Offset of a client's part of the memory.
    pub(crate) fn part(&self, client: u16) -> u64 {
        u64::from(client) * u64::from(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_adjacent_and_do_not_overlap() {
        let experiment = Experiment { bytes: 8, queue_pairs: 8, ..Experiment::default() };
        let parts: Vec<u64> = (0..8).map(|client| experiment.part(client)).collect();
        assert_eq!(parts, [0, 8, 16, 24, 32, 40, 48, 56]);
        assert_eq!(experiment.memory_bytes(), 64);
    }

    #[test]
    fn what_can_not_be_run_is_refused() {
        let good = Experiment::default();
        good.check().unwrap();
        let wrong = [
            Experiment { bytes: 0, ..good },
            Experiment { bytes: (64 << 10) + 1, ..good },
            Experiment { queue_pairs: 0, ..good },
            Experiment { queue_pairs: 65, ..good },
            Experiment { pacing: Pacing::Open(0), ..good },
            Experiment { pacing: Pacing::Open(1025), ..good },
            Experiment { workers: Workers { threads: 1, writes: 101 }, ..good },
        ];
        for experiment in wrong {
            assert!(experiment.check().is_err(), "{experiment:?}");
        }
    }
}
