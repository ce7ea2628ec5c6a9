//! Figure 19: requests within and out of the rack through one ring and through two.

use rackpool_report::figures::{Figure, Shape};

use super::{Sizes, panel, series, statement};
use crate::measure::median;
use crate::mixture::{Percentiles, Way, mix};

/// By how much percentiles are lower in the paper, at most, in percent.
const GAINS: [(&str, f64); 3] = [("p50", 21.7), ("p99", 30.9), ("p999", 51.5)];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let rounds: Vec<[Percentiles; 2]> =
        (0..sizes.rounds as u64).map(|seed| [mix(Way::One, seed), mix(Way::Two, seed)]).collect();
    let middle = |way: usize, part: usize| {
        median(rounds.iter().map(|round| round[way].all[part] / 1e3).collect())
    };
    let labels = GAINS.map(|(name, _)| name.to_owned()).to_vec();
    let mut times = panel("rings", "All requests", ("percentile", "us"), labels);
    times.shape = Shape::Bars;
    for (way, name) in ["one ring", "two rings (rackpool)"].into_iter().enumerate() {
        times.series.push(series(name, (0..3).map(|part| middle(way, part))));
    }
    let statements = GAINS.into_iter().enumerate().map(|(part, (name, gain))| {
        let lower = (1.0 - middle(1, part) / middle(0, part)) * 100.0;
        statement(
            &format!("two rings lower {name} by up to {gain} %"),
            format!("by {lower:.0} %"),
            lower >= gain,
            "The percentiles of short rounds vary by some points: `cargo x bench mixture` measures nine.",
        )
    });
    Ok(Figure {
        number: 19,
        title: "One ring and two".into(),
        setting: "Requests of 16 threads, a fifth of them for another rack; with one ring the \
                  daemon completes each message before the next."
            .into(),
        statements: statements.collect(),
        panels: vec![times],
        notes: Vec::new(),
    })
}
