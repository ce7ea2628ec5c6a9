//! The command line of `rackpool ycsb`.

use std::path::PathBuf;

use super::workload::{Distribution, WorkloadName};

/// Run YCSB workloads and report throughput and latency.
///
/// Workload E (short scans) needs the keys in an ordered map beside the table. If E is selected,
/// the load and the inserts of all selected workloads maintain that map.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct YcsbOptions {
    /// Workloads to run, in this order: a letter or a list (a,b,c). The option can be repeated.
    #[arg(
        short,
        long = "workload",
        value_name = "LETTER",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        default_value = "a"
    )]
    pub workloads: Vec<WorkloadName>,

    /// Number of records.
    #[arg(short, long, value_name = "N", default_value_t = Self::RECORDS)]
    pub records: u64,

    /// Number of operations of each workload, over all threads.
    #[arg(short, long = "ops", value_name = "N", default_value_t = Self::OPERATIONS)]
    pub operations: u64,

    /// Number of worker threads, assigned to the racks in turn.
    #[arg(short, long, value_name = "N", default_value_t = Self::THREADS)]
    pub threads: usize,

    /// Distribution of the chosen records [default: latest for workload D, zipfian for the others].
    #[arg(short, long, value_enum)]
    pub distribution: Option<Distribution>,

    /// Number of fields of a record. The fields of a record are stored in one value.
    #[arg(long, value_name = "N", default_value_t = Self::FIELD_COUNT)]
    pub field_count: usize,

    /// Size of a field in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = Self::FIELD_LENGTH)]
    pub field_length: usize,

    /// Read all fields of a record (true) or one field (false).
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    pub read_all_fields: bool,

    /// Update all fields of a record (true) or one field (false). Updating one of several fields
    /// reads the value first.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = false)]
    pub write_all_fields: bool,

    /// YCSB property file, or workloada to workloadf for the files of YCSB itself. Properties
    /// override options; a later property overrides an earlier one.
    #[arg(short = 'P', long = "property-file", value_name = "FILE")]
    pub property_files: Vec<PathBuf>,

    /// YCSB property, like recordcount=1000. It overrides the property files.
    #[arg(short = 'p', long = "property", value_name = "NAME=VALUE")]
    pub properties: Vec<String>,

    /// Seed of the random numbers. With the same seed each thread repeats the same operations on
    /// the same records.
    #[arg(long, value_name = "N", default_value_t = Self::SEED)]
    pub seed: u64,

    /// Load the records before the workloads. This is the default.
    #[arg(long, overrides_with = "no_load")]
    pub load: bool,

    /// Skip the load: use the records of an earlier run.
    #[arg(long)]
    pub no_load: bool,

    /// Check that each value read was written for its key. The command fails if a value is wrong.
    /// Checks lower the throughput slightly; latencies do not include them.
    #[arg(long)]
    pub verify: bool,

    /// Write all results and their histograms to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Show no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

impl YcsbOptions {
    const RECORDS: u64 = 100_000;
    const OPERATIONS: u64 = 100_000;
    const THREADS: usize = 4;
    // One 64-byte value, as in the Rcmp paper's comparison.
    const FIELD_COUNT: usize = 1;
    const FIELD_LENGTH: usize = 64;
    const SEED: u64 = 1;
}

impl Default for YcsbOptions {
    /// The options of an empty command line.
    fn default() -> Self {
        Self {
            workloads: vec![WorkloadName::A],
            records: Self::RECORDS,
            operations: Self::OPERATIONS,
            threads: Self::THREADS,
            distribution: None,
            field_count: Self::FIELD_COUNT,
            field_length: Self::FIELD_LENGTH,
            read_all_fields: true,
            write_all_fields: false,
            property_files: Vec::new(),
            properties: Vec::new(),
            seed: Self::SEED,
            load: false,
            no_load: false,
            verify: false,
            json: None,
            quiet: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: YcsbOptions,
    }

    fn parse(line: &str) -> Result<YcsbOptions, clap::Error> {
        let words = ["rackpool-ycsb"].into_iter().chain(line.split_whitespace());
        Command::try_parse_from(words).map(|command| command.options)
    }

    #[test]
    fn nothing_given_is_the_default() {
        assert_eq!(parse("").unwrap(), YcsbOptions::default());
    }

    #[test]
    fn workloads_come_as_a_list_or_repeated() {
        let expected = vec![WorkloadName::A, WorkloadName::D, WorkloadName::F];
        for line in ["--workload a,d,f", "--workload A --workload d -w F"] {
            assert_eq!(parse(line).unwrap().workloads, expected, "{line}");
        }
        assert!(parse("--workload g").is_err());
    }

    #[test]
    fn a_full_line_is_understood() {
        let line =
            "--workload a --records 10 --ops 20 --threads 3 --distribution zipfian --no-load";
        let options = parse(line).unwrap();
        assert_eq!((options.records, options.operations, options.threads), (10, 20, 3));
        assert_eq!(options.distribution, Some(Distribution::Zipfian));
        assert!(options.no_load);
        assert!(!parse("--no-load --load").unwrap().no_load);
    }

    #[test]
    fn properties_come_as_ycsb_takes_them() {
        let options = parse("-P workloada -P mine -p recordcount=10 -precordcount=20").unwrap();
        assert_eq!(options.property_files, ["workloada", "mine"].map(PathBuf::from));
        assert_eq!(options.properties, ["recordcount=10", "recordcount=20"]);
    }
}
