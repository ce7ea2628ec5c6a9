//! Throughput of each workload, as bars.

use plotters_backend::DrawingBackend;

use super::wording::{WIDTH, plain, rate_unit, setting};
use crate::axis::Axis;
use crate::canvas::{Align, Canvas, Error};
use crate::frame::{Frame, LABEL, MARGIN, NAME, VALUE, heading};
use crate::palette;
use rackpool_output::numbers::{grouped, rounded};
use rackpool_ycsb::WorkloadResult;

pub(super) fn caption(results: &[WorkloadResult]) -> String {
    let each = results.iter().map(|result| {
        format!("{} {} operations per second", result.name, grouped(rounded(result.throughput)))
    });
    format!("Throughput by workload: {}.", each.collect::<Vec<_>>().join(", "))
}

pub(super) fn draw<DB: DrawingBackend>(
    results: &[WorkloadResult],
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let most = results.iter().map(|result| result.throughput).fold(0.0, f64::max);
    let (unit, unit_name) = rate_unit(most);
    heading(canvas, "Throughput by workload", &format!("{unit_name}; {}", setting(results)))?;
    let frame = Frame {
        left: MARGIN + 46.0,
        top: 90.0,
        right: f64::from(WIDTH) - MARGIN,
        bottom: 358.0,
        x: Axis::Linear { to: results.len() as f64 },
        y: Axis::linear(most / unit),
    };
    frame.levels(canvas, plain)?;
    let slot = (frame.right - frame.left) / results.len() as f64;
    let half = (slot * 0.31).min(64.0);
    for (i, result) in results.iter().enumerate() {
        let rate = result.throughput / unit;
        let (x, top) = frame.at(i as f64 + 0.5, rate);
        let corners = [(x - half, top), (x + half, frame.bottom)];
        canvas.rectangle(corners, palette::series(i))?;
        canvas.text(&short(rate), (x, top - 13.0), Align::Centre, VALUE)?;
        let lines = [(result.name.as_str(), 22.0, NAME), (&result.title, 42.0, LABEL)];
        for (text, below, font) in lines {
            canvas.text(text, (x, frame.bottom + below), Align::Centre, font)?;
        }
        if !result.title.ends_with(&result.distribution) {
            let distribution = &result.distribution;
            canvas.text(distribution, (x, frame.bottom + 60.0), Align::Centre, LABEL)?;
        }
    }
    Ok(())
}

/// Formats the rate above a bar: three digits.
pub(super) fn short(rate: f64) -> String {
    match rate {
        r if r >= 99.95 => grouped(rounded(r)),
        r if r >= 9.995 => format!("{r:.1}"),
        r => format!("{r:.2}"),
    }
}
