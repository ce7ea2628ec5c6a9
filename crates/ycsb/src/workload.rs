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
    /// Short ranges: scans of up to 100 records, and 5 % inserts.
    E,
    /// Read-modify-write: half reads, half read-modify-writes.
    F,
}

impl WorkloadName {
    /// All letters, in order.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];
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

/// An operation on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read a record.
    Read,
    /// Write an existing record.
    Update,
    /// Store a new record.
    Insert,
    /// Read a record and those after it.
    Scan,
    /// Read a record, change it, write it back.
    ReadModifyWrite,
}

impl Operation {
    /// All operations, in the order of tables.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Update, Self::Insert, Self::Scan, Self::ReadModifyWrite];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read-modify-write",
        })
    }
}

/// The numbers of operations of each kind among [`Mix::WHOLE`]; they add up to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Updates.
    pub update: u32,
    /// Inserts.
    pub insert: u32,
    /// Scans.
    pub scan: u32,
    /// Read-modify-writes.
    pub read_modify_write: u32,
}

impl Mix {
    /// The sum of all kinds: shares are in millionths.
    pub const WHOLE: u32 = 1_000_000;

    /// A mix in per cent, in the order of [`Operation::ALL`].
    const fn percent([read, update, insert, scan, read_modify_write]: [u32; 5]) -> Self {
        let one = Self::WHOLE / 100;
        Self {
            read: read * one,
            update: update * one,
            insert: insert * one,
            scan: scan * one,
            read_modify_write: read_modify_write * one,
        }
    }

    /// Returns the mix of these shares, in the order of [`Operation::ALL`]; their sum is arbitrary.
    /// `None` if a share is negative or not a number, or if all are 0.
    pub(super) fn of_shares(shares: [f64; 5]) -> Option<Self> {
        let sum: f64 = shares.iter().sum();
        let usable = shares.iter().all(|share| share.is_finite() && *share >= 0.0);
        if !usable || !sum.is_finite() || sum <= 0.0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a share of the whole, which fits")]
        #[expect(clippy::cast_sign_loss, reason = "no share is negative")]
        let mut parts = shares.map(|share| (share / sum * f64::from(Self::WHOLE)).round() as u32);
        // The rounding error goes to the largest part.
        let rest = i64::from(Self::WHOLE) - parts.iter().copied().map(i64::from).sum::<i64>();
        let largest = parts.iter_mut().max()?;
        *largest = u32::try_from(i64::from(*largest) + rest).ok()?;
        let [read, update, insert, scan, read_modify_write] = parts;
        Some(Self { read, update, insert, scan, read_modify_write })
    }

    /// Returns the operation at `point` (0 to [`WHOLE`](Self::WHOLE) - 1) when the kinds are laid
    /// end to end.
    pub(super) fn at(&self, point: u32) -> Operation {
        let update = self.read;
        let insert = update + self.update;
        let scan = insert + self.insert;
        let read_modify_write = scan + self.scan;
        match point {
            p if p < update => Operation::Read,
            p if p < insert => Operation::Update,
            p if p < scan => Operation::Insert,
            p if p < read_modify_write => Operation::Scan,
            _ => Operation::ReadModifyWrite,
        }
    }
}

/// A core workload: its mix, and its distribution of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Its letter, or `P` if property files define it.
    pub name: &'static str,
    /// YCSB's own short description.
    pub title: &'static str,
    /// Kinds of operations.
    pub mix: Mix,
    /// The distribution of records.
    pub distribution: Distribution,
}

impl Workload {
    /// Returns the workload of a mix from property files; a core workload if it is equal to one.
    pub(super) fn of_mix(mix: Mix, distribution: Distribution) -> Self {
        let known = WorkloadName::ALL.map(Self::from).into_iter().find(|known| known.mix == mix);
        let own = Self { name: "P", title: "of property files", mix, distribution };
        let same = known.filter(|known| known.distribution == distribution);
        same.unwrap_or(own)
    }
}

impl From<WorkloadName> for Workload {
    /// As defined by YCSB's files `workloads/workloada` to `workloadf`.
    fn from(name: WorkloadName) -> Self {
        let zipfian = Distribution::Zipfian;
        let (name, title, percent, distribution) = match name {
            WorkloadName::A => ("A", "update heavy", [50, 50, 0, 0, 0], zipfian),
            WorkloadName::B => ("B", "read mostly", [95, 5, 0, 0, 0], zipfian),
            WorkloadName::C => ("C", "read only", [100, 0, 0, 0, 0], zipfian),
            WorkloadName::D => ("D", "read latest", [95, 0, 5, 0, 0], Distribution::Latest),
            WorkloadName::E => ("E", "short ranges", [0, 0, 5, 95, 0], zipfian),
            WorkloadName::F => ("F", "read-modify-write", [50, 0, 0, 0, 50], zipfian),
        };
        Self { name, title, mix: Mix::percent(percent), distribution }
    }
}

/// The lengths of scans, in records (YCSB: `minscanlength`, `maxscanlength`,
/// `scanlengthdistribution`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanLengths {
    /// The shortest, at least 1.
    pub least: u64,
    /// The longest.
    pub most: u64,
    /// The distribution between them: [`Distribution::Zipfian`] prefers short scans.
    pub distribution: Distribution,
}

impl ScanLengths {
    /// The longest scan that is supported.
    pub const MOST: u64 = 1_000_000;
}

impl Default for ScanLengths {
    fn default() -> Self {
        Self { least: 1, most: 100, distribution: Distribution::Uniform }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_sums_to_the_whole_and_is_drawn_as_given() {
        for name in WorkloadName::ALL {
            let mix = Workload::from(name).mix;
            let hundred = (0..Mix::WHOLE).step_by(Mix::WHOLE as usize / 100);
            let count = |operation| hundred.clone().filter(|p| mix.at(*p) == operation).count();
            let counts = Operation::ALL.map(count);
            let given = [mix.read, mix.update, mix.insert, mix.scan, mix.read_modify_write];
            assert_eq!(counts, given.map(|part| part as usize / 10_000), "workload {name:?}");
            assert_eq!(given.iter().sum::<u32>(), Mix::WHOLE);
        }
    }

    #[test]
    fn shares_are_parts_of_what_they_sum_to() {
        let thirds = Mix::of_shares([1.0, 1.0, 1.0, 0.0, 0.0]).unwrap();
        assert_eq!(thirds.read + thirds.update + thirds.insert, Mix::WHOLE);
        assert!(thirds.update.abs_diff(333_333) <= 1);
        let e = Mix::of_shares([0.0, 0.0, 0.05, 0.95, 0.0]).unwrap();
        assert_eq!(Workload::of_mix(e, Distribution::Zipfian).name, "E");
        assert_eq!(Workload::of_mix(e, Distribution::Latest).name, "P");
        for nonsense in [[0.0; 5], [-1.0, 2.0, 0.0, 0.0, 0.0], [f64::NAN; 5], [f64::INFINITY; 5]] {
            assert_eq!(Mix::of_shares(nonsense), None);
        }
    }
}
