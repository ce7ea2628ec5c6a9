use std::path::PathBuf;

use clap::ValueEnum;
use rackpool_dca::{
    DmaPath, Forwarder, Indexing, MachineOptions, Replacement, SimulationOptions, WayMask,
};
use rackpool_model::ByteSize;

/// The caches, and what goes through them. Several values of an option, like 2,4,8, are tried one
/// after the other, in each combination.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SimOptions {
    /// Cores that forward packets.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(super) cores: Vec<u32>,
    /// Descriptors of each core's receive ring.
    #[arg(long, value_delimiter = ',', default_value = "1024")]
    pub(super) descriptors: Vec<u32>,
    /// Bytes of a packet.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "1500")]
    pub(super) packet: Vec<u32>,
    /// Ways of the last-level cache into which the card writes (DDIO).
    #[arg(long, value_delimiter = ',', default_value = "2")]
    pub(super) ways: Vec<u32>,
    /// Rate at which packets arrive, in Gbit/s.
    #[arg(long, value_delimiter = ',', default_value = "100")]
    pub(super) gbps: Vec<f64>,
    /// Additional processing of each packet, in cycles.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(super) extra_cycles: Vec<f64>,
    /// Where the card's writes go.
    #[arg(long, value_enum, default_value = "cache")]
    pub(super) path: Path,
    /// Let a second program on cores of its own receive the same, by this path.
    #[arg(long, value_enum, value_name = "PATH")]
    pub(super) beside: Option<Path>,
    /// Pause the sender while the ring is full, instead of dropping packets.
    #[arg(long)]
    pub(super) pause: bool,
    /// Size of the last-level cache. The default is that of a Xeon Gold 6140, as in the paper.
    #[arg(long, value_name = "BYTES", default_value = "25344K")]
    pub(super) llc: ByteSize,
    /// Ways of the last-level cache.
    #[arg(long, default_value_t = 11)]
    pub(super) llc_ways: u32,
    /// Ways into which the programs' own lines are evicted, a bit for each, like 0x1ff (CAT)
    /// [default: all].
    #[arg(long, value_name = "MASK", value_parser = mask)]
    pub(super) program_ways: Option<WayMask>,
    /// Which line a new one replaces.
    #[arg(long, value_enum, default_value = "random")]
    pub(super) replacement: Replaces,
    /// How an address selects a set.
    #[arg(long, value_enum, default_value = "hashed")]
    pub(super) indexing: Indexes,
    /// Replay accesses of this file instead, a line each: nanoseconds, device-write, device-read,
    /// core-read or core-write, core, address, bytes.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Replay a trace of `rackpool ycsb --record` instead, as the rack of --rack sees it.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub(super) recording: Option<PathBuf>,
    /// The rack of --recording.
    #[arg(long, default_value_t = 0)]
    pub(super) rack: u16,
    /// Bytes of each access of --recording, which does not say them.
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = access_bytes)]
    pub(super) access: u64,
    /// Seed of what is random.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Print comma-separated values.
    #[arg(long)]
    pub(super) csv: bool,
}

/// Where a card's writes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// Into the ways of the cache that it may use.
    Cache,
    /// To memory, because the card belongs to another socket.
    OtherSocket,
    /// To memory, because DDIO is off.
    Memory,
}

/// Which line a new one replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Replaces {
    /// One at random.
    Random,
    /// The one that was used longest ago.
    Lru,
}

/// How an address selects a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Indexes {
    /// By a hash, as processors do.
    Hashed,
    /// By its lowest bits.
    Linear,
}

impl Path {
    pub(super) const fn of_model(self) -> DmaPath {
        match self {
            Self::Cache => DmaPath::Ddio,
            Self::OtherSocket => DmaPath::OtherSocket,
            Self::Memory => DmaPath::DdioDisabled,
        }
    }
}

/// One value of each option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) cores: u32,
    pub(super) descriptors: u32,
    pub(super) packet: u32,
    pub(super) ways: u32,
    pub(super) gbps: f64,
    pub(super) extra_cycles: f64,
}

impl SimOptions {
    /// All combinations of the values.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (cores, descriptors) in pairs(&self.cores, &self.descriptors) {
            for (packet, ways) in pairs(&self.packet, &self.ways) {
                for (gbps, extra_cycles) in pairs(&self.gbps, &self.extra_cycles) {
                    cases.push(Case { cores, descriptors, packet, ways, gbps, extra_cycles });
                }
            }
        }
        cases
    }

    /// The caches with so many ways for the card.
    pub(super) fn machine(&self, ways: u32) -> MachineOptions {
        MachineOptions {
            llc_bytes: self.llc.0,
            llc_ways: self.llc_ways,
            indexing: match self.indexing {
                Indexes::Hashed => Indexing::Hashed,
                Indexes::Linear => Indexing::Linear,
            },
            replacement: match self.replacement {
                Replaces::Random => Replacement::Random,
                Replaces::Lru => Replacement::LeastRecentlyUsed,
            },
            ddio_ways: WayMask::highest(ways, self.llc_ways),
            seed: self.seed,
            ..MachineOptions::default()
        }
    }

    pub(super) fn simulation(&self, case: &Case) -> SimulationOptions {
        SimulationOptions { machine: self.machine(case.ways), ..SimulationOptions::default() }
    }

    /// The programs that forward packets, the measured one first.
    pub(super) fn forwarders(&self, case: &Case) -> Vec<Forwarder> {
        let one = |path: Path| Forwarder {
            cores: case.cores,
            descriptors: case.descriptors,
            packet_bytes: case.packet,
            rate_gbps: case.gbps,
            line_gbps: case.gbps.max(100.0),
            extra_cycles: case.extra_cycles,
            cat_mask: self.program_ways.unwrap_or_else(|| WayMask::all(self.llc_ways)),
            buffer_stride_bytes: Forwarder::default()
                .buffer_stride_bytes
                .max(u64::from(case.packet).next_multiple_of(64)),
            path: path.of_model(),
            pause: self.pause,
            ..Forwarder::default()
        };
        std::iter::once(self.path).chain(self.beside).map(one).collect()
    }
}

fn pairs<A: Copy, B: Copy>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    first.iter().flat_map(|a| second.iter().map(|b| (*a, *b))).collect()
}

fn mask(text: &str) -> Result<WayMask, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let mask = u32::from_str_radix(digits, 16);
    mask.map(WayMask).map_err(|_| "give a bit for each way, in hexadecimal, like 0x1ff".into())
}

fn access_bytes(text: &str) -> Result<u64, String> {
    match text.parse::<ByteSize>() {
        Ok(bytes) if (1..=1 << 20).contains(&bytes.0) => Ok(bytes.0),
        _ => Err("give a number of bytes from 1 to 1M".into()),
    }
}
