//! The labels below the x axis, arranged so that no two overlap.

use plotters_backend::DrawingBackend;

use crate::canvas::{Align, Canvas, Error, Font, fitted, width};
use crate::font::Faces;
use crate::frame::LABEL;

/// The smaller of two sizes.
const SMALL: Font = Font { size: 10.0, ..LABEL };
/// The least space between two labels.
const GAP: f64 = 6.0;
/// The least space at the edges of the drawing.
const EDGE: f64 = 4.0;
/// Height of a line.
pub(super) const LINE: u32 = 15;

/// The labels of an axis.
pub(super) struct Labels {
    shown: Vec<Label>,
    /// True if each place has its label, in the normal size.
    pub(super) is_roomy: bool,
}

/// Text, size and place of a label.
struct Label {
    lines: Vec<String>,
    font: Font,
    x: f64,
    half: f64,
}

/// Where labels have to fit.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// The ends of the axis.
    pub(super) axis: [f64; 2],
    /// The width of the drawing.
    pub(super) width: f64,
}

/// A way to write labels.
#[derive(Clone, Copy)]
struct Way {
    font: Font,
    /// True if labels of several words have two lines.
    is_split: bool,
    /// Places from one label to the next.
    stride: usize,
}

impl Labels {
    /// Arranges the labels in one line, else in two, else smaller; if they still overlap, only
    /// every second, third ... is shown.
    pub(super) fn of(texts: &[String], room: Room, faces: &Faces) -> Self {
        let normal = [LABEL, SMALL]
            .map(|font| [false, true].map(|is_split| Way { font, is_split, stride: 1 }));
        let sparse = (2..=texts.len()).map(|stride| Way { font: SMALL, is_split: true, stride });
        let mut arranged = normal.into_iter().flatten().chain(sparse).map(|way| {
            let is_roomy = way.stride == 1 && way.font.size >= LABEL.size;
            Self { shown: arrange(texts, room, way, faces), is_roomy }
        });
        let fits = |labels: &Self| {
            let pairs = labels.shown.windows(2);
            pairs.into_iter().all(|pair| match pair {
                [a, b] => a.x + a.half + GAP <= b.x - b.half,
                _ => true,
            })
        };
        // A single label overlaps none, so one of the ways fits.
        arranged.find(fits).unwrap_or(Self { shown: Vec::new(), is_roomy: false })
    }

    /// Returns the number of lines.
    pub(super) fn lines(&self) -> usize {
        self.shown.iter().map(|label| label.lines.len()).max().unwrap_or(1)
    }

    pub(super) fn draw<DB: DrawingBackend>(
        &self,
        canvas: &mut Canvas<'_, DB>,
        bottom: f64,
    ) -> Result<(), Error<DB>> {
        for label in &self.shown {
            let mut y = bottom + 18.0;
            for line in &label.lines {
                canvas.text(line, (label.x, y), Align::Centre, label.font)?;
                y += f64::from(LINE);
            }
        }
        Ok(())
    }
}

fn arrange(texts: &[String], room: Room, way: Way, faces: &Faces) -> Vec<Label> {
    let [left, right] = room.axis;
    let slot = (right - left) / texts.len().max(1) as f64;
    let label = |(place, text): (usize, &String)| {
        let lines = if way.is_split { split(text) } else { vec![text.clone()] };
        // No label is wider than the drawing.
        let fonts = lines.iter().map(|line| fitted(faces, line, way.font, room.width - 2.0 * EDGE));
        let font = fonts.min_by(|a, b| a.size.total_cmp(&b.size)).unwrap_or(way.font);
        let widths = lines.iter().map(|line| width(faces, line, font));
        let half = widths.fold(0.0, f64::max) / 2.0;
        let x = left + (place as f64 + 0.5) * slot;
        let x = x.min(room.width - EDGE - half).max(EDGE + half);
        Label { lines, font, x, half }
    };
    texts.iter().enumerate().step_by(way.stride).map(label).collect()
}

/// Splits a text at the space nearest to its middle.
fn split(text: &str) -> Vec<String> {
    let middle = text.len() / 2;
    let spaces = text.match_indices(' ').map(|(at, _)| at);
    match spaces.min_by_key(|at| at.abs_diff(middle)) {
        Some(at) => vec![text[..at].to_owned(), text[at + 1..].to_owned()],
        None => vec![text.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arranged(texts: &[&str]) -> Labels {
        let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
        let room = Room { axis: [50.0, 450.0], width: 480.0 };
        Labels::of(&texts, room, &Faces::load().unwrap())
    }

    #[test]
    fn labels_are_split_then_shrunk_then_left_out() {
        let roomy = arranged(&["64", "256", "1 KiB"]);
        assert_eq!((roomy.lines(), roomy.is_roomy, roomy.shown.len()), (1, true, 3));
        let split = arranged(&["A uniform"; 6]);
        assert_eq!((split.lines(), split.is_roomy, split.shown.len()), (2, true, 6));
        let small = arranged(&["uniform"; 8]);
        assert_eq!((small.lines(), small.is_roomy, small.shown.len()), (1, false, 8));
        let sparse = arranged(&["zipfian-distribution"; 16]);
        assert_eq!((sparse.is_roomy, sparse.shown.len()), (false, 4));
        assert_eq!(arranged(&[]).lines(), 1);
    }

    #[test]
    fn labels_stay_inside_the_drawing() {
        let long = "label".repeat(60);
        for labels in [arranged(&[&long]), arranged(&["a rather long label to the right"; 3])] {
            for label in &labels.shown {
                assert!(label.x - label.half >= 3.0 && label.x + label.half <= 477.0);
            }
        }
    }
}
