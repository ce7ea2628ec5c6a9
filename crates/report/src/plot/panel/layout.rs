//! The places of a panel's parts.

use plotters::style::RGBColor;

use super::labels::{self, Labels, Room};
use super::wording::{subtitle, tick};
use super::{Panel, bars};
use crate::axis::Axis;
use crate::canvas::width;
use crate::figures::{Scale, Shape};
use crate::font::Faces;
use crate::frame::{Frame, LABEL, MARGIN, SUBTITLE, TITLE, legend_room, legend_width};
use crate::palette;
use crate::plot::WIDTH;

/// The width of a panel that has another beside it.
const NARROW: u32 = WIDTH / 2;
/// The y of the legend's first row, and the height of a row.
const LEGEND: u32 = 80;
const ROW: u32 = 20;
/// Bars closer to each other than this are too thin.
const LEAST_PITCH: f64 = 11.0;

/// A row of the legend.
pub(super) struct Row {
    pub(super) entries: Vec<(String, RGBColor)>,
    pub(super) right: f64,
    pub(super) y: f64,
}

/// The places of a panel's parts, in logical pixels.
pub(super) struct Layout {
    pub(super) size: (u32, u32),
    pub(super) legend: Vec<Row>,
    pub(super) frame: Frame,
    pub(super) labels: Labels,
    /// The y of the x axis' name.
    pub(super) name_y: f64,
}

impl Layout {
    /// Returns a layout of half a page's width if everything fits there, else of the whole width.
    pub(super) fn of(panel: &Panel, faces: &Faces) -> Self {
        let narrow = Self::with_width(panel, faces, NARROW);
        if narrow.is_cramped(panel, faces) { Self::with_width(panel, faces, WIDTH) } else { narrow }
    }

    /// Returns true if the plot needs the whole width of a page.
    pub(super) fn is_wide(&self) -> bool {
        self.size.0 > NARROW
    }

    fn is_cramped(&self, panel: &Panel, faces: &Faces) -> bool {
        let room = f64::from(NARROW) - 2.0 * MARGIN;
        let is_thin = panel.shape == Shape::Bars && bars::pitch(panel, &self.frame) < LEAST_PITCH;
        is_thin
            || !self.labels.is_roomy
            || self.legend.len() > 2
            || width(faces, &panel.title, TITLE) > room
            || width(faces, &subtitle(panel), SUBTITLE) > room
    }

    fn with_width(panel: &Panel, faces: &Faces, whole: u32) -> Self {
        let right = f64::from(whole) - MARGIN;
        let y = y_axis(panel);
        let ticks = y.ticks().into_iter().map(|value| width(faces, &tick(value), LABEL));
        let left = MARGIN + ticks.fold(0.0, f64::max) + 10.0;
        let legend = legend(panel, faces, right);
        let top = LEGEND + ROW * count(legend.len()) + 4;
        let bottom = top + if whole > NARROW { 260 } else { 210 };
        let frame = Frame {
            left,
            top: f64::from(top),
            right,
            bottom: f64::from(bottom),
            x: Axis::Linear { to: panel.x.len().max(1) as f64 },
            y,
        };
        let room = Room { axis: [left, right], width: f64::from(whole) };
        let labels = Labels::of(&panel.x, room, faces);
        let name_y = bottom + 24 + labels::LINE * count(labels.lines());
        let size = (whole, name_y + 20);
        Self { size, legend, frame, labels, name_y: f64::from(name_y) }
    }
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(1)
}

/// Returns the legend's rows: each has as many entries as fit.
fn legend(panel: &Panel, faces: &Faces, right: f64) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut widths: Vec<f64> = Vec::new();
    for (i, series) in panel.series.iter().enumerate() {
        let entry = (series.name.clone(), palette::series(i));
        let most = legend_room(right + MARGIN);
        widths.push(width(faces, &series.name, LABEL).min(most));
        let end = MARGIN + legend_width(&widths);
        match rows.last_mut() {
            Some(row) if end <= right => {
                row.entries.push(entry);
                row.right = end;
            }
            _ => {
                widths.drain(..widths.len() - 1);
                let y = f64::from(LEGEND + ROW * count(rows.len()));
                let right = MARGIN + legend_width(&widths);
                rows.push(Row { entries: vec![entry], right, y });
            }
        }
    }
    rows
}

fn y_axis(panel: &Panel) -> Axis {
    let values = || panel.series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let most = values().fold(0.0, f64::max);
    if panel.scale == Scale::Linear {
        return Axis::linear(most);
    }
    let least = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        return Axis::log(1.0, 10.0);
    }
    // The least value stands above the foot of the axis.
    match Axis::log(least / 1.6, most) {
        // Such an axis labels powers of ten only, so it begins with one.
        Axis::Log { from, to } if to / from >= 2e3 => {
            Axis::Log { from: 10_f64.powf(from.log10().floor()), to }
        }
        axis => axis,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Series;

    fn panel(places: usize, series: &[&str], shape: Shape) -> Panel {
        Panel {
            name: "p".into(),
            title: "t".into(),
            x_name: "x".into(),
            y_name: "y".into(),
            shape,
            scale: Scale::Log,
            x: (0..places).map(|place| place.to_string()).collect(),
            series: series
                .iter()
                .map(|name| Series { name: (*name).into(), values: vec![Some(1.0); places] })
                .collect(),
        }
    }

    #[test]
    fn panels_are_wide_where_they_need_it() {
        let faces = Faces::load().unwrap();
        let is_wide = |panel: &Panel| Layout::of(panel, &faces).is_wide();
        assert!(!is_wide(&panel(7, &["a"; 5], Shape::Lines)));
        assert!(!is_wide(&panel(4, &["a"; 5], Shape::Bars)));
        assert!(is_wide(&panel(10, &["a"; 5], Shape::Bars)));
    }

    #[test]
    fn a_long_legend_has_several_rows_inside_the_drawing() {
        let faces = Faces::load().unwrap();
        let names = ["a system with a rather long name"; 7];
        let layout = Layout::of(&panel(4, &names, Shape::Lines), &faces);
        let counts: Vec<_> = layout.legend.iter().map(|row| row.entries.len()).collect();
        assert_eq!((layout.size.0, counts), (WIDTH, vec![3, 3, 1]));
        for row in &layout.legend {
            assert!(row.right <= f64::from(WIDTH) - MARGIN && row.y < layout.frame.top - 16.0);
        }
    }

    #[test]
    fn a_log_axis_of_many_decades_begins_with_one() {
        let mut panel = panel(2, &["a"], Shape::Lines);
        panel.series[0].values = vec![Some(90.0), Some(1e7)];
        assert_eq!(y_axis(&panel), Axis::Log { from: 10.0, to: 1e7 });
        panel.series[0].values = vec![Some(-1.0), Some(0.0)];
        assert_eq!(y_axis(&panel), Axis::log(1.0, 10.0));
    }
}
