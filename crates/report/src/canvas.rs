//! Drawing in logical pixels, on any backend.

use std::convert::Infallible;

use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, RGBColor};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontFamily,
    FontStyle,
};

use super::font::{Face, Faces};

/// Backend pixels for each logical pixel. Backends place things at whole pixels only.
pub(super) const SCALE: u32 = 4;

/// An error of the backend.
pub(super) type Error<DB> = DrawingErrorKind<<DB as DrawingBackend>::ErrorType>;

/// The position of a text relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Centre,
    Right,
}

/// Size (in logical pixels), weight and colour of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Font {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: RGBColor,
}

/// A drawing surface in logical pixels.
pub(super) struct Canvas<'a, DB: DrawingBackend> {
    backend: DB,
    faces: &'a Faces,
}

impl<'a, DB: DrawingBackend> Canvas<'a, DB> {
    /// Wraps a backend of [`SCALE`] times the logical size.
    pub(super) fn new(backend: DB, faces: &'a Faces) -> Self {
        Self { backend, faces }
    }

    /// Fills the surface with `colour`. It must be the first drawing operation.
    pub(super) fn cover(&mut self, colour: RGBColor) -> Result<(), Error<DB>> {
        self.backend.ensure_prepared()?;
        let (width, height) = self.backend.get_size();
        let corner = (width.cast_signed(), height.cast_signed());
        self.backend.draw_rect((0, 0), corner, &colour.filled(), true)
    }

    pub(super) fn line(
        &mut self,
        points: &[(f64, f64)],
        width: f64,
        colour: RGBColor,
    ) -> Result<(), Error<DB>> {
        let style = colour.stroke_width(pixels(width).unsigned_abs());
        self.backend.draw_path(points.iter().copied().map(point), &style)
    }

    pub(super) fn rectangle(
        &mut self,
        [from, to]: [(f64, f64); 2],
        colour: RGBColor,
    ) -> Result<(), Error<DB>> {
        self.backend.draw_rect(point(from), point(to), &colour.filled(), true)
    }

    pub(super) fn disc(
        &mut self,
        centre: (f64, f64),
        radius: f64,
        colour: RGBColor,
    ) -> Result<(), Error<DB>> {
        let radius = pixels(radius).unsigned_abs();
        self.backend.draw_circle(point(centre), radius, &colour.filled(), true)
    }

    /// Draws a text. Digits and capitals are vertically centred on the point.
    pub(super) fn text(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        align: Align,
        font: Font,
    ) -> Result<(), Error<DB>> {
        // Backends centre an x on the point; a capital is 0.18 em higher than an x.
        let at = point((x, y + 0.09 * font.size));
        self.backend.draw_text(text, &Letters { font, align, face: self.faces.face(font.bold) }, at)
    }

    /// Returns the width of a text in logical pixels.
    pub(super) fn width(&self, text: &str, font: Font) -> f64 {
        width(self.faces, text, font)
    }

    /// Returns the width of the surface in logical pixels.
    pub(super) fn surface_width(&self) -> f64 {
        f64::from(self.backend.get_size().0) / f64::from(SCALE)
    }

    /// Returns `font`, made smaller if `text` is wider than `room` logical pixels.
    pub(super) fn fitted(&self, text: &str, font: Font, room: f64) -> Font {
        fitted(self.faces, text, font, room)
    }

    /// Passes the finished drawing on.
    pub(super) fn present(&mut self) -> Result<(), Error<DB>> {
        self.backend.present()
    }
}

/// Returns the width of a text in logical pixels.
pub(super) fn width(faces: &Faces, text: &str, font: Font) -> f64 {
    f64::from(faces.face(font.bold).width(text, em(font))) / f64::from(SCALE)
}

/// Returns `font`, made smaller if `text` is wider than `room` logical pixels.
pub(super) fn fitted(faces: &Faces, text: &str, font: Font, room: f64) -> Font {
    let width = width(faces, text, font);
    if width > room { Font { size: font.size * room / width, ..font } } else { font }
}

/// The style of a text, for the backend.
struct Letters<'a> {
    font: Font,
    align: Align,
    face: &'a Face,
}

impl BackendTextStyle for Letters<'_> {
    type FontError = Infallible;

    fn color(&self) -> BackendColor {
        self.font.colour.to_backend_color()
    }

    fn size(&self) -> f64 {
        // The SVG backend divides the size by this factor to get the em.
        f64::from(em(self.font)) * 1.24
    }

    fn style(&self) -> FontStyle {
        if self.font.bold { FontStyle::Bold } else { FontStyle::Normal }
    }

    fn anchor(&self) -> Pos {
        let horizontal = match self.align {
            Align::Left => HPos::Left,
            Align::Centre => HPos::Center,
            Align::Right => HPos::Right,
        };
        Pos::new(horizontal, VPos::Center)
    }

    fn family(&self) -> FontFamily<'_> {
        FontFamily::SansSerif
    }

    fn layout_box(&self, text: &str) -> Result<(BackendCoord, BackendCoord), Infallible> {
        let width = self.face.width(text, em(self.font));
        let height = self.face.x_height(em(self.font));
        Ok(((0, 0), (whole(width.into()), whole(height.into()))))
    }

    fn draw<E, F: FnMut(i32, i32, BackendColor) -> Result<(), E>>(
        &self,
        text: &str,
        (left, top): BackendCoord,
        mut draw: F,
    ) -> Result<Result<(), E>, Infallible> {
        let base = top + whole(self.face.x_height(em(self.font)).into());
        let mut drawn = Ok(());
        for outline in self.face.outlines(text, em(self.font)) {
            let corner = outline.px_bounds().min;
            let (x0, y0) = (left + whole(corner.x.into()), base + whole(corner.y.into()));
            outline.draw(|x, y, coverage| {
                if drawn.is_ok() && coverage > 0.0 {
                    let colour = self.color().mix(f64::from(coverage));
                    drawn = draw(x0 + x.cast_signed(), y0 + y.cast_signed(), colour);
                }
            });
        }
        Ok(drawn)
    }
}

/// The em of a font, in backend pixels.
#[expect(clippy::cast_possible_truncation, reason = "letters are some dozen pixels high")]
fn em(font: Font) -> f32 {
    font.size as f32 * SCALE as f32
}

fn point((x, y): (f64, f64)) -> BackendCoord {
    (pixels(x), pixels(y))
}

fn pixels(logical: f64) -> i32 {
    whole(logical * f64::from(SCALE))
}

#[expect(clippy::cast_possible_truncation, reason = "a drawing is some thousand pixels wide")]
fn whole(pixels: f64) -> i32 {
    pixels.round() as i32
}
