//! Latency percentiles of each workload, on a logarithmic axis.

use plotters_backend::DrawingBackend;

use super::wording::{WIDTH, labels, setting, time};
use crate::axis::Axis;
use crate::canvas::{Align, Canvas, Error};
use crate::frame::{Frame, LABEL, MARGIN, NAME, VALUE, heading, legend};
use crate::palette::{AXIS, PERCENTILES};
use rackpool_output::numbers::latency;
use rackpool_ycsb::{LatencySummary, WorkloadResult};

const NAMES: [&str; 4] = ["p50", "p95", "p99", "p99.9"];
const ROW: f64 = 50.0;
const TOP: f64 = 84.0;

pub(super) fn caption(results: &[WorkloadResult]) -> String {
    let each = results.iter().map(|result| {
        let [p50, _, p99, _] = values(&result.overall).map(latency);
        format!("{} p50 {p50}, p99 {p99}", result.name)
    });
    format!("Latency percentiles by workload: {}.", each.collect::<Vec<_>>().join("; "))
}

pub(super) fn height(results: &[WorkloadResult]) -> u32 {
    let rows = u32::try_from(results.len()).unwrap_or(1);
    140 + rows * 50
}

pub(super) fn draw<DB: DrawingBackend>(
    results: &[WorkloadResult],
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let subtitle = format!("time of an operation, logarithmic; {}", setting(results));
    heading(canvas, "Latency percentiles by workload", &subtitle)?;
    let right = f64::from(WIDTH) - MARGIN;
    let entries: Vec<_> = NAMES.map(str::to_owned).into_iter().zip(PERCENTILES).collect();
    legend(canvas, &entries, (right, 30.0))?;
    let all = || results.iter().flat_map(|result| values(&result.overall));
    let least = all().fold(f64::INFINITY, f64::min);
    let rows = results.len() as f64;
    let frame = Frame {
        left: MARGIN + 150.0,
        top: TOP,
        right: right - 20.0,
        bottom: TOP + rows * ROW,
        // Room for the numbers at both ends.
        x: Axis::log(least / 1.6, all().fold(least, f64::max) * 1.6),
        y: Axis::Linear { to: rows },
    };
    frame.uprights(canvas, time)?;
    for (i, (result, label)) in results.iter().zip(labels(results)).enumerate() {
        let y = frame.top + (i as f64 + 0.5) * ROW;
        canvas.text(&label, (MARGIN, y - 8.0), Align::Left, NAME)?;
        canvas.text(&result.title, (MARGIN, y + 10.0), Align::Left, LABEL)?;
        let values = values(&result.overall);
        let places = values.map(|value| (frame.at(value, 0.0).0, y));
        canvas.line(&[places[0], places[3]], 2.0, AXIS)?;
        for (place, colour) in places.into_iter().zip(PERCENTILES) {
            canvas.disc(place, 6.5, colour)?;
        }
        let ends = [(places[0].0 - 13.0, Align::Right), (places[3].0 + 13.0, Align::Left)];
        for (value, (x, align)) in [values[0], values[3]].into_iter().zip(ends) {
            canvas.text(&latency(value), (x, y), align, VALUE)?;
        }
    }
    Ok(())
}

fn values(latency: &LatencySummary) -> [f64; 4] {
    [latency.p50_ns, latency.p95_ns, latency.p99_ns, latency.p999_ns].map(|ns| ns.max(1) as f64)
}
