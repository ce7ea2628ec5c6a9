//! Groups of bars, with values above them where there is room.

use plotters::style::RGBColor;
use plotters_backend::DrawingBackend;

use super::wording::number;
use crate::canvas::{Align, Canvas, Error, Font};
use crate::figures::Panel;
use crate::frame::{Frame, LABEL, VALUE};
use crate::palette;

/// Values above bars.
const ABOVE: Font = Font { size: 10.5, ..VALUE };
/// The mark of a value that was not measured.
const MISSING: Font = Font { size: 10.5, ..LABEL };
/// Height of a value's text.
const TEXT_HEIGHT: f64 = 12.0;
/// A value that is wider than its bar stands by this much above the other bars below it, so that it
/// cannot be taken for theirs.
const CLEARANCE: f64 = 8.0;
/// The largest distance of two bars of a group.
const WIDEST: f64 = 54.0;

/// The distance of two bars of a group, from centre to centre.
pub(super) fn pitch(panel: &Panel, frame: &Frame) -> f64 {
    let slot = (frame.right - frame.left) / panel.x.len().max(1) as f64;
    (slot * 0.82 / panel.series.len().max(1) as f64).min(WIDEST)
}

/// A rectangle: its left, upper, right and lower edges.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

/// A bar, with the value it stands for.
struct Bar {
    area: Area,
    value: Option<f64>,
    colour: RGBColor,
}

pub(super) fn draw<DB: DrawingBackend>(
    panel: &Panel,
    frame: &Frame,
    canvas: &mut Canvas<'_, DB>,
) -> Result<(), Error<DB>> {
    let bars = bars(panel, frame);
    for Bar { area, value, colour } in &bars {
        if value.is_some() {
            let corners = [(area.left, area.top), (area.right, area.bottom)];
            canvas.rectangle(corners, *colour)?;
        } else {
            let at = (f64::midpoint(area.left, area.right), frame.bottom - 7.0);
            canvas.text("\u{2013}", at, Align::Centre, MISSING)?;
        }
    }
    let mut texts: Vec<Area> = Vec::new();
    for (i, bar) in bars.iter().enumerate() {
        let Some(text) = bar.value.map(number) else { continue };
        let x = f64::midpoint(bar.area.left, bar.area.right);
        let half = canvas.width(&text, ABOVE) / 2.0 + 1.0;
        let bottom = bar.area.top - 1.0;
        let area = Area { left: x - half, top: bottom - TEXT_HEIGHT, right: x + half, bottom };
        let clear = Area { bottom: bottom + CLEARANCE, ..area };
        let others = bars.iter().enumerate().filter(|(other, _)| *other != i);
        let is_clear = !others.map(|(_, other)| other.area).any(|other| clear.overlaps(&other));
        if is_clear && !texts.iter().any(|other| area.overlaps(other)) {
            canvas.text(&text, (x, bottom - TEXT_HEIGHT / 2.0), Align::Centre, ABOVE)?;
            texts.push(area);
        }
    }
    Ok(())
}

/// Returns all bars, group by group; that of a value that was not measured has the height of its
/// mark.
fn bars(panel: &Panel, frame: &Frame) -> Vec<Bar> {
    let pitch = pitch(panel, frame);
    let gap = (pitch * 0.1).min(2.0);
    let group = pitch * panel.series.len() as f64;
    let mut bars = Vec::new();
    for place in 0..panel.x.len() {
        for (i, series) in panel.series.iter().enumerate() {
            let value = series.values.get(place).copied().flatten();
            let (centre, top) = frame.at(place as f64 + 0.5, value.unwrap_or(0.0));
            let top = if value.is_some() { top } else { frame.bottom - TEXT_HEIGHT };
            let left = centre - group / 2.0 + i as f64 * pitch;
            let right = left + pitch - gap / 2.0;
            let area = Area { left: left + gap / 2.0, top, right, bottom: frame.bottom };
            bars.push(Bar { area, value, colour: palette::series(i) });
        }
    }
    bars
}
