//! The cumulative distribution of latency.

use plotters_backend::DrawingBackend;

use super::wording::{WIDTH, entries, plain, setting, time};
use crate::axis::Axis;
use crate::canvas::{Canvas, Error};
use crate::frame::{Frame, MARGIN, heading, legend};
use crate::palette;
use rackpool_ycsb::{LatencySummary, WorkloadResult};

pub(super) fn caption(results: &[WorkloadResult]) -> String {
    let names = results.iter().map(|result| result.name.as_str()).collect::<Vec<_>>();
    format!("Cumulative distribution of latency, for {}.", names.join(", "))
}

pub(super) fn draw<DB: DrawingBackend>(
    results: &[WorkloadResult],
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let subtitle = "per cent of operations done within a time; time is logarithmic, and ends after \
                    the longest p99";
    heading(canvas, "Latency distribution", subtitle)?;
    let right = f64::from(WIDTH) - MARGIN;
    legend(canvas, &entries(results), (right, 30.0))?;
    let first = |result: &WorkloadResult| curve(&result.overall).first().map(|(ns, _)| *ns);
    let least = results.iter().filter_map(first).fold(f64::INFINITY, f64::min);
    let most = results.iter().map(|result| result.overall.p99_ns as f64).fold(0.0, f64::max) * 1.3;
    let frame = Frame {
        left: MARGIN + 46.0,
        top: 90.0,
        right,
        bottom: 370.0,
        x: Axis::log(least.min(most.max(1.0)), most),
        y: Axis::Linear { to: 100.0 },
    };
    frame.uprights(canvas, time)?;
    frame.levels(canvas, plain)?;
    frame.name_x(canvas, &setting(results))?;
    for (i, result) in results.iter().enumerate() {
        let mut shown = curve(&result.overall);
        shown.retain(|(ns, _)| *ns <= frame.x.end());
        // The curve stays level from its last point to the end of the axis.
        shown.extend(shown.last().map(|(_, share)| (frame.x.end(), *share)));
        let points: Vec<_> = shown.into_iter().map(|(ns, share)| frame.at(ns, share)).collect();
        canvas.line(&points, 2.5, palette::series(i))?;
    }
    Ok(())
}

/// Returns times (ns) with the per cent of operations done within them, from zero per cent on.
fn curve(latency: &LatencySummary) -> Vec<(f64, f64)> {
    let total = latency.count.max(1) as f64;
    let Some(first) = latency.buckets.first() else { return Vec::new() };
    // The lower end of the first bucket, estimated from the bucket ratio: a tenth below.
    let mut curve = vec![(first.upper_ns.max(1) as f64 / 1.1, 0.0)];
    let mut sum = 0;
    for bucket in &latency.buckets {
        sum += bucket.count;
        curve.push((bucket.upper_ns.max(1) as f64, sum as f64 / total * 100.0));
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_ycsb::Bucket;

    #[test]
    fn curves_climb_from_zero_to_a_hundred() {
        let buckets = [(100, 1), (200, 2), (400, 1)]
            .map(|(upper_ns, count)| Bucket { upper_ns, count })
            .to_vec();
        let latency = LatencySummary {
            count: 4,
            mean_ns: 200.0,
            p50_ns: 200,
            p95_ns: 400,
            p99_ns: 400,
            p999_ns: 400,
            max_ns: 400,
            buckets,
        };
        let shares: Vec<_> = curve(&latency).iter().map(|(_, share)| *share).collect();
        assert_eq!(shares, [0.0, 25.0, 75.0, 100.0]);
    }
}
