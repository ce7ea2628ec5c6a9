//! The results as a table and as comma-separated values.

use std::fmt::Write as _;

use rackpool_numa::{Experiment, Host, Kind, Outcome, Pacing};
use rackpool_output::Style;

const HEADS: [&str; 11] = [
    "operation",
    "bytes",
    "queue pairs",
    "in flight",
    "workers",
    "load",
    "card's node",
    "other node",
    "other/card",
    "95 %",
    "predicted",
];

/// One experiment in words.
pub(super) fn describe(experiment: &Experiment) -> String {
    format!(
        "{} of {} B through {} queue pairs",
        kind(experiment),
        experiment.bytes,
        experiment.queue_pairs
    )
}

const fn kind(experiment: &Experiment) -> &'static str {
    match experiment.kind {
        Kind::Read => "read",
        Kind::Write => "write",
    }
}

fn in_flight(experiment: &Experiment) -> u16 {
    match experiment.pacing {
        Pacing::Closed => 1,
        Pacing::Open(window) => window,
    }
}

/// The first line: where the values come from.
fn source(host: Host) -> String {
    match host {
        Host::Model { dilation } => format!(
            "model of two NUMA nodes, times dilated {dilation} times: nothing of this machine is \
             measured"
        ),
        Host::Real { card, other } => {
            format!("registered memory on node {card} (the card's) and on node {other}")
        }
    }
}

fn cells(outcome: &Outcome) -> Vec<String> {
    let experiment = &outcome.experiment;
    let value = |side: &rackpool_numa::Measurement| match experiment.pacing {
        Pacing::Closed => format!("{:.3} us", side.p50_ns / 1e3),
        Pacing::Open(_) => format!("{:.3} M/s", side.rate / 1e6),
    };
    let ratio = outcome.ratio;
    vec![
        kind(experiment).into(),
        experiment.bytes.to_string(),
        experiment.queue_pairs.to_string(),
        in_flight(experiment).to_string(),
        experiment.workers.threads.to_string(),
        experiment.load_threads.to_string(),
        value(&outcome.local),
        value(&outcome.remote),
        format!("{:.4}", ratio.mean),
        format!("{:.4}-{:.4}", ratio.low, ratio.high),
        outcome.predicted.map_or_else(|| "-".into(), |predicted| format!("{predicted:.4}")),
    ]
}

/// For people: a median latency in a closed loop, a rate in an open one.
pub(super) fn table(host: Host, outcomes: &[Outcome], negligible: f64, style: Style) -> String {
    let mut rows: Vec<Vec<String>> = vec![HEADS.iter().map(ToString::to_string).collect()];
    rows[0].push("verdict".into());
    for outcome in outcomes {
        let mut row = cells(outcome);
        row.push(outcome.verdict(negligible).to_string());
        rows.push(row);
    }
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=HEADS.len()).map(width).collect();
    let mut text = format!("{}\n", source(host));
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:>width$}  ");
        }
        let line = line.trim_end();
        let _ = match number {
            0 => writeln!(text, "{}", style.bold(line)),
            _ => writeln!(text, "{line}"),
        };
    }
    text
}

/// For programs: all that was measured, with `model` or `host` in the first column.
pub(super) fn csv(host: Host, outcomes: &[Outcome], negligible: f64) -> String {
    let mut text =
        String::from("source,operation,bytes,queue_pairs,in_flight,workers,load_threads");
    for side in ["card", "other"] {
        for column in ["mean_ns", "deviation_ns", "p50_ns", "p99_ns", "rate", "operations"] {
            let _ = write!(text, ",{side}_{column}");
        }
    }
    text.push_str(",ratio,ratio_low,ratio_high,predicted,verdict\n");
    let source = if matches!(host, Host::Model { .. }) { "model" } else { "host" };
    for outcome in outcomes {
        let experiment = &outcome.experiment;
        let _ = write!(
            text,
            "{source},{},{},{},{},{},{}",
            kind(experiment),
            experiment.bytes,
            experiment.queue_pairs,
            in_flight(experiment),
            experiment.workers.threads,
            experiment.load_threads
        );
        for side in [&outcome.local, &outcome.remote] {
            let _ = write!(
                text,
                ",{:.1},{:.1},{:.1},{:.1},{:.1},{}",
                side.latency_ns,
                side.deviation_ns,
                side.p50_ns,
                side.p99_ns,
                side.rate,
                side.operations
            );
        }
        let (ratio, verdict) = (outcome.ratio, outcome.verdict(negligible));
        let predicted = outcome.predicted.map_or_else(String::new, |value| format!("{value:.5}"));
        let _ = writeln!(
            text,
            ",{:.5},{:.5},{:.5},{predicted},{verdict}",
            ratio.mean, ratio.low, ratio.high
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use rackpool_numa::{Measurement, Ratio};

    use super::*;

    fn outcome() -> Outcome {
        let side = |p50_ns| Measurement {
            latency_ns: p50_ns,
            deviation_ns: 1.0,
            p50_ns,
            p99_ns: 3000.0,
            rate: 4e5,
            operations: 100,
        };
        Outcome {
            experiment: Experiment::default(),
            local: side(2300.0),
            remote: side(2384.0),
            ratio: Ratio { mean: 1.0365, low: 1.036, high: 1.037 },
            predicted: Some(1.0365),
        }
    }

    #[test]
    fn what_a_model_says_is_labelled_model() {
        let model = Host::Model { dilation: 20 };
        let text = table(model, &[outcome()], 0.01, Style::Plain);
        assert!(text.starts_with("model of two NUMA nodes"), "{text}");
        assert!(text.contains("2.300 us") && text.contains("3.7 % more"), "{text}");
        let text = csv(model, &[outcome()], 0.01);
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let (heads, row) = (lines.next().unwrap(), lines.next().unwrap());
        assert_eq!(heads.len(), row.len());
        assert_eq!((row[0], row.last()), ("model", Some(&"3.7 % more")));
    }
}
