//! Times of puts and gets of objects, for each size, on a logarithmic axis.

use plotters_backend::DrawingBackend;

use super::wording::{WIDTH, time};
use crate::axis::Axis;
use crate::canvas::{Align, Canvas, Error};
use crate::frame::{Frame, LABEL, MARGIN, NAME, VALUE, heading, legend};
use crate::objects::Objects;
use crate::palette::{self, GRID};
use rackpool_output::numbers::{counted, latency};

const NAMES: [&str; 4] = ["put", "get", "first get in another rack", "later gets there"];
/// The colours, as indices of the series.
const COLOURS: [usize; 4] = [3, 0, 4, 1];
/// Height of a line for one time, and of the lines of one size.
const LINE: f64 = 22.0;
const SIZE: f64 = 104.0;
const TOP: f64 = 84.0;

pub(super) fn caption(objects: &Objects) -> String {
    let each = objects.sizes.iter().map(|times| format!("{}: {}", times.size(), times.times()));
    format!("Median times of objects by size. {}.", each.collect::<Vec<_>>().join(". "))
}

pub(super) fn height(objects: &Objects) -> u32 {
    let sizes = u32::try_from(objects.sizes.len()).unwrap_or(1);
    160 + sizes * 104
}

pub(super) fn draw<DB: DrawingBackend>(
    objects: &Objects,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    heading(canvas, "Objects, read in place", "median time of an operation, logarithmic")?;
    let right = f64::from(WIDTH) - MARGIN;
    let colours = COLOURS.map(palette::series);
    let entries: Vec<_> = NAMES.map(str::to_owned).into_iter().zip(colours).collect();
    legend(canvas, &entries, (right, 30.0))?;
    let all = || objects.sizes.iter().flat_map(|times| times.all());
    let least = all().fold(f64::INFINITY, f64::min);
    let sizes = objects.sizes.len() as f64;
    let frame = Frame {
        left: MARGIN + 130.0,
        top: TOP,
        right: right - 20.0,
        bottom: TOP + sizes * SIZE,
        // Room for the numbers at the right.
        x: Axis::log(least / 1.6, all().fold(least, f64::max) * 2.5),
        y: Axis::Linear { to: sizes },
    };
    frame.uprights(canvas, time)?;
    for (i, times) in objects.sizes.iter().enumerate() {
        let top = frame.top + i as f64 * SIZE;
        if i > 0 {
            canvas.line(&[(MARGIN, top), (frame.right, top)], 1.0, GRID)?;
        }
        let middle = top + SIZE / 2.0;
        canvas.text(&times.size(), (MARGIN, middle - 9.0), Align::Left, NAME)?;
        let count = counted(times.objects, "object", "objects");
        canvas.text(&count, (MARGIN, middle + 11.0), Align::Left, LABEL)?;
        for (line, (value, colour)) in times.all().into_iter().zip(colours).enumerate() {
            let y = middle + (line as f64 - 1.5) * LINE;
            let (x, _) = frame.at(value, 0.0);
            canvas.line(&[(frame.left, y), (x, y)], 2.0, colour)?;
            canvas.disc((x, y), 5.5, colour)?;
            canvas.text(&latency(value), (x + 12.0, y), Align::Left, VALUE)?;
        }
    }
    canvas.text(&objects.setting, (MARGIN, frame.bottom + 50.0), Align::Left, LABEL)
}
