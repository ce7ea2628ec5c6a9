//! The font of the plots.

use std::path::Path;

use ab_glyph::{Font as _, FontVec, GlyphId, OutlinedGlyph, PxScale, ScaleFont as _};

use super::error::ReportError;

const FOLDER: &str = "/usr/share/fonts/truetype/dejavu";

/// DejaVu Sans in two weights, from the package `fonts-dejavu-core`.
pub(super) struct Faces {
    regular: Face,
    bold: Face,
}

impl Faces {
    /// Reads the font from Debian's folder.
    pub(super) fn load() -> Result<Self, ReportError> {
        let folder = Path::new(FOLDER);
        let regular = Face::read(folder, "DejaVuSans.ttf")?;
        Ok(Self { regular, bold: Face::read(folder, "DejaVuSans-Bold.ttf")? })
    }

    pub(super) fn face(&self, bold: bool) -> &Face {
        if bold { &self.bold } else { &self.regular }
    }
}

/// One weight of the font.
pub(super) struct Face(FontVec);

impl Face {
    fn read(folder: &Path, name: &str) -> Result<Self, ReportError> {
        let file = folder.join(name);
        let font = std::fs::read(&file)
            .and_then(|bytes| FontVec::try_from_vec(bytes).map_err(std::io::Error::other));
        font.map(Self).map_err(|cause| ReportError::Font { file, cause })
    }

    /// Returns the width of a text whose em is `em`, in the same unit.
    pub(super) fn width(&self, text: &str, em: f32) -> f32 {
        self.set(text, em).1
    }

    /// Returns the height of a small letter without ascender and descender, such as `x`.
    pub(super) fn x_height(&self, em: f32) -> f32 {
        let scale = self.scale(em);
        let outline = self.0.outline_glyph(self.0.glyph_id('x').with_scale(scale));
        outline.map_or(em / 2.0, |outline| -outline.px_bounds().min.y)
    }

    /// Returns the outlines of a text's letters, starting at x 0 on a base line at y 0.
    pub(super) fn outlines(&self, text: &str, em: f32) -> Vec<OutlinedGlyph> {
        let scale = self.scale(em);
        let (placed, _) = self.set(text, em);
        let outline = |(letter, x): (GlyphId, f32)| {
            self.0.outline_glyph(letter.with_scale_and_position(scale, (x, 0.0)))
        };
        placed.into_iter().filter_map(outline).collect()
    }

    /// Returns the position of each letter, and the end of the text.
    fn set(&self, text: &str, em: f32) -> (Vec<(GlyphId, f32)>, f32) {
        let font = self.0.as_scaled(self.scale(em));
        let mut x = 0.0;
        let mut before = None;
        let mut placed = Vec::with_capacity(text.len());
        for letter in text.chars().map(|letter| font.glyph_id(letter)) {
            x += before.map_or(0.0, |before| font.kern(before, letter));
            placed.push((letter, x));
            x += font.h_advance(letter);
            before = Some(letter);
        }
        (placed, x)
    }

    /// Converts an em: `ab_glyph` scales by the font's own height.
    fn scale(&self, em: f32) -> PxScale {
        let units = self.0.units_per_em().unwrap_or(1.0);
        PxScale::from(em * self.0.height_unscaled() / units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_font_names_its_package() {
        let Err(error) = Face::read(Path::new("/nowhere"), "DejaVuSans.ttf") else { panic!() };
        let error = error.to_string();
        assert!(error.contains("fonts-dejavu-core") && error.contains("/nowhere"), "{error}");
    }

    #[test]
    fn letters_have_the_fonts_measures() {
        let faces = Faces::load().unwrap();
        // DejaVu Sans: an x is 1120 of 2048 units high, a digit 1303 units wide.
        let face = faces.face(false);
        assert!((face.x_height(2048.0) - 1120.0).abs() < 1.0);
        assert!((face.width("0000", 2048.0) - 4.0 * 1303.0).abs() < 1.0);
        assert!(faces.face(true).width("plot", 10.0) > face.width("plot", 10.0));
        assert_eq!(face.outlines("a b", 10.0).len(), 2);
    }
}
