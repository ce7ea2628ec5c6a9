//! The command line of `rackpool ycsb`.

use std::path::PathBuf;

use super::workload::{Distribution, WorkloadName};

/// Run YCSB's workloads against the pool and report throughput and latency.
///
/// Workload E (short scans) keeps the keys in order beside the table; so do the load and the
/// inserts of all workloads that are run with it.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Options {
    /// Workloads to run, in this order: one letter, a list (a,b,c), or the option several times.
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

    /// Records to load and to work on.
    #[arg(short, long, value_name = "N", default_value_t = Self::RECORDS)]
    pub records: u64,

    /// Operations of each workload, all threads together.
    #[arg(short, long = "ops", value_name = "N", default_value_t = Self::OPERATIONS)]
    pub operations: u64,

    /// Worker threads, spread over the racks in turn.
    #[arg(short, long, value_name = "N", default_value_t = Self::THREADS)]
    pub threads: usize,

    /// How records are chosen, in place of each workload's own way (latest for D, zipfian for the
    /// others).
    #[arg(short, long, value_enum)]
    pub distribution: Option<Distribution>,

    /// Fields of a record. With more than one, each is stored with its length in one value.
    #[arg(long, value_name = "N", default_value_t = Self::FIELD_COUNT)]
    pub field_count: usize,

    /// Bytes of a field.
    #[arg(long, value_name = "BYTES", default_value_t = Self::FIELD_LENGTH)]
    pub field_length: usize,

    /// Whether a read looks at all fields or at one.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    pub read_all_fields: bool,

    /// Whether an update writes all fields or one. With several fields in a value, one costs a read
    /// before.
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = false)]
    pub write_all_fields: bool,

    /// A property file of YCSB, or workloada to workloadf for YCSB's own. Properties win over
    /// options; of two, the last one counts.
    #[arg(short = 'P', long = "property-file", value_name = "FILE")]
    pub property_files: Vec<PathBuf>,

    /// One property of YCSB, as recordcount=1000. Wins over the files.
    #[arg(short = 'p', long = "property", value_name = "NAME=VALUE")]
    pub properties: Vec<String>,

    /// Seed of the choices: the same seed gives each thread the same operations on the same
    /// records.
    #[arg(long, value_name = "N", default_value_t = Self::SEED)]
    pub seed: u64,

    /// Load the records first (the default).
    #[arg(long, overrides_with = "no_load")]
    pub load: bool,

    /// Skip the load: the records are there from a run before.
    #[arg(long)]
    pub no_load: bool,

    /// Check that every value read was written for its key; a wrong one makes the command fail.
    /// Checking lowers throughput a little; it is no part of the latencies.
    #[arg(long)]
    pub verify: bool,

    /// Write all results, with their histograms, to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Show no progress.
    #[arg(short, long)]
    pub quiet: bool,
}

impl Options {
    const RECORDS: u64 = 100_000;
    const OPERATIONS: u64 = 100_000;
    const THREADS: usize = 4;
    // One 64-byte value, as in the Rcmp paper's comparison.
    const FIELD_COUNT: usize = 1;
    const FIELD_LENGTH: usize = 64;
    const SEED: u64 = 1;
}

impl Default for Options {
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
        options: Options,
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        let words = ["rackpool-ycsb"].into_iter().chain(line.split_whitespace());
        Command::try_parse_from(words).map(|command| command.options)
    }

    #[test]
    fn nothing_given_is_the_default() {
        assert_eq!(parse("").unwrap(), Options::default());
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
