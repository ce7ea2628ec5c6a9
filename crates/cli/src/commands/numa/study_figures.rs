//! A study as plots, in the shape of the published figures.

use std::path::Path;
use std::time::SystemTime;

use rackpool_numa::{
    Configuration, Direction, Figure as Preset, Load, LoopKind, Outcome, PlacementOutcome,
    Workload, published,
};
use rackpool_output::clock::utc;
use rackpool_report::figures::{self, Figure, FiguresRun, Panel, Scale, Series, Shape};

use super::study::Study;
use super::study_table::{load_name, placement_name};

/// The value on the x axis: the first that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Workers,
    Bytes,
    QueuePairs,
}

impl Axis {
    fn of(study: &Study<'_>) -> Self {
        let varies = |axis: &Self| {
            let mut values = study.outcomes.iter().map(|one| axis.value(&one.configuration));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        [Self::Workers, Self::Bytes].into_iter().find(varies).unwrap_or(Self::QueuePairs)
    }

    const fn value(self, configuration: &Configuration) -> u32 {
        match self {
            Self::Workers => configuration.workers.threads,
            Self::Bytes => configuration.bytes,
            Self::QueuePairs => configuration.queue_pairs,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Bytes => "bytes",
            Self::QueuePairs => "queue pairs",
        }
    }

    /// The configuration without what the x axis and the series show.
    fn group(self, configuration: &Configuration) -> (LoopKind, Load, [u32; 3], bool) {
        let Configuration { workload, bytes, queue_pairs, loop_kind, load, workers } =
            *configuration;
        let mut others = [workers.threads, bytes, queue_pairs];
        others[match self {
            Self::Workers => 0,
            Self::Bytes => 1,
            Self::QueuePairs => 2,
        }] = 0;
        (loop_kind, load, others, workload == Workload::KeyValue)
    }
}

/// Writes the plots, their values and a page into the folder.
pub(super) fn write(study: &Study<'_>, folder: &Path) -> anyhow::Result<()> {
    let source = study.arguments.source();
    let id = study.arguments.figure.map_or_else(|| "study".into(), |figure| figure.to_string());
    let title = match study.arguments.figure {
        Some(figure) => format!("Figure {figure} of Nelson and Palmieri ({source})"),
        None => format!("One-sided operations and NUMA ({source})"),
    };
    let run = FiguresRun {
        title: format!("NUMA and one-sided operations ({source})"),
        started: utc(SystemTime::now()),
        machine: rackpool_report::machine_facts(),
        figures: vec![Figure {
            id,
            title,
            setting: study.description(),
            panels: panels(study),
            statements: Vec::new(),
            notes: vec![format!(
                "Each point is the mean of {} measurements.",
                study.arguments.pairs
            )],
        }],
        commands: vec![std::env::args().collect::<Vec<_>>().join(" ")],
        notes: vec![
            "J. Nelson and R. Palmieri, \"Performance Evaluation of the Impact of NUMA on \
             One-sided RDMA Interactions\", SRDS 2020."
                .into(),
        ],
    };
    figures::write(folder, &run)?;
    Ok(())
}

/// Two panels, the values and their ratios, for each group of configurations that differ in the x
/// axis only.
fn panels(study: &Study<'_>) -> Vec<Panel> {
    let axis = Axis::of(study);
    let mut groups: Vec<Vec<&Outcome>> = Vec::new();
    for outcome in &study.outcomes {
        let key = axis.group(&outcome.configuration);
        let is_same = |group: &&mut Vec<&Outcome>| {
            group.first().is_some_and(|one| axis.group(&one.configuration) == key)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(outcome),
            None => groups.push(vec![outcome]),
        }
    }
    let mut panels = Vec::new();
    for (number, group) in (1..).zip(&groups) {
        let Some(first) = group.first() else { continue };
        let shown = Shown { study, axis, group, first: &first.configuration };
        panels.push(shown.values(number));
        panels.push(shown.ratios(number));
    }
    panels
}

/// A group of configurations to be shown.
struct Shown<'a> {
    study: &'a Study<'a>,
    axis: Axis,
    group: &'a [&'a Outcome],
    first: &'a Configuration,
}

impl Shown<'_> {
    fn places(&self) -> Vec<u32> {
        let mut places: Vec<u32> =
            self.group.iter().map(|one| self.axis.value(&one.configuration)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The workloads, in their order.
    fn workloads(&self) -> Vec<Workload> {
        let mut workloads = Vec::new();
        for outcome in self.group {
            if !workloads.contains(&outcome.configuration.workload) {
                workloads.push(outcome.configuration.workload);
            }
        }
        workloads
    }

    /// A series for each workload and each placement but the first `skip` ones.
    fn series(
        &self,
        skip: usize,
        of: impl Fn(&Outcome, &PlacementOutcome) -> Option<f64>,
    ) -> Vec<Series> {
        let mut all = Vec::new();
        for workload in self.workloads() {
            let of_workload: Vec<&&Outcome> =
                self.group.iter().filter(|one| one.configuration.workload == workload).collect();
            let count = of_workload.first().map_or(0, |one| one.placements.len());
            for at in skip..count {
                let value = |place: u32| {
                    let is_there = |one: &&&&Outcome| self.axis.value(&one.configuration) == place;
                    let outcome = of_workload.iter().find(is_there)?;
                    of(outcome, outcome.placements.get(at)?)
                };
                let Some(placed) = of_workload.first().and_then(|one| one.placements.get(at))
                else {
                    continue;
                };
                all.push(Series {
                    name: format!("{workload} {}", placement_name(workload, &placed.placement)),
                    values: self.places().into_iter().map(value).collect(),
                });
            }
        }
        all
    }

    fn panel(&self, name: String, title: &str, y_name: &str, series: Vec<Series>) -> Panel {
        let source = self.study.arguments.source();
        let load = match load_name(&self.first.load) {
            load if self.first.load.threads > 0 => format!(", load {load}"),
            _ => String::new(),
        };
        Panel {
            name,
            title: format!("{title} by {}{load} ({source})", self.axis.name()),
            x_name: self.axis.name().into(),
            y_name: y_name.into(),
            shape: Shape::Lines,
            scale: Scale::Linear,
            x: self.places().iter().map(u32::to_string).collect(),
            series,
        }
    }

    fn values(&self, number: u32) -> Panel {
        let direction = self.first.direction();
        let is_kv = self.first.workload == Workload::KeyValue;
        let (name, title, y_name, unit) = match direction {
            Direction::LowerIsBetter => ("latency", "Latency", "us, median", 1e3),
            Direction::HigherIsBetter if is_kv => ("throughput", "Throughput", "kops", 1e3),
            Direction::HigherIsBetter => ("throughput", "Throughput", "Mops", 1e6),
        };
        let value = |_: &Outcome, placed: &PlacementOutcome| {
            Some(placed.mean(|one| one.metric(direction)) / unit)
        };
        let mut series = self.series(0, value);
        series.extend(self.published());
        self.panel(format!("{name}-{number}"), title, y_name, series)
    }

    fn ratios(&self, number: u32) -> Panel {
        let value = |_: &Outcome, placed: &PlacementOutcome| {
            placed.comparison.map(|comparison| comparison.interval.ratio)
        };
        let series = self.series(1, value);
        let title = match self.first.direction() {
            Direction::LowerIsBetter => "Latency relative to local memory",
            Direction::HigherIsBetter => "Throughput relative to local memory",
        };
        let panel = self.panel(format!("ratio-{number}"), title, "ratio", series);
        Panel { shape: Shape::Bars, ..panel }
    }

    /// The published values, if these are the figure's places.
    fn published(&self) -> Vec<Series> {
        let is_figure_5 = self.study.arguments.figure == Some(Preset::ThroughputByWorkers)
            && self.axis == Axis::Workers
            && self.places() == published::FIGURE_5_WORKERS;
        if !is_figure_5 {
            return Vec::new();
        }
        let series = |(name, values): (&str, [f64; 5])| Series {
            name: format!("published {name}"),
            values: values.into_iter().map(Some).collect(),
        };
        published::FIGURE_5.into_iter().map(series).collect()
    }
}
