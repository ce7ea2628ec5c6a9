//! Throughput of each workload over its time.

use plotters_backend::DrawingBackend;

use super::{WIDTH, entries, plain, rate_unit, setting};
use crate::report::axis::Axis;
use crate::report::canvas::{Canvas, Error};
use crate::report::frame::{Frame, MARGIN, heading, legend};
use crate::report::palette;
use crate::ycsb::{Sample, WorkloadResult};

pub(super) fn caption(results: &[WorkloadResult]) -> String {
    let names = results.iter().map(|result| result.name.as_str()).collect::<Vec<_>>();
    format!("Throughput over time, for {}.", names.join(", "))
}

pub(super) fn draw<DB: DrawingBackend>(
    results: &[WorkloadResult],
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let samples = || results.iter().flat_map(|result| &result.timeline);
    let most = samples().map(|sample| sample.throughput).fold(0.0, f64::max);
    let (unit, unit_name) = rate_unit(most);
    let subtitle = format!("{unit_name}, over each tenth of a second; {}", setting(results));
    heading(canvas, "Throughput over time", &subtitle)?;
    let right = f64::from(WIDTH) - MARGIN;
    legend(canvas, &entries(results), (right, 30.0))?;
    let frame = Frame {
        left: MARGIN + 46.0,
        top: 90.0,
        right,
        bottom: 370.0,
        x: Axis::linear(samples().map(|sample| sample.seconds).fold(0.0, f64::max)),
        y: Axis::linear(most / unit),
    };
    frame.uprights(canvas, plain)?;
    frame.levels(canvas, plain)?;
    frame.name_x(canvas, "seconds since the workload's start")?;
    for (i, result) in results.iter().enumerate() {
        let middles = middles(&result.timeline);
        let points: Vec<_> =
            middles.into_iter().map(|(at, rate)| frame.at(at, rate / unit)).collect();
        match points.as_slice() {
            [] => {}
            [only] => canvas.disc(*only, 4.0, palette::series(i))?,
            several => canvas.line(several, 2.0, palette::series(i))?,
        }
    }
    Ok(())
}

/// The middle of each sample's time (seconds), with its rate.
fn middles(samples: &[Sample]) -> Vec<(f64, f64)> {
    let starts = std::iter::once(0.0).chain(samples.iter().map(|sample| sample.seconds));
    starts
        .zip(samples)
        .map(|(start, sample)| ((start + sample.seconds) / 2.0, sample.throughput))
        .collect()
}
