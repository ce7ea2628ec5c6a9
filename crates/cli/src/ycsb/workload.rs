//! YCSB's core workloads, as data.

use std::fmt;

/// The letter of a core workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkloadName {
    /// Update heavy: half reads, half updates.
    A,
    /// Read mostly: 5 % updates.
    B,
    /// Read only.
    C,
    /// Read latest: 5 % inserts, and the newest records are read most.
    D,
    /// Read-modify-write: half reads, half read-modify-writes.
    F,
}

impl WorkloadName {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::A, Self::B, Self::C, Self::D, Self::F];
}

/// Which records are asked for how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// YCSB's scrambled Zipfian, constant 0.99.
    Zipfian,
    /// All equally.
    Uniform,
    /// The newest most, falling off as a Zipfian of constant 0.99.
    Latest,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zipfian => "zipfian 0.99",
            Self::Uniform => "uniform",
            Self::Latest => "latest",
        })
    }
}

/// What is done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read a record.
    Read,
    /// Write a record that is there.
    Update,
    /// Store a new record.
    Insert,
    /// Read a record, change it, write it back.
    ReadModifyWrite,
}

impl Operation {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 4] = [Self::Read, Self::Update, Self::Insert, Self::ReadModifyWrite];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::ReadModifyWrite => "read-modify-write",
        })
    }
}

/// How many of a hundred operations are of which kind. The four sum to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Per cent reads.
    pub read: u8,
    /// Per cent updates.
    pub update: u8,
    /// Per cent inserts.
    pub insert: u8,
    /// Per cent read-modify-writes.
    pub read_modify_write: u8,
}

impl Mix {
    /// The operation at `percentile` (0 to 99) when the kinds are laid end to end.
    pub(super) fn at(&self, percentile: u8) -> Operation {
        let update = self.read;
        let insert = update + self.update;
        let read_modify_write = insert + self.insert;
        match percentile {
            p if p < update => Operation::Read,
            p if p < insert => Operation::Update,
            p if p < read_modify_write => Operation::Insert,
            _ => Operation::ReadModifyWrite,
        }
    }
}

/// A core workload: its mix, and how it chooses records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Its letter.
    pub name: WorkloadName,
    /// YCSB's own short description.
    pub title: &'static str,
    /// Kinds of operations.
    pub mix: Mix,
    /// Choice of records.
    pub distribution: Distribution,
}

impl From<WorkloadName> for Workload {
    /// As YCSB's files `workloads/workloada` to `workloadf` define it.
    fn from(name: WorkloadName) -> Self {
        let zipfian = Distribution::Zipfian;
        let (title, [read, update, insert, read_modify_write], distribution) = match name {
            WorkloadName::A => ("update heavy", [50, 50, 0, 0], zipfian),
            WorkloadName::B => ("read mostly", [95, 5, 0, 0], zipfian),
            WorkloadName::C => ("read only", [100, 0, 0, 0], zipfian),
            WorkloadName::D => ("read latest", [95, 0, 5, 0], Distribution::Latest),
            WorkloadName::F => ("read-modify-write", [50, 0, 0, 50], zipfian),
        };
        let mix = Mix { read, update, insert, read_modify_write };
        Self { name, title, mix, distribution }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_sums_to_a_hundred_and_is_drawn_as_given() {
        for name in WorkloadName::ALL {
            let mix = Workload::from(name).mix;
            let count = |operation| (0..100).filter(|p| mix.at(*p) == operation).count();
            let counts = Operation::ALL.map(count);
            let given = [mix.read, mix.update, mix.insert, mix.read_modify_write].map(usize::from);
            assert_eq!(counts, given, "workload {name:?}");
            assert_eq!(given.iter().sum::<usize>(), 100);
        }
    }
}
