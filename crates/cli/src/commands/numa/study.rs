//! `rackpool numa study`.

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use rackpool_numa::{
    Configuration, LoopKind, MemoryLatencies, Outcome, StudyError, StudyOptions, Topology,
    Workload, model, published, study,
};
use rackpool_output::{Style, UsageError, print};
use rackpool_shm::host::HostFiles;

use super::study_options::StudyArguments;
use super::{study_figures, study_table};

/// The results of all configurations, and what the outputs say about their origin.
pub(super) struct Study<'a> {
    pub(super) arguments: &'a StudyArguments,
    /// The two nodes; `None` for a model.
    pub(super) topology: Option<&'a Topology>,
    /// Measured latencies of memory; `None` for a model.
    pub(super) latencies: Option<&'a MemoryLatencies>,
    pub(super) outcomes: Vec<Outcome>,
}

pub(super) fn run(arguments: &StudyArguments, style: Style) -> anyhow::Result<()> {
    let host = HostFiles::here();
    let topology = match arguments.model {
        true => None,
        false => Some(Topology::find(&host, &arguments.nodes())?),
    };
    let grid = arguments.grid(load_threads(topology.as_ref()));
    arguments.check(&grid)?;
    let configurations = grid.configurations().map_err(refused)?;
    let options = arguments.study(topology.clone());
    for configuration in &configurations {
        options.check(configuration).map_err(refused)?;
    }
    let latencies =
        topology.as_ref().map(|topology| MemoryLatencies::measure(&host, topology)).transpose()?;
    let outcomes = measure(&options, &configurations)?;
    let (topology, latencies) = (topology.as_ref(), latencies.as_ref());
    let study = Study { arguments, topology, latencies, outcomes };
    print(format_args!("{}", study_table::table(&study, style)))?;
    if let Some(file) = &arguments.csv {
        std::fs::write(file, study_table::csv(&study))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(folder) = &arguments.svg {
        study_figures::write(&study, folder)?;
    }
    Ok(())
}

/// Threads of a figure's load: all processors of a node but the server's.
fn load_threads(topology: Option<&Topology>) -> u32 {
    let processors = topology.map_or(1, |topology| topology.local.cpus.len());
    u32::try_from(processors).unwrap_or(u32::MAX).saturating_sub(1)
}

/// Measures all configurations, with a progress bar on a terminal.
fn measure(
    options: &StudyOptions,
    configurations: &[Configuration],
) -> anyhow::Result<Vec<Outcome>> {
    let of = |one: &Configuration| {
        options.placements(one.workload).len() as u64 * u64::from(options.pairs)
    };
    let bar = ProgressBar::new(configurations.iter().map(of).sum());
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos} of {len} measurements, {msg}")?);
    let mut outcomes = Vec::new();
    for one in configurations {
        let Configuration { workload, bytes, queue_pairs, .. } = one;
        bar.set_message(format!("{workload} of {bytes} B, {queue_pairs} queue pairs"));
        outcomes.push(study(options, one, |_, _| bar.inc(1)).map_err(refused)?);
    }
    bar.finish_and_clear();
    Ok(outcomes)
}

/// Values outside their range are errors of usage.
fn refused(error: StudyError) -> anyhow::Error {
    match error {
        StudyError::Option(advice) => UsageError::new(advice).into(),
        error => error.into(),
    }
}

impl Study<'_> {
    /// The predicted effect of remote memory, in percent: for the latency of reads.
    pub(super) fn predicted_percent(&self, outcome: &Outcome) -> Option<f64> {
        let Configuration { workload, loop_kind, .. } = outcome.configuration;
        if (workload, loop_kind) != (Workload::Read, LoopKind::Closed) {
            return None;
        }
        let Some(latencies) = self.latencies else {
            return Some(model::published_prediction_percent());
        };
        let base = outcome.placements.first()?;
        let base_ns = base.mean(|one| one.metric(outcome.configuration.direction()));
        Some(model::predicted_percent(latencies.remote_ns()?, latencies.l3_ns, base_ns))
    }

    /// What was studied, in a line.
    pub(super) fn description(&self) -> String {
        let fabric = self.arguments.fabric;
        match self.topology {
            Some(topology) => format!(
                "measured over the {fabric} fabric: local is NUMA node {}, remote is node {}",
                topology.local.id, topology.remote.id
            ),
            None => format!(
                "MODEL over the {fabric} fabric: no memory was placed, effects of NUMA are \
                 computed from published values (load {} ns in the cache, {} ns in remote memory)",
                published::LATENCY_L3_NS,
                published::LATENCY_REMOTE_NS
            ),
        }
    }
}
