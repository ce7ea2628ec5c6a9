//! Pages over time, coloured by their hotness, with a stripe in the colour of the home below each
//! cell.

use plotters::style::RGBColor;
use plotters_backend::DrawingBackend;

use super::wording::WIDTH;
use crate::canvas::{Align, Canvas, Error};
use crate::frame::{LABEL, MARGIN, heading, legend};
use crate::palette::{self, HEAT};
use crate::swap_runs::{HeatCell, HeatMap, HeatRow};
use rackpool_output::numbers::{counted, grouped};

const TOP: f64 = 92.0;
const ROW: f64 = 20.0;
/// Heights of a cell and of the stripe below it, within a row.
const CELL: f64 = 13.0;
const STRIPE: f64 = 4.0;
const LEFT: f64 = MARGIN + 70.0;

pub(super) fn height(map: &HeatMap) -> u32 {
    let rows = u32::try_from(map.pages.len()).unwrap_or(1).max(1);
    160 + rows * 20
}

pub(super) fn caption(map: &HeatMap) -> String {
    let has_moved = |row: &&HeatRow| {
        let mut homes: Vec<u16> = row.cells.iter().filter_map(|cell| cell.home).collect();
        homes.dedup();
        homes.len() > 1
    };
    let moved = map.pages.iter().filter(has_moved).count();
    format!(
        "Hotness of {} over {:.1} s; {} changed home.",
        counted(map.pages.len() as u64, "page", "pages"),
        map.seconds.last().copied().unwrap_or_default(),
        counted(moved as u64, "page", "pages")
    )
}

/// The default threshold of hotness below which a page is cold, in thousandths.
const COLD: u64 = 4_000;

/// Returns the lower bounds of all colours but the first, in thousandths. The first is `COLD`. The
/// others divide the cells that are not cold into parts of the same size, so that no colour covers
/// most of the map; where the values differ too little for that, the bounds form a geometric
/// sequence that would reach the highest hotness in one further step.
fn bounds(map: &HeatMap) -> [u64; HEAT.len() - 1] {
    let cells = map.pages.iter().flat_map(|row| &row.cells);
    let mut warm: Vec<u64> = cells.map(|cell| cell.milli).filter(|milli| *milli >= COLD).collect();
    warm.sort_unstable();
    let mut bounds = [COLD; HEAT.len() - 1];
    for (step, bound) in bounds.iter_mut().enumerate().skip(1) {
        // The legend names whole numbers.
        let quantile = warm.get(step * warm.len() / (HEAT.len() - 1)).unwrap_or(&COLD);
        *bound = quantile / 1000 * 1000;
    }
    if bounds.windows(2).all(|two| two[0] < two[1]) {
        return bounds;
    }
    let hottest = warm.last().copied().unwrap_or(COLD).max(2 * COLD);
    let ratio = hottest as f64 / COLD as f64;
    for (step, bound) in bounds.iter_mut().enumerate() {
        let share = step as f64 / (HEAT.len() - 1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a colour")]
        {
            *bound = (COLD as f64 * ratio.powf(share)).round() as u64;
        }
    }
    bounds
}

fn colour(milli: u64, bounds: &[u64]) -> RGBColor {
    HEAT[bounds.iter().filter(|bound| milli >= **bound).count()]
}

pub(super) fn draw<DB: DrawingBackend>(
    map: &HeatMap,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    heading(canvas, "Heat of pages over time", &map.setting)?;
    let right = f64::from(WIDTH) - MARGIN;
    let bounds = bounds(map);
    let from = bounds.iter().map(|bound| format!("from {}", grouped(bound / 1000)));
    let steps = std::iter::once("cold".to_owned()).chain(from);
    legend(canvas, &steps.zip(HEAT).collect::<Vec<_>>(), (right, 30.0))?;
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
            let same = |other: &&HeatCell| {
                colour(other.milli, &bounds) == colour(cell.milli, &bounds)
                    && other.home == cell.home
            };
            let to = from + row.cells[from..].iter().take_while(same).count();
            let (x0, x1) = (LEFT + from as f64 * width, LEFT + to as f64 * width);
            canvas.rectangle([(x0, top), (x1, top + CELL)], colour(cell.milli, &bounds))?;
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

/// Returns a colour other than red and orange, which mean hot.
fn home_colour(rack: u16) -> RGBColor {
    palette::series([0, 2, 1, 5][usize::from(rack) % 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map of one page with these values.
    fn map(milli: impl IntoIterator<Item = u64>) -> HeatMap {
        let cells: Vec<_> = milli.into_iter().map(|milli| HeatCell { milli, home: None }).collect();
        let seconds = vec![0.0; cells.len()];
        HeatMap { setting: String::new(), seconds, pages: vec![HeatRow { page: 1, cells }] }
    }

    #[test]
    fn every_colour_is_used_between_cold_and_the_hottest() {
        for hottest in [10_000, 40_000, 9_000_000] {
            let bounds = bounds(&map([hottest]));
            assert!(bounds.windows(2).all(|two| two[0] < two[1]), "{bounds:?}");
            assert_eq!(colour(COLD - 1, &bounds), HEAT[0]);
            assert_eq!(colour(COLD, &bounds), HEAT[1]);
            assert_eq!(colour(hottest, &bounds), HEAT[HEAT.len() - 1]);
        }
    }

    #[test]
    fn pages_of_similar_heat_get_different_colours() {
        // Once warm, the pages of a run differ by a factor of two, and one is far hotter.
        let values: Vec<u64> = (100_000..200_000).step_by(1000).chain([9_000_000]).collect();
        let bounds = bounds(&map(values.iter().copied()));
        for shade in &HEAT[1..] {
            let of_shade = values.iter().filter(|milli| colour(**milli, &bounds) == *shade);
            let count = of_shade.count();
            assert!(
                count > 0 && count < values.len() / 2,
                "{count} of {}: {bounds:?}",
                values.len()
            );
        }
    }

    #[test]
    fn one_page_in_a_map_is_singular() {
        assert_eq!(caption(&map([9000])), "Hotness of 1 page over 0.0 s; 0 pages changed home.");
    }
}
