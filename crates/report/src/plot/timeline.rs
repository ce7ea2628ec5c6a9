//! Throughput of each workload over its time.

use plotters_backend::DrawingBackend;

use super::wording::{WIDTH, entries, plain, rate_unit, setting};
use crate::axis::Axis;
use crate::canvas::{Canvas, Error};
use crate::frame::{Frame, MARGIN, heading, legend};
use crate::palette;
use rackpool_ycsb::{Sample, WorkloadResult};

pub(super) fn caption(results: &[WorkloadResult]) -> String {
    let names = results.iter().map(|result| result.name.as_str()).collect::<Vec<_>>();
    format!("Throughput over time, for {}.", names.join(", "))
}

pub(super) fn draw<DB: DrawingBackend>(
    results: &[WorkloadResult],
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let samples = || results.iter().flat_map(shown);
    let most = samples().map(|sample| sample.throughput).fold(0.0, f64::max);
    let (unit, unit_name) = rate_unit(most);
    let subtitle = format!(
        "{unit_name}, over each tenth of a second, while all threads work; {}",
        setting(results)
    );
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
        let middles = middles(shown(result));
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

/// Returns the samples during which all threads worked; at least one. After the end of a thread the
/// others have its core, so their rate is not the workload's.
fn shown(result: &WorkloadResult) -> &[Sample] {
    let end = result.all_worked_seconds.unwrap_or(f64::INFINITY);
    let whole = result.timeline.iter().take_while(|sample| sample.seconds <= end).count();
    let shown = whole.max(1).min(result.timeline.len());
    &result.timeline[..shown]
}

/// Returns the middle of each sample's time (seconds), with its rate.
fn middles(samples: &[Sample]) -> Vec<(f64, f64)> {
    let starts = std::iter::once(0.0).chain(samples.iter().map(|sample| sample.seconds));
    starts
        .zip(samples)
        .map(|(start, sample)| ((start + sample.seconds) / 2.0, sample.throughput))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::result;

    #[test]
    fn a_line_ends_when_the_first_worker_does() {
        let sample = |seconds| Sample { seconds, operations: 1, throughput: 1.0 };
        let timeline: Vec<Sample> = [0.1, 0.2, 0.3, 0.4].map(sample).into();
        let ended = |all_worked_seconds| WorkloadResult {
            timeline: timeline.clone(),
            all_worked_seconds,
            ..result()
        };
        let count = |all_worked| shown(&ended(all_worked)).len();
        assert_eq!([None, Some(0.35), Some(0.01)].map(count), [4, 3, 1]);
        let none = WorkloadResult { timeline: Vec::new(), ..result() };
        assert_eq!(shown(&none).len(), 0);
    }
}
