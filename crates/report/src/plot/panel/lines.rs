//! A line with discs for each series.

use plotters_backend::DrawingBackend;

use crate::canvas::{Canvas, Error};
use crate::figures::Panel;
use crate::frame::Frame;
use crate::palette;

/// Draws the lines; each breaks where nothing was measured.
pub(super) fn draw<DB: DrawingBackend>(
    panel: &Panel,
    frame: &Frame,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    for (i, series) in panel.series.iter().enumerate() {
        let colour = palette::series(i);
        let point = |(place, value): (usize, &Option<f64>)| {
            value.map(|value| frame.at(place as f64 + 0.5, value))
        };
        let points: Vec<_> = series.values.iter().enumerate().map(point).collect();
        for measured in points.split(Option::is_none) {
            let measured: Vec<_> = measured.iter().flatten().copied().collect();
            if measured.len() > 1 {
                canvas.line(&measured, 2.0, colour)?;
            }
            for centre in measured {
                canvas.disc(centre, 3.5, colour)?;
            }
        }
    }
    Ok(())
}
