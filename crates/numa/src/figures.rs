//! The figures of Nelson and Palmieri (SRDS 2020) as experiments and plots.

use crate::experiment::{Experiment, Kind, Pacing, Workers};
use crate::request::Setting;
use crate::study::Outcome;

const QUEUE_PAIRS: [u16; 5] = [1, 2, 4, 8, 16];
const SIZES: [u32; 10] = [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const WORKERS: [u32; 5] = [0, 4, 8, 16, 48];
/// Clients of figures 4 and 5.
const CLIENTS: u16 = 8;
/// Operations in flight on a queue pair in an open loop: enough to keep the card busy.
const WINDOW: u16 = 16;
const KINDS: [Kind; 2] = [Kind::Read, Kind::Write];

/// A published figure that a study draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Figure 3: latency of 64 B by queue pairs.
    Latency,
    /// Figure 4: rate of 8 clients by size.
    Size,
    /// Figure 5: rate of 8 clients, 8 B, by threads that write the registered memory.
    Workers,
}

/// A plot: lines over named places.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name in file names, of a-z and `-`.
    pub name: &'static str,
    /// Headline.
    pub title: &'static str,
    /// Name of the x axis.
    pub x_name: &'static str,
    /// Name of the y axis, its unit first.
    pub y_name: &'static str,
    /// The places on the x axis.
    pub x: Vec<String>,
    /// Name and values of each line.
    pub lines: Vec<(String, Vec<f64>)>,
}

impl Figure {
    /// Its number in the publication.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Latency => 3,
            Self::Size => 4,
            Self::Workers => 5,
        }
    }

    /// Headline.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Latency => "Latency of 64 B by queue pairs",
            Self::Size => "Rate of 8 clients by size",
            Self::Workers => "Rate of 8 clients, 8 B, by threads that write the registered memory",
        }
    }

    /// The experiments, reads before writes.
    #[must_use]
    pub fn experiments(self) -> Vec<Experiment> {
        let base = Experiment::default();
        let open = Experiment { queue_pairs: CLIENTS, pacing: Pacing::Open(WINDOW), ..base };
        let of = |kind: Kind| -> Vec<Experiment> {
            match self {
                Self::Latency => {
                    QUEUE_PAIRS.map(|queue_pairs| Experiment { kind, queue_pairs, ..base }).to_vec()
                }
                Self::Size => SIZES.map(|bytes| Experiment { kind, bytes, ..open }).to_vec(),
                Self::Workers => WORKERS
                    .map(|threads| {
                        let workers = Workers { threads, writes: 90 };
                        Experiment { kind, bytes: 8, workers, ..open }
                    })
                    .to_vec(),
            }
        };
        KINDS.into_iter().flat_map(of).collect()
    }

    /// The plots of the outcomes of [`experiments`](Self::experiments), in their order.
    #[must_use]
    pub fn plots(self, outcomes: &[Outcome]) -> Vec<Plot> {
        let (x_name, x) = self.places();
        let (reads, writes) = outcomes.split_at(outcomes.len() / 2);
        let mut values = Vec::new();
        let mut ratios = Vec::new();
        for (kind, outcomes) in [("read", reads), ("write", writes)] {
            let sides = [
                (
                    "the card's node",
                    outcomes.iter().map(|found| self.value(found, false)).collect(),
                ),
                ("the other node", outcomes.iter().map(|found| self.value(found, true)).collect()),
            ];
            values.extend(sides.map(|(side, line)| (format!("{kind}, {side}"), line)));
            let percent = |found: &Outcome| found.ratio.mean * 100.0;
            ratios.push((kind.to_owned(), outcomes.iter().map(percent).collect()));
        }
        let (what, unit) = match self {
            Self::Latency => ("Median latency", "us"),
            Self::Size | Self::Workers => ("Rate", "million/s"),
        };
        let plot =
            |name, title, y_name, lines| Plot { name, title, x_name, y_name, x: x.clone(), lines };
        vec![
            plot("values", what, unit, values),
            plot("ratio", "The other node", "%, of the card's node", ratios),
        ]
    }

    fn places(self) -> (&'static str, Vec<String>) {
        match self {
            Self::Latency => ("queue pairs", QUEUE_PAIRS.map(|x| x.to_string()).to_vec()),
            Self::Size => ("bytes", SIZES.map(|x| x.to_string()).to_vec()),
            Self::Workers => ("threads", WORKERS.map(|x| x.to_string()).to_vec()),
        }
    }

    fn value(self, outcome: &Outcome, is_remote: bool) -> f64 {
        let side = if is_remote { &outcome.remote } else { &outcome.local };
        match self {
            Self::Latency => side.p50_ns / 1e3,
            Self::Size | Self::Workers => side.rate / 1e6,
        }
    }
}

/// Figure 6 of the publication from the model of a request: requests a second by load.
#[must_use]
pub fn requests() -> Plot {
    let places = ["none", "the card's node", "the other node"];
    let names = ["all on the card's node", "server on the other", "all on the other"];
    let rates = Setting::of_figure_6();
    let line = |at: usize| rates.iter().filter_map(|row| row.get(at)).map(|s| s.rate()).collect();
    Plot {
        name: "requests",
        title: "Requests of a key-value server",
        x_name: "programs that load",
        y_name: "thousand/s",
        x: places.map(String::from).to_vec(),
        lines: names.iter().enumerate().map(|(at, name)| ((*name).into(), line(at))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_an_experiment_for_each_place_of_both_operations() {
        for figure in [Figure::Latency, Figure::Size, Figure::Workers] {
            let experiments = figure.experiments();
            assert_eq!(experiments.len(), 2 * figure.places().1.len(), "{figure:?}");
            experiments.iter().for_each(|experiment| experiment.check().unwrap());
            assert!(
                experiments[0].kind == Kind::Read
                    && experiments.last().unwrap().kind == Kind::Write
            );
        }
    }

    #[test]
    fn the_plot_of_requests_is_complete() {
        let plot = requests();
        assert!(plot.lines.iter().all(|(_, values)| values.len() == plot.x.len()));
        assert!((plot.lines[0].1[0] - 626.0).abs() < 1e-6);
    }
}
