//! Pages over time, coloured by their hotness; below each cell a stripe of its home's colour.

use plotters::style::RGBColor;
use plotters_backend::DrawingBackend;

use super::WIDTH;
use crate::report::HeatMap;
use crate::report::canvas::{Align, Canvas, Error};
use crate::report::frame::{LABEL, MARGIN, heading, legend};
use crate::report::palette::{self, HEAT};

const TOP: f64 = 92.0;
const ROW: f64 = 20.0;
/// Of a row, what the cell takes, and the stripe of its home below it.
const CELL: f64 = 13.0;
const STRIPE: f64 = 4.0;
const LEFT: f64 = MARGIN + 70.0;

pub(super) fn height(map: &HeatMap) -> u32 {
    let rows = u32::try_from(map.pages.len()).unwrap_or(1).max(1);
    160 + rows * 20
}

pub(super) fn caption(map: &HeatMap) -> String {
    let moved = map.pages.iter().filter(|row| {
        let mut homes: Vec<u16> = row.cells.iter().filter_map(|cell| cell.home).collect();
        homes.dedup();
        homes.len() > 1
    });
    format!(
        "Hotness of {} pages over {:.0} seconds; {} of them changed their home.",
        map.pages.len(),
        map.seconds.last().copied().unwrap_or_default(),
        moved.count()
    )
}

/// Steps of hotness: below 4 is cold, by default; each further step is eight times as hot.
fn colour(milli: u64) -> RGBColor {
    let step = match milli {
        0..4_000 => 0,
        4_000..32_000 => 1,
        32_000..256_000 => 2,
        256_000..2_048_000 => 3,
        2_048_000..16_384_000 => 4,
        _ => 5,
    };
    HEAT[step]
}

pub(super) fn draw<DB: DrawingBackend>(
    map: &HeatMap,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    heading(canvas, "Heat of pages over time", &map.setting)?;
    let right = f64::from(WIDTH) - MARGIN;
    let steps = ["below 4", "4", "32", "256", "2,048", "16,384"].map(str::to_owned);
    legend(canvas, &steps.into_iter().zip(HEAT).collect::<Vec<_>>(), (right, 30.0))?;
    let mut homes: Vec<u16> =
        map.pages.iter().flat_map(|row| &row.cells).filter_map(|cell| cell.home).collect();
    homes.sort_unstable();
    homes.dedup();
    let homes = homes.iter().map(|rack| (format!("home: rack {rack}"), home_colour(*rack)));
    legend(canvas, &homes.collect::<Vec<_>>(), (right, 72.0))?;
    canvas.text("page", (LEFT - 10.0, 72.0), Align::Right, LABEL)?;
    let columns = map.seconds.len().max(1) as f64;
    let width = (right - LEFT) / columns;
    for (at, row) in map.pages.iter().enumerate() {
        let top = TOP + at as f64 * ROW;
        let name = row.page.to_string();
        canvas.text(&name, (LEFT - 10.0, top + CELL / 2.0), Align::Right, LABEL)?;
        // Equal neighbours are one rectangle.
        let mut from = 0;
        while from < row.cells.len() {
            let cell = row.cells[from];
            let same = |other: &&crate::report::HeatCell| {
                colour(other.milli) == colour(cell.milli) && other.home == cell.home
            };
            let to = from + row.cells[from..].iter().take_while(same).count();
            let (x0, x1) = (LEFT + from as f64 * width, LEFT + to as f64 * width);
            canvas.rectangle([(x0, top), (x1, top + CELL)], colour(cell.milli))?;
            if let Some(home) = cell.home {
                let stripe = [(x0, top + CELL), (x1, top + CELL + STRIPE)];
                canvas.rectangle(stripe, home_colour(home))?;
            }
            from = to;
        }
    }
    let bottom = TOP + map.pages.len() as f64 * ROW + 16.0;
    let end = map.seconds.last().copied().unwrap_or_default();
    canvas.text("0 s", (LEFT, bottom), Align::Left, LABEL)?;
    canvas.text(&format!("{end:.1} s"), (right, bottom), Align::Right, LABEL)
}

/// Neither red nor orange: these are hot.
fn home_colour(rack: u16) -> RGBColor {
    palette::series([0, 2, 1, 5][usize::from(rack) % 4])
}
