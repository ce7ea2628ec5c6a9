//! The plots of a report.

mod ablation;
mod distribution;
mod heat_map;
mod percentiles;
mod throughput;
mod timeline;

use plotters::style::RGBColor;
use plotters_backend::DrawingBackend;

use super::canvas::{Canvas, Error};
use super::palette;
use super::{Ablation, DemoRun, HeatMap};
use crate::ycsb::{WorkloadResult, counted, latency};

/// A plot of a report with its data. Each plot draws itself on every backend.
#[derive(Debug, Clone, Copy)]
pub(super) enum Plot<'a> {
    Throughput(&'a [WorkloadResult]),
    Percentiles(&'a [WorkloadResult]),
    Distribution(&'a [WorkloadResult]),
    Timeline(&'a [WorkloadResult]),
    Ablation(&'a Ablation),
    HeatMap(&'a HeatMap),
}

impl<'a> Plot<'a> {
    /// Returns all plots of a run, in the order of the page.
    pub(super) fn of(run: &'a DemoRun) -> Vec<Self> {
        let results = run.results.as_slice();
        let mut plots = vec![
            Self::Throughput(results),
            Self::Percentiles(results),
            Self::Distribution(results),
            Self::Timeline(results),
        ];
        plots.extend(run.ablation.as_ref().map(Self::Ablation));
        plots.extend(run.heat.as_ref().map(Self::HeatMap));
        plots
    }

    /// The name of the plot's file, without extension.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Throughput(_) => "throughput",
            Self::Percentiles(_) => "latency-percentiles",
            Self::Distribution(_) => "latency-distribution",
            Self::Timeline(_) => "throughput-over-time",
            Self::Ablation(_) => "swap-ablation",
            Self::HeatMap(_) => "heat-of-pages",
        }
    }

    /// A text alternative for readers who cannot see the plot.
    pub(super) fn caption(self) -> String {
        match self {
            Self::Throughput(results) => throughput::caption(results),
            Self::Percentiles(results) => percentiles::caption(results),
            Self::Distribution(results) => distribution::caption(results),
            Self::Timeline(results) => timeline::caption(results),
            Self::Ablation(ablation) => ablation::caption(ablation),
            Self::HeatMap(map) => heat_map::caption(map),
        }
    }

    /// Width and height in logical pixels.
    pub(super) fn size(self) -> (u32, u32) {
        match self {
            Self::Percentiles(results) => (WIDTH, percentiles::height(results)),
            Self::HeatMap(map) => (WIDTH, heat_map::height(map)),
            _ => (WIDTH, 440),
        }
    }

    /// Draws the plot on white.
    pub(super) fn draw<DB: DrawingBackend>(
        self,
        canvas: &mut Canvas<'_, DB>,
    ) -> Result<(), Error<DB>> {
        canvas.cover(palette::PAPER)?;
        match self {
            Self::Throughput(results) => throughput::draw(results, canvas),
            Self::Percentiles(results) => percentiles::draw(results, canvas),
            Self::Distribution(results) => distribution::draw(results, canvas),
            Self::Timeline(results) => timeline::draw(results, canvas),
            Self::Ablation(ablation) => ablation::draw(ablation, canvas),
            Self::HeatMap(map) => heat_map::draw(map, canvas),
        }?;
        canvas.present()
    }
}

/// Width of every plot, in logical pixels.
const WIDTH: u32 = 960;

/// Returns the results' names, with the distribution where a name occurs more than once.
fn labels(results: &[WorkloadResult]) -> Vec<String> {
    let alone = |name: &str| results.iter().filter(|other| other.name == name).count() == 1;
    let label = |result: &WorkloadResult| {
        if alone(&result.name) {
            result.name.clone()
        } else {
            format!("{} {}", result.name, result.distribution)
        }
    };
    results.iter().map(label).collect()
}

/// Returns names and colours of all results, for a legend.
fn entries(results: &[WorkloadResult]) -> Vec<(String, RGBColor)> {
    labels(results).into_iter().enumerate().map(|(i, name)| (name, palette::series(i))).collect()
}

/// Returns the size and the name of a unit that suits the largest rate.
fn rate_unit(most: f64) -> (f64, &'static str) {
    match most {
        m if m >= 2e6 => (1e6, "million operations per second"),
        m if m >= 2e3 => (1e3, "thousand operations per second"),
        _ => (1.0, "operations per second"),
    }
}

/// Formats a number on an axis without superfluous digits.
fn plain(value: f64) -> String {
    let digits = format!("{value:.3}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time (ns) on an axis: `1 µs`, not `1.00 µs`.
fn time(ns: f64) -> String {
    let text = latency(ns);
    match text.split_once(' ') {
        Some((digits, unit)) if digits.contains('.') => {
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            format!("{digits} {unit}")
        }
        _ => text,
    }
}

/// Describes racks and threads, for the line below a heading.
fn setting(results: &[WorkloadResult]) -> String {
    let Some(first) = results.first() else { return String::new() };
    let same = results.iter().all(|result| {
        (result.threads, result.racks, result.value_bytes)
            == (first.threads, first.racks, first.value_bytes)
    });
    if !same {
        return "threads and racks differ: see the table".to_owned();
    }
    format!(
        "{} in {}, values of {} B",
        counted(first.threads as u64, "thread", "threads"),
        counted(first.racks as u64, "rack", "racks"),
        first.value_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_an_axis_are_short() {
        assert_eq!([0.0, 0.5, 20.0, 1.25, 1000.0].map(plain), ["0", "0.5", "20", "1.25", "1000"]);
        let times = [100.0, 1e3, 2e4, 1e5, 1.5e6].map(time);
        assert_eq!(times, ["100 ns", "1 µs", "20 µs", "100 µs", "1.5 ms"]);
        assert_eq!(rate_unit(812_000.0).0, 1e3);
        assert_eq!(rate_unit(8_120_000.0).0, 1e6);
    }
}
