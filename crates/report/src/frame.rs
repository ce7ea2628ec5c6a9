//! The parts that all plots share: heading, legend, grid, and the frame that values are drawn in.

use plotters::style::RGBColor;
use plotters_backend::DrawingBackend;

use super::axis::Axis;
use super::canvas::{Align, Canvas, Error, Font};
use super::palette::{AXIS, GRID, INK, MUTED};

/// Space at the left and right edges, in logical pixels.
pub(super) const MARGIN: f64 = 28.0;
/// The heading.
pub(super) const TITLE: Font = Font { size: 17.0, bold: true, colour: INK };
/// The line below the heading, and units.
pub(super) const SUBTITLE: Font = Font { size: 12.5, bold: false, colour: MUTED };
/// Numbers on the axes.
pub(super) const LABEL: Font = Font { size: 12.5, bold: false, colour: MUTED };
/// Names of results.
pub(super) const NAME: Font = Font { size: 14.0, bold: true, colour: INK };
/// Numbers in the plot.
pub(super) const VALUE: Font = Font { size: 13.0, bold: false, colour: INK };

/// The radius of a disc of a legend.
const RADIUS: f64 = 5.0;
/// The space between two entries of a legend.
const GAP: f64 = 20.0;

/// Draws heading and the line below it. Texts wider than the drawing are made smaller.
pub(super) fn heading<DB: DrawingBackend>(
    canvas: &mut Canvas<'_, DB>,
    title: &str,
    subtitle: &str,
) -> Result<(), Error<DB>> {
    let room = canvas.surface_width() - 2.0 * MARGIN;
    for (text, y, font) in [(title, 30.0, TITLE), (subtitle, 54.0, SUBTITLE)] {
        canvas.text(text, (MARGIN, y), Align::Left, canvas.fitted(text, font, room))?;
    }
    Ok(())
}

/// Draws a row of discs with names, ending at `right`. A name wider than the drawing is made
/// smaller.
pub(super) fn legend<DB: DrawingBackend>(
    canvas: &mut Canvas<'_, DB>,
    entries: &[(String, RGBColor)],
    (right, y): (f64, f64),
) -> Result<(), Error<DB>> {
    let mut x = right;
    for (name, colour) in entries.iter().rev() {
        let font = canvas.fitted(name, LABEL, legend_room(canvas.surface_width()));
        canvas.text(name, (x, y), Align::Right, font)?;
        x -= canvas.width(name, font) + 2.0 * RADIUS;
        canvas.disc((x, y), RADIUS, *colour)?;
        x -= RADIUS + GAP;
    }
    Ok(())
}

/// Returns the most that a legend's name has room for in a drawing of a width.
pub(super) fn legend_room(width: f64) -> f64 {
    width - 2.0 * MARGIN - 3.0 * RADIUS
}

/// Returns the width of a legend from the widths of its names.
pub(super) fn legend_width(names: &[f64]) -> f64 {
    let gaps = names.len().saturating_sub(1) as f64 * GAP;
    names.iter().map(|name| name + 3.0 * RADIUS).sum::<f64>() + gaps
}

/// The rectangle that values are drawn in, with its axes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
    pub(super) x: Axis,
    pub(super) y: Axis,
}

impl Frame {
    /// Returns the point for a pair of values.
    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (
            self.left + self.x.place(x) * (self.right - self.left),
            self.bottom - self.y.place(y) * (self.bottom - self.top),
        )
    }

    /// Draws horizontal grid lines with their values at the left.
    pub(super) fn levels<DB: DrawingBackend>(
        &self,
        canvas: &mut Canvas<'_, DB>,
        label: impl Fn(f64) -> String,
    ) -> Result<(), Error<DB>> {
        for (i, value) in self.y.ticks().into_iter().enumerate() {
            let (_, y) = self.at(0.0, value);
            let colour = if i == 0 { AXIS } else { GRID };
            canvas.line(&[(self.left, y), (self.right, y)], 1.0, colour)?;
            canvas.text(&label(value), (self.left - 10.0, y), Align::Right, LABEL)?;
        }
        Ok(())
    }

    /// Draws vertical grid lines with their values below.
    pub(super) fn uprights<DB: DrawingBackend>(
        &self,
        canvas: &mut Canvas<'_, DB>,
        label: impl Fn(f64) -> String,
    ) -> Result<(), Error<DB>> {
        for value in self.x.ticks() {
            let (x, _) = self.at(value, 0.0);
            canvas.line(&[(x, self.top), (x, self.bottom)], 1.0, GRID)?;
            canvas.text(&label(value), (x, self.bottom + 18.0), Align::Centre, LABEL)?;
        }
        Ok(())
    }

    /// Draws the name of the x axis, at its right end.
    pub(super) fn name_x<DB: DrawingBackend>(
        &self,
        canvas: &mut Canvas<'_, DB>,
        name: &str,
    ) -> Result<(), Error<DB>> {
        canvas.text(name, (self.right, self.bottom + 40.0), Align::Right, LABEL)
    }
}
