//! A study of one configuration: measurements of all placements in turn, and what they say.

use std::time::{Duration, Instant};

use rackpool_model::FabricKind;

use crate::session::measure;
use crate::statistics::{Direction, RatioInterval, Verdict};
use crate::{
    ClientPlacement, Configuration, LoopKind, Measurement, Model, NodeChoice, Placement, Side,
    StudyError, Topology, Workload,
};

/// The most pairs.
pub const MAX_PAIRS: u32 = 1000;
/// The most outstanding operations of a connection.
pub const MAX_WINDOW: u32 = 1024;
/// The longest measurement.
const MAX_SECONDS: f64 = 3600.0;

/// Length of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Seconds of the clock on the wall: with a model they contain fewer modelled ones.
    Seconds(f64),
    /// Operations of each connection.
    Operations(u64),
}

/// What all configurations of a study share.
#[derive(Clone, Debug)]
pub struct StudyOptions {
    /// The fabric.
    pub fabric: FabricKind,
    /// The RDMA device of the verbs fabric; else the first one that fits.
    pub rdma_device: Option<String>,
    /// The two nodes. `None` places nothing: with a model, or to test a fabric.
    pub topology: Option<Topology>,
    /// A model in place of two nodes.
    pub model: Option<Model>,
    /// Length of one measurement.
    pub length: Length,
    /// Measurements of each placement: 2 to [`MAX_PAIRS`].
    pub pairs: u32,
    /// The share of the baseline up to which a difference counts as none.
    pub negligible: f64,
    /// Threads of the client, which poll their connections in turn.
    pub client_threads: u32,
    /// Outstanding operations of a connection in an open loop: 1 to [`MAX_WINDOW`].
    pub window: u32,
    /// The client's threads and memory, for one-sided operations. The key-value workload has
    /// placements of its own.
    pub client: ClientPlacement,
}

/// The result of a study of one configuration.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was measured.
    pub configuration: Configuration,
    /// What was measured with each placement; the first one is the baseline.
    pub placements: Vec<PlacementOutcome>,
}

/// Measurements with one placement.
#[derive(Clone, Debug)]
pub struct PlacementOutcome {
    /// The placement.
    pub placement: Placement,
    /// The measurements in the order in which they were made.
    pub measurements: Vec<Measurement>,
    /// The comparison with the first placement, of which it has none.
    pub comparison: Option<Comparison>,
}

/// A placement compared with the first one.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The metric's ratio to that of the first placement.
    pub interval: RatioInterval,
    /// What the interval says.
    pub verdict: Verdict,
}

impl Length {
    /// The number of operations to record; `None` if the time decides.
    pub(crate) const fn operations(self) -> Option<u64> {
        match self {
            Self::Seconds(_) => None,
            Self::Operations(operations) => Some(operations),
        }
    }

    /// Returns true if the warm-up, a tenth of the measurement but at most 0.1 s, is over.
    pub(crate) fn is_warm(self, began: Instant, mut completed: impl Iterator<Item = u64>) -> bool {
        match self {
            Self::Seconds(seconds) => began.elapsed().as_secs_f64() >= (seconds / 10.0).min(0.1),
            Self::Operations(operations) => {
                began.elapsed() >= Duration::from_millis(100)
                    || completed.all(|count| count >= operations / 10)
            }
        }
    }

    fn is_valid(self) -> bool {
        match self {
            Self::Seconds(seconds) => seconds > 0.0 && seconds <= MAX_SECONDS,
            Self::Operations(operations) => operations > 0,
        }
    }
}

impl Configuration {
    /// The metric of the comparison: median latency for a closed loop of one-sided operations, else
    /// throughput. A busy machine disturbs the mean latency more than its median.
    #[must_use]
    pub fn direction(&self) -> Direction {
        match (self.workload, self.loop_kind) {
            (Workload::Read | Workload::Write, LoopKind::Closed) => Direction::LowerIsBetter,
            _ => Direction::HigherIsBetter,
        }
    }
}

impl Measurement {
    /// The metric of the comparison: ns, or operations a second.
    #[must_use]
    pub fn metric(&self, direction: Direction) -> f64 {
        match direction {
            Direction::LowerIsBetter => self.latency.map_or(f64::NAN, |latency| latency.p50_ns),
            Direction::HigherIsBetter => self.per_second,
        }
    }
}

impl PlacementOutcome {
    /// The mean of a value over all measurements.
    pub fn mean(&self, value: impl Fn(&Measurement) -> f64) -> f64 {
        self.measurements.iter().map(value).sum::<f64>() / self.measurements.len().max(1) as f64
    }
}

impl StudyOptions {
    /// Checks the options with a configuration.
    ///
    /// # Errors
    /// If a value is outside its range, the model lacks an effect that is asked for, or a node has
    /// no processors for threads that belong there.
    pub fn check(&self, configuration: &Configuration) -> Result<(), StudyError> {
        configuration.check()?;
        let is_modelled = self.model.is_some();
        let is_kv = configuration.workload == Workload::KeyValue;
        let rules = [
            (self.length.is_valid(), "give a length above 0, and at most 3600 seconds"),
            ((2..=MAX_PAIRS).contains(&self.pairs), "pairs: give 2 to 1000"),
            ((0.0..1.0).contains(&self.negligible), "negligible: give 0 to 100 percent"),
            (self.client_threads > 0, "client threads: give at least 1"),
            ((1..=MAX_WINDOW).contains(&self.window), "window: give 1 to 1024"),
            (
                !is_modelled || self.fabric == FabricKind::Emulated,
                "--model: only the emulated fabric has a model of NUMA",
            ),
            (
                !is_modelled || is_kv || configuration.load.threads == 0,
                "--model: it has no effect of load on one-sided operations: leave out the load, or \
                 measure on a machine with two NUMA nodes",
            ),
        ];
        if let Some((_, advice)) = rules.into_iter().find(|(holds, _)| !holds) {
            return Err(StudyError::Option(advice.into()));
        }
        if let Some(model) = self.model {
            model.check()?;
        }
        let remote = self.topology.as_ref().map(|topology| &topology.remote);
        match remote.filter(|node| node.cpus.is_empty() && self.needs_processors(configuration)) {
            Some(node) => Err(StudyError::Node {
                node: node.id,
                lacks: "has no processors, which threads of this study need",
                option: "--other-node",
            }),
            None => Ok(()),
        }
    }

    /// Whether threads must run on the other node.
    fn needs_processors(&self, configuration: &Configuration) -> bool {
        let load = &configuration.load;
        configuration.workload == Workload::KeyValue
            || configuration.workers.threads > 0
            || (load.threads > 0 && load.node == NodeChoice::Remote)
            || self.client.threads == NodeChoice::Remote
    }

    /// The placements to compare; the first one is the baseline.
    #[must_use]
    pub fn placements(&self, workload: Workload) -> Vec<Placement> {
        if workload == Workload::KeyValue {
            let on = |server, client| Placement { server, client: ClientPlacement::on(client) };
            return vec![
                on(Side::Local, NodeChoice::Local),
                on(Side::Remote, NodeChoice::Local),
                on(Side::Remote, NodeChoice::Remote),
            ];
        }
        let of = |server| Placement { server, client: self.client };
        vec![of(Side::Local), of(Side::Remote)]
    }
}

/// Measures a configuration with each placement in turn, back and forth, so that a drift of the
/// machine meets all placements alike. Calls `measured` after each measurement.
///
/// # Errors
/// If an option is not valid, memory is on another node than it must be, or the fabric fails.
pub fn study(
    options: &StudyOptions,
    configuration: &Configuration,
    mut measured: impl FnMut(Placement, &Measurement),
) -> Result<Outcome, StudyError> {
    options.check(configuration)?;
    let placements = options.placements(configuration.workload);
    let mut all: Vec<Vec<Measurement>> = vec![Vec::new(); placements.len()];
    for pair in 0..options.pairs {
        let forth = 0..placements.len();
        let order: Vec<usize> =
            if pair.is_multiple_of(2) { forth.collect() } else { forth.rev().collect() };
        for at in order {
            let measurement = measure(options, configuration, placements[at])?;
            measured(placements[at], &measurement);
            all[at].push(measurement);
        }
    }
    let direction = configuration.direction();
    let baseline: Vec<f64> = all[0].iter().map(|one| one.metric(direction)).collect();
    let mut outcomes = Vec::new();
    for (at, (placement, measurements)) in placements.into_iter().zip(all).enumerate() {
        let values = measurements.iter().map(|one| one.metric(direction));
        let pairs: Vec<(f64, f64)> = baseline.iter().copied().zip(values).collect();
        let comparison = match at {
            0 => None,
            _ => Some(compare(&pairs, direction, options.negligible)?),
        };
        outcomes.push(PlacementOutcome { placement, measurements, comparison });
    }
    Ok(Outcome { configuration: *configuration, placements: outcomes })
}

fn compare(
    pairs: &[(f64, f64)],
    direction: Direction,
    negligible: f64,
) -> Result<Comparison, StudyError> {
    let interval =
        RatioInterval::of_pairs(pairs).ok_or(StudyError::NoInterval { pairs: pairs.len() })?;
    Ok(Comparison { interval, verdict: interval.verdict(direction, negligible) })
}
