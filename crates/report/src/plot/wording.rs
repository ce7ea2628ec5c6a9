//! What all plots share: their width, and how they name results and write numbers.

use plotters::style::RGBColor;
use rackpool_output::numbers::{counted, latency};
use rackpool_ycsb::WorkloadResult;

use crate::palette;

/// Width of every plot, in logical pixels.
pub(super) const WIDTH: u32 = 960;

/// Returns the results' names, with the distribution where a name occurs more than once.
pub(super) fn labels(results: &[WorkloadResult]) -> Vec<String> {
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
pub(super) fn entries(results: &[WorkloadResult]) -> Vec<(String, RGBColor)> {
    labels(results).into_iter().enumerate().map(|(i, name)| (name, palette::series(i))).collect()
}

/// Returns the size and the name of a unit that suits the largest rate.
pub(super) fn rate_unit(most: f64) -> (f64, &'static str) {
    match most {
        m if m >= 2e6 => (1e6, "million operations per second"),
        m if m >= 2e3 => (1e3, "thousand operations per second"),
        _ => (1.0, "operations per second"),
    }
}

/// Formats a number on an axis without superfluous digits.
pub(super) fn plain(value: f64) -> String {
    let digits = format!("{value:.3}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time (ns) on an axis: `1 µs`, not `1.00 µs`.
pub(super) fn time(ns: f64) -> String {
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
pub(super) fn setting(results: &[WorkloadResult]) -> String {
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
