//! A checked plan of a run.

use super::fields::Layout;
use super::key::KeyStyle;
use super::payload::MIN_VERIFIABLE_BYTES;
use super::properties::{PropertyError, Settings};
use super::workload::{ScanLengths, Workload};
use super::ycsb_options::YcsbOptions;

/// A run: [`YcsbOptions`] after a check that the values fit together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Workloads, in order.
    pub workloads: Vec<Workload>,
    /// The number of the first record.
    pub first: u64,
    /// Records loaded.
    pub records: u64,
    /// The form of the keys.
    pub keys: KeyStyle,
    /// The lengths of scans.
    pub scans: ScanLengths,
    /// Operations of each workload, all threads together.
    pub operations: u64,
    /// Worker threads.
    pub threads: usize,
    /// The target rate of all threads together, in operations per second; `None`: unlimited.
    pub rate: Option<u64>,
    /// Fields of a record.
    pub layout: Layout,
    /// Prefix of the fields' names, before their numbers, in stores that name fields.
    pub field_prefix: String,
    /// Whether a read looks at all fields or at one.
    pub read_all_fields: bool,
    /// Whether an update writes all fields or one.
    pub write_all_fields: bool,
    /// Seed of all choices.
    pub seed: u64,
    /// Whether to load the records first.
    pub load: bool,
    /// Whether to check every value read.
    pub verify: bool,
    /// Warnings to print before the run.
    pub warnings: Vec<String>,
}

impl Plan {
    /// Returns whether a workload scans, which requires ordered keys.
    pub fn scans_keys(&self) -> bool {
        self.workloads.iter().any(|workload| workload.mix.scan > 0)
    }
}

/// Invalid options. Every message says what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No workload was given.
    #[error("no workload is selected: give --workload a, b, c, d, e or f")]
    NoWorkload,
    /// A property or a property file is invalid.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// A number outside its bounds.
    #[error("{option} {given} is out of range: give a number from {least} to {most}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// What was given.
        given: u64,
        /// The smallest valid number.
        least: u64,
        /// The largest valid number.
        most: u64,
    },
    /// A thread would have nothing to do.
    #[error(
        "{option} {given} leaves some of {threads} threads without work: \
         give {option} {threads} or more, or fewer --threads"
    )]
    IdleThreads {
        /// The option.
        option: &'static str,
        /// What was given.
        given: u64,
        /// The threads.
        threads: usize,
    },
    /// Values too large for one message of the store.
    #[error(
        "{fields} fields make a value of {bytes} B: give a smaller --field-count or --field-length \
         (a value has at most {most} B)"
    )]
    ValueTooLarge {
        /// Number of fields.
        fields: usize,
        /// Bytes of a value.
        bytes: usize,
        /// The largest value in bytes.
        most: usize,
    },
    /// A field is too short to be verified.
    #[error("--verify cannot check fields of {given} B: give --field-length {least} or more")]
    TooShortToVerify {
        /// Bytes of a field.
        given: usize,
        /// The smallest field that can be verified, in bytes.
        least: usize,
    },
}

const MAX_COUNT: u64 = 1_000_000_000_000;
const MAX_THREADS: u64 = 1024;
const MAX_FIELDS: u64 = 1000;
const MAX_VALUE_BYTES: usize = 64 << 20;

impl YcsbOptions {
    /// Checks the options and returns their plan.
    ///
    /// # Errors
    /// If a value is zero, too large, or does not fit another; the message names the fix.
    pub fn plan(&self) -> Result<Plan, PlanError> {
        if self.workloads.is_empty() {
            return Err(PlanError::NoWorkload);
        }
        let settings = Settings::new(self)?;
        let workloads = settings.workloads()?;
        let options = &settings.options;
        options.check()?;
        let Self { field_count, field_length, .. } = *options;
        Ok(Plan {
            workloads,
            first: settings.first,
            records: options.records,
            keys: settings.keys,
            scans: settings.scans,
            operations: options.operations,
            threads: options.threads,
            rate: settings.rate,
            layout: Layout { field_count, field_length },
            field_prefix: settings.field_prefix,
            read_all_fields: options.read_all_fields,
            write_all_fields: options.write_all_fields,
            seed: options.seed,
            load: !options.no_load,
            verify: options.verify,
            warnings: settings.warnings,
        })
    }

    /// Checks the numbers, each on its own and together.
    fn check(&self) -> Result<(), PlanError> {
        in_range("--records", self.records, MAX_COUNT)?;
        in_range("--ops", self.operations, MAX_COUNT)?;
        in_range("--threads", self.threads as u64, MAX_THREADS)?;
        in_range("--field-count", self.field_count as u64, MAX_FIELDS)?;
        in_range("--field-length", self.field_length as u64, MAX_VALUE_BYTES as u64)?;
        for (option, given) in [("--records", self.records), ("--ops", self.operations)] {
            if given < self.threads as u64 {
                return Err(PlanError::IdleThreads { option, given, threads: self.threads });
            }
        }
        let layout = Layout { field_count: self.field_count, field_length: self.field_length };
        let bytes = layout.value_bytes();
        if bytes > MAX_VALUE_BYTES {
            let (fields, most) = (self.field_count, MAX_VALUE_BYTES);
            return Err(PlanError::ValueTooLarge { fields, bytes, most });
        }
        if self.verify && self.field_length < MIN_VERIFIABLE_BYTES {
            let (given, least) = (self.field_length, MIN_VERIFIABLE_BYTES);
            return Err(PlanError::TooShortToVerify { given, least });
        }
        Ok(())
    }
}

fn in_range(option: &'static str, given: u64, most: u64) -> Result<(), PlanError> {
    let least = 1;
    if (least..=most).contains(&given) {
        Ok(())
    } else {
        Err(PlanError::OutOfRange { option, given, least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Distribution, WorkloadName};

    fn refusal(options: YcsbOptions) -> String {
        options.plan().unwrap_err().to_string()
    }

    #[test]
    fn a_distribution_given_replaces_every_workloads_own() {
        let workloads = vec![WorkloadName::A, WorkloadName::D];
        let mut options = YcsbOptions { workloads, ..YcsbOptions::default() };
        let own = options.plan().unwrap().workloads;
        assert_eq!(own[0].distribution, Distribution::Zipfian);
        assert_eq!(own[1].distribution, Distribution::Latest);
        options.distribution = Some(Distribution::Uniform);
        let given = options.plan().unwrap().workloads;
        assert!(given.iter().all(|workload| workload.distribution == Distribution::Uniform));
    }

    #[test]
    fn nonsense_is_refused_and_the_fix_named() {
        let good = YcsbOptions::default;
        for (options, fix) in [
            (YcsbOptions { workloads: vec![], ..good() }, "--workload a"),
            (
                YcsbOptions { records: 0, ..good() },
                "--records 0 is out of range: give a number from 1",
            ),
            (YcsbOptions { operations: 0, ..good() }, "--ops 0"),
            (YcsbOptions { threads: 0, ..good() }, "--threads 0"),
            (YcsbOptions { threads: 5000, ..good() }, "to 1024"),
            (YcsbOptions { operations: 3, ..good() }, "give --ops 4 or more"),
            (YcsbOptions { field_count: 0, ..good() }, "--field-count 0"),
            (YcsbOptions { field_length: 0, ..good() }, "--field-length 0"),
            (YcsbOptions { field_count: 1000, field_length: 1 << 20, ..good() }, "smaller --field"),
            (YcsbOptions { verify: true, field_length: 8, ..good() }, "--field-length 16 or more"),
        ] {
            let message = refusal(options);
            assert!(message.contains(fix), "{message:?} lacks {fix:?}");
        }
    }
}
