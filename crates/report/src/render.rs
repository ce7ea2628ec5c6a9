//! Plots as SVG and PNG.

use std::path::Path;

use plotters::prelude::{BitMapBackend, SVGBackend};
use plotters_backend::DrawingBackend;

use super::canvas::{Canvas, Error, SCALE};
use super::error::ReportError;
use super::font::Faces;
use super::palette::PAPER;

/// The factor by which a PNG is reduced from the [`SCALE`] pixels drawn for a logical one.
/// Averaging smooths edges. The PNG has `SCALE / SHRINK` times the logical size.
const SHRINK: u32 = 2;
const BYTES_PER_PIXEL: usize = 3;

/// A plot with its data. It draws itself on every backend.
pub(super) trait Drawable {
    /// Returns the name of the plot's file, without extension.
    fn name(&self) -> String;

    /// Returns width and height in logical pixels.
    fn size(&self) -> (u32, u32);

    /// Draws the plot on a covered surface.
    fn draw<DB: DrawingBackend>(&self, canvas: &mut Canvas<'_, DB>) -> Result<(), Error<DB>>;
}

/// Returns the plot as an SVG document.
pub(super) fn svg(plot: impl Drawable, faces: &Faces) -> Result<String, ReportError> {
    let (width, height) = plot.size();
    let mut text = String::new();
    {
        let size = (width * SCALE, height * SCALE);
        render(&plot, Canvas::new(SVGBackend::with_string(&mut text, size), faces))?;
    }
    // The coordinates stay those of the large drawing; the displayed size is the logical one.
    let drawn = format!("width=\"{}\" height=\"{}\"", width * SCALE, height * SCALE);
    let shown = format!("width=\"{width}\" height=\"{height}\"");
    Ok(text.replacen(&drawn, &shown, 1))
}

/// Writes the plot as a PNG file.
pub(super) fn png(plot: impl Drawable, faces: &Faces, file: &Path) -> Result<(), ReportError> {
    let (width, height) = plot.size();
    let (width, height) = (width * SCALE, height * SCALE);
    let mut drawn = vec![0; width as usize * height as usize * BYTES_PER_PIXEL];
    {
        let backend = BitMapBackend::with_buffer(&mut drawn, (width, height));
        render(&plot, Canvas::new(backend, faces))?;
    }
    let small = shrink(&drawn, width as usize, SHRINK as usize);
    let size = (width / SHRINK, height / SHRINK);
    let mut backend = BitMapBackend::new(file, size);
    backend
        .blit_bitmap((0, 0), size, &small)
        .and_then(|()| backend.present())
        .map_err(|cause| failed(&plot, &cause))
}

/// Draws the plot on a covered surface, and passes the drawing on.
fn render<DB: DrawingBackend>(
    plot: &impl Drawable,
    mut canvas: Canvas<'_, DB>,
) -> Result<(), ReportError> {
    canvas
        .cover(PAPER)
        .and_then(|()| plot.draw(&mut canvas))
        .and_then(|()| canvas.present())
        .map_err(|cause| failed(plot, &cause))
}

fn failed(plot: &impl Drawable, cause: &dyn std::fmt::Display) -> ReportError {
    ReportError::Draw { plot: plot.name(), cause: cause.to_string() }
}

/// Averages squares of `side` pixels. Width and height must be multiples of `side`.
fn shrink(pixels: &[u8], width: usize, side: usize) -> Vec<u8> {
    let rows = pixels.len() / BYTES_PER_PIXEL / width / side;
    let mut small = Vec::with_capacity(pixels.len() / side / side);
    for row in 0..rows {
        for column in 0..width / side {
            for byte in 0..BYTES_PER_PIXEL {
                let at = |x, y| {
                    let pixel = (row * side + y) * width + column * side + x;
                    usize::from(pixels[pixel * BYTES_PER_PIXEL + byte])
                };
                let sum: usize = (0..side).flat_map(|y| (0..side).map(move |x| at(x, y))).sum();
                small.push(u8::try_from(sum / (side * side)).unwrap_or(u8::MAX));
            }
        }
    }
    small
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_become_their_average() {
        let grey = |values: &[u8]| values.iter().flat_map(|v| [*v; 3]).collect::<Vec<_>>();
        let large = grey(&[0, 100, 8, 8, 100, 200, 8, 8]);
        assert_eq!(shrink(&large, 4, 2), grey(&[100, 8]));
    }
}
