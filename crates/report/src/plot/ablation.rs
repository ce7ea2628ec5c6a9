//! Throughput with and without swaps of pages, as pairs of bars.

use plotters_backend::DrawingBackend;
use rackpool_model::ByteSize;

use super::throughput::short;
use super::wording::{WIDTH, plain, rate_unit};
use crate::axis::Axis;
use crate::canvas::{Align, Canvas, Error};
use crate::frame::{Frame, LABEL, MARGIN, NAME, VALUE, heading, legend};
use crate::palette;
use crate::swap_runs::{Ablation, AblationRun};
use rackpool_output::numbers::{counted, grouped, rounded};

/// The runs of each distribution: without swaps, with swaps.
fn pairs(ablation: &Ablation) -> Vec<[&AblationRun; 2]> {
    let still = ablation.runs.iter().filter(|run| !run.swap);
    let pair = |still| {
        let same = |run: &&AblationRun| run.result.distribution == still_of(still);
        let moving = ablation.runs.iter().filter(|run| run.swap).find(same)?;
        Some([still, moving])
    };
    still.filter_map(pair).collect()
}

fn still_of(run: &AblationRun) -> &str {
    &run.result.distribution
}

/// The gain of swaps in per cent.
fn gain([still, moving]: [&AblationRun; 2]) -> f64 {
    (moving.result.throughput / still.result.throughput.max(1e-9) - 1.0) * 100.0
}

pub(super) fn caption(ablation: &Ablation) -> String {
    let each = pairs(ablation).into_iter().map(|pair| {
        let [without, with] = pair.map(|run| grouped(rounded(run.result.throughput)));
        format!(
            "{}: {without} operations per second without, {with} with swaps ({:+.0} %)",
            still_of(pair[0]),
            gain(pair)
        )
    });
    format!("Throughput with and without swaps. {}.", each.collect::<Vec<_>>().join("; "))
}

pub(super) fn draw<DB: DrawingBackend>(
    ablation: &Ablation,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let pairs = pairs(ablation);
    let most = ablation.runs.iter().map(|run| run.result.throughput).fold(0.0, f64::max);
    let (unit, unit_name) = rate_unit(most);
    heading(canvas, "Hot pages move: with and without", unit_name)?;
    let right = f64::from(WIDTH) - MARGIN;
    let colours = [palette::series(4), palette::series(1)];
    let names = ["pages stay", "hot pages move"].map(str::to_owned);
    let entries: Vec<_> = names.into_iter().zip(colours).collect();
    legend(canvas, &entries, (right, 30.0))?;
    let frame = Frame {
        left: MARGIN + 46.0,
        top: 90.0,
        right,
        bottom: 350.0,
        x: Axis::Linear { to: pairs.len().max(1) as f64 },
        // Room for the gain above the bars.
        y: Axis::linear(most / unit * 1.12),
    };
    frame.levels(canvas, plain)?;
    let slot = (frame.right - frame.left) / pairs.len().max(1) as f64;
    let half = (slot * 0.16).min(64.0);
    for (i, pair) in pairs.iter().enumerate() {
        let mut highest = frame.bottom;
        for (run, (side, colour)) in pair.iter().zip([-1.05, 1.05].into_iter().zip(colours)) {
            let rate = run.result.throughput / unit;
            let (middle, top) = frame.at(i as f64 + 0.5, rate);
            let x = middle + side * half;
            canvas.rectangle([(x - half, top), (x + half, frame.bottom)], colour)?;
            canvas.text(&short(rate), (x, top - 13.0), Align::Centre, VALUE)?;
            highest = highest.min(top);
        }
        let (x, _) = frame.at(i as f64 + 0.5, 0.0);
        let gained = format!("{:+.0} %", gain(*pair));
        canvas.text(&gained, (x, highest - 34.0), Align::Centre, NAME)?;
        canvas.text(still_of(pair[0]), (x, frame.bottom + 22.0), Align::Centre, NAME)?;
        let [_, moving] = pair;
        let moved = format!(
            "{} moved, {} copied; {} made",
            counted(moving.moved, "page", "pages"),
            ByteSize(moving.copied_bytes),
            counted(moving.copies, "copy", "copies")
        );
        canvas.text(&moved, (x, frame.bottom + 42.0), Align::Centre, LABEL)?;
    }
    canvas.text(&ablation.setting, (MARGIN, frame.bottom + 72.0), Align::Left, LABEL)
}
