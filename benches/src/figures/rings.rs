//! Figure 19: requests within and out of the rack through one ring and through two.

use rackpool_report::figures::{Figure, Shape};

use super::{Sizes, panel, series, statement};
use crate::measure::median;
use crate::mixture::{Percentiles, Way, mix};

/// By how much percentiles are lower in the paper, at most, in percent.
const GAINS: [(&str, f64); 3] = [("p50", 21.7), ("p99", 30.9), ("p999", 51.5)];

pub(super) fn measure(sizes: &Sizes) -> anyhow::Result<Figure> {
    let ways = [Way::One, Way::OneInOrder, Way::Two];
    let rounds: Vec<[Percentiles; 3]> =
        (0..sizes.rounds as u64).map(|seed| ways.map(|way| mix(way, seed))).collect();
    let middle = |way: usize, part: usize| {
        median(rounds.iter().map(|round| round[way].all[part] / 1e3).collect())
    };
    // By how many percent two rings lower a percentile of one.
    let less = |part: usize, way: usize| (1.0 - middle(2, part) / middle(way, part)) * 100.0;
    let labels = GAINS.map(|(name, _)| name.to_owned()).to_vec();
    let mut times = panel("rings", "All requests", ("percentile", "us"), labels);
    times.shape = Shape::Bars;
    for (way, name) in ["one ring", "one ring, no waits", "two rings"].into_iter().enumerate() {
        times.series.push(series(name, (0..3).map(|part| middle(way, part))));
    }
    let statements = GAINS.into_iter().enumerate().map(|(part, (name, gain))| {
        let lower = less(part, 0);
        statement(
            &format!("two rings lower {name} by up to {gain} %"),
            format!("by {lower:.0} %, by {:.0} % if the one ring does not wait", less(part, 1)),
            lower >= gain,
            "The model's load leaves the ring free too often.",
        )
    });
    Ok(Figure {
        id: "19".into(),
        title: "One ring and two".into(),
        setting: "A model with rackpool's rings: requests of 16 threads, a fifth of them for \
                  another rack. With one ring the daemon completes each message before the next, or \
                  passes it on without a wait and answers in order."
            .into(),
        statements: statements.collect(),
        panels: vec![times],
        notes: Vec::new(),
    })
}
