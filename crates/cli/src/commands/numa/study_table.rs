//! A study as a table and as comma-separated values.

use std::fmt::Write as _;

use rackpool_model::ByteSize;
use rackpool_numa::{
    Configuration, Direction, Latency, Load, Placement, PlacementOutcome, Side, Verdict, Workload,
};
use rackpool_output::Style;
use rackpool_output::numbers::micros;

use super::study::Study;

const HEADS: [&str; 16] = [
    "operation",
    "bytes",
    "QPs",
    "loop",
    "load",
    "workers",
    "placement",
    "local",
    "placed",
    "mean us",
    "sd us",
    "p99 us",
    "ratio",
    "95 % interval",
    "verdict",
    "predicted",
];

const NAMES: [&str; 30] = [
    "source",
    "fabric",
    "operation",
    "bytes",
    "queue_pairs",
    "loop",
    "load_threads",
    "load_node",
    "load_buffer_bytes",
    "load_write_percent",
    "workers",
    "worker_write_percent",
    "placement",
    "pairs",
    "local_operations",
    "local_per_second",
    "local_mean_ns",
    "local_deviation_ns",
    "local_p50_ns",
    "local_p99_ns",
    "operations",
    "per_second",
    "mean_ns",
    "deviation_ns",
    "p50_ns",
    "p99_ns",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
];

/// A placement compared with the first one of its configuration.
struct Row<'a> {
    configuration: &'a Configuration,
    baseline: &'a PlacementOutcome,
    placed: &'a PlacementOutcome,
    predicted_percent: Option<f64>,
}

impl Study<'_> {
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for outcome in &self.outcomes {
            let Some((baseline, others)) = outcome.placements.split_first() else { continue };
            let predicted_percent = self.predicted_percent(outcome);
            let configuration = &outcome.configuration;
            let row = |placed| Row { configuration, baseline, placed, predicted_percent };
            rows.extend(others.iter().map(row));
        }
        rows
    }
}

/// The name of a placement among those of its workload.
pub(super) fn placement_name(workload: Workload, placement: &Placement) -> String {
    let client = placement.client.memory.side();
    match (workload, placement.server, client) {
        (Workload::Read | Workload::Write, side, _) => side.to_string(),
        (_, Side::Local, _) => "both local".into(),
        (_, Side::Remote, Some(Side::Remote)) => "both remote".into(),
        (_, Side::Remote, _) => "server remote".into(),
    }
}

/// The load in a word: `-`, `4 on remote`.
pub(super) fn load_name(load: &Load) -> String {
    if load.threads == 0 { "-".into() } else { format!("{} on {}", load.threads, load.node) }
}

/// The mean of a latency over all measurements of a placement; `None` for an open loop.
pub(super) fn mean_of(placed: &PlacementOutcome, of: fn(&Latency) -> f64) -> Option<f64> {
    let has_latency = placed.measurements.iter().all(|one| one.latency.is_some());
    has_latency.then(|| placed.mean(|one| one.latency.as_ref().map_or(0.0, of)))
}

impl Row<'_> {
    /// The metric with its unit: `2.31 us`, `5.91 Mops`, `626 kops`.
    fn metric(&self, placed: &PlacementOutcome) -> String {
        let direction = self.configuration.direction();
        let value = placed.mean(|one| one.metric(direction));
        match (direction, self.configuration.workload) {
            (Direction::LowerIsBetter, _) => format!("{} us", micros(value)),
            (Direction::HigherIsBetter, Workload::KeyValue) => format!("{:.1} kops", value / 1e3),
            (Direction::HigherIsBetter, _) => format!("{:.3} Mops", value / 1e6),
        }
    }

    /// A latency of both placements.
    fn both(&self, of: fn(&Latency) -> f64) -> String {
        let text = |placed| mean_of(placed, of).map_or_else(|| "-".into(), micros);
        format!("{}/{}", text(self.baseline), text(self.placed))
    }

    fn cells(&self) -> Vec<String> {
        let Configuration { workload, bytes, queue_pairs, loop_kind, load, workers } =
            self.configuration;
        let comparison = self.placed.comparison;
        let text = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            workload.to_string(),
            bytes.to_string(),
            queue_pairs.to_string(),
            loop_kind.to_string(),
            load_name(load),
            workers.threads.to_string(),
            placement_name(*workload, &self.placed.placement),
            self.metric(self.baseline),
            self.metric(self.placed),
            self.both(|latency| latency.mean_ns),
            self.both(|latency| latency.deviation_ns),
            self.both(|latency| latency.p99_ns),
            text(comparison.map(|c| format!("{:.3}", c.interval.ratio))),
            text(comparison.map(|c| format!("{:.3}-{:.3}", c.interval.low, c.interval.high))),
            text(comparison.map(|c| c.verdict.to_string())),
            text(self.predicted_percent.map(|percent| format!("{percent:+.1} %"))),
        ]
    }

    /// The values of `NAMES` from `operation` on, and what follows them.
    fn values(&self) -> Vec<String> {
        let Configuration { workload, bytes, queue_pairs, loop_kind, load, workers } =
            self.configuration;
        let mut values = vec![
            workload.to_string(),
            bytes.to_string(),
            queue_pairs.to_string(),
            loop_kind.to_string(),
            load.threads.to_string(),
            load.node.to_string(),
            load.buffer_bytes.to_string(),
            load.write_percent.to_string(),
            workers.threads.to_string(),
            workers.write_percent.to_string(),
            placement_name(*workload, &self.placed.placement),
            self.placed.measurements.len().to_string(),
        ];
        for placed in [self.baseline, self.placed] {
            let operations: u64 = placed.measurements.iter().map(|one| one.operations).sum();
            values.push(operations.to_string());
            values.push(format!("{:.0}", placed.mean(|one| one.per_second)));
            let latencies: [fn(&Latency) -> f64; 4] =
                [|l| l.mean_ns, |l| l.deviation_ns, |l| l.p50_ns, |l| l.p99_ns];
            values.extend(latencies.map(|of| number(mean_of(placed, of), 1)));
        }
        let interval = self.placed.comparison.map(|comparison| comparison.interval);
        values.push(number(interval.map(|interval| interval.ratio), 5));
        values.push(number(interval.map(|interval| interval.low), 5));
        values.push(number(interval.map(|interval| interval.high), 5));
        values.push(match self.placed.comparison.map(|comparison| comparison.verdict) {
            Some(Verdict::Slower(_)) => "slower".into(),
            Some(Verdict::Faster(_)) => "faster".into(),
            Some(Verdict::NoEffect) => "no effect".into(),
            None => String::new(),
        });
        values.push(number(self.predicted_percent, 2));
        values
    }
}

/// A number with some decimals; nothing if there is none.
fn number(value: Option<f64>, decimals: usize) -> String {
    value.map(|value| format!("{value:.decimals$}")).unwrap_or_default()
}

pub(super) fn csv(study: &Study<'_>) -> String {
    let mut text = NAMES.join(",") + ",predicted_percent\n";
    for row in study.rows() {
        let _ = write!(text, "{},{},", study.arguments.source(), study.arguments.fabric);
        text.push_str(&row.values().join(","));
        text.push('\n');
    }
    text
}

pub(super) fn table(study: &Study<'_>, style: Style) -> String {
    let mut text = study.description() + "\n";
    text.push_str(&latencies(study));
    let rows: Vec<Vec<String>> = study.rows().iter().map(Row::cells).collect();
    text.push('\n');
    let source = study.arguments.source();
    let heads: Vec<String> = HEADS.iter().map(|head| (*head).to_owned()).collect();
    let mut all = vec![heads];
    all.extend(rows);
    for (at, row) in all.iter_mut().enumerate() {
        row.push(if at == 0 { "source".into() } else { source.into() });
    }
    text.push_str(&aligned(&all, style));
    text
}

/// The latencies of memory, node by node: the published figure 2 for this machine.
fn latencies(study: &Study<'_>) -> String {
    let (Some(topology), Some(latencies)) = (study.topology, study.latencies) else {
        return String::new();
    };
    let mut text =
        format!("latency of a load: {:.1} ns in the card's last-level cache", latencies.l3_ns);
    for (from, to, ns) in &latencies.between {
        let (from, to) = (topology.node(*from).id, topology.node(*to).id);
        let _ = write!(text, "; node {from} to {to}: {ns:.1} ns");
    }
    text.push('\n');
    let buffers = study.outcomes.iter().map(|outcome| outcome.configuration.load.buffer_bytes);
    if let Some(bytes) = buffers.max().filter(|bytes| *bytes > 0) {
        let _ = writeln!(text, "load: up to {} of private memory", ByteSize(bytes));
    }
    text
}

/// Rows with columns of one width each; the first row is the heading.
fn aligned(rows: &[Vec<String>], style: Style) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column| {
        let cells = rows.iter().filter_map(|row: &Vec<String>| row.get(column));
        cells.map(|cell: &String| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        let line = line.trim_end();
        text.push_str(&if at == 0 { style.bold(line).to_string() } else { line.to_owned() });
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use rackpool_numa::{
        ClientPlacement, Comparison, LoopKind, Measurement, NodeChoice, Outcome, RatioInterval,
        Workers,
    };

    use super::super::study_options::tests::parsed;
    use super::*;

    /// A closed loop of reads whose latency is 2 us local and 2.1 us remote.
    fn outcome() -> Outcome {
        let load = Load { threads: 0, node: NodeChoice::Any, buffer_bytes: 0, write_percent: 50 };
        let configuration = Configuration {
            workload: Workload::Read,
            bytes: 64,
            queue_pairs: 8,
            loop_kind: LoopKind::Closed,
            load,
            workers: Workers { threads: 0, write_percent: 90 },
        };
        let placed = |server, mean_ns: f64| {
            let latency =
                Latency { mean_ns, deviation_ns: 10.0, p50_ns: mean_ns, p99_ns: 2.0 * mean_ns };
            let client = ClientPlacement::on(NodeChoice::Local);
            PlacementOutcome {
                placement: Placement { server, client },
                measurements: vec![
                    Measurement {
                        operations: 7,
                        per_second: 4e5,
                        latency: Some(latency)
                    };
                    2
                ],
                comparison: None,
            }
        };
        let interval = RatioInterval::of_pairs(&[(2000.0, 2100.0), (2000.0, 2100.0)]).unwrap();
        let verdict = interval.verdict(configuration.direction(), 0.01);
        let mut remote = placed(Side::Remote, 2100.0);
        remote.comparison = Some(Comparison { interval, verdict });
        Outcome { configuration, placements: vec![placed(Side::Local, 2000.0), remote] }
    }

    #[test]
    fn every_output_says_that_a_model_is_one() {
        let arguments = parsed("--model");
        let outcomes = vec![outcome()];
        let study = Study { arguments: &arguments, topology: None, latencies: None, outcomes };
        let text = table(&study, Style::Plain);
        assert!(text.starts_with("MODEL over the emulated fabric"), "{text}");
        let row = text.lines().last().unwrap();
        for cell in ["read", "2.00 us", "2.10 us", "1.050", "slower by 5.0 %", "+3.7 %"] {
            assert!(row.contains(cell), "{cell}: {row}");
        }
        assert!(row.ends_with("model"), "{row}");
        let text = csv(&study);
        let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
        assert_eq!((rows.len(), rows[0].len()), (2, rows[1].len()), "{text}");
        let value = |name| rows[1][rows[0].iter().position(|head| *head == name).unwrap()];
        assert_eq!((value("source"), value("verdict")), ("model", "slower"));
        assert_eq!((value("operations"), value("local_mean_ns")), ("14", "2000.0"));
        assert_eq!((value("ratio"), value("predicted_percent")), ("1.05000", "3.65"));
    }
}
