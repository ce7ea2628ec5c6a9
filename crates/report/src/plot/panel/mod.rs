//! A panel of a figure: lines or groups of bars over evenly spaced labels.

mod bars;
mod labels;
mod layout;
mod lines;
mod wording;

use plotters_backend::DrawingBackend;

use crate::canvas::{Align, Canvas, Error};
use crate::figures::{Panel, Shape};
use crate::font::Faces;
use crate::frame::{LABEL, MARGIN, SUBTITLE, heading, legend};
use crate::palette::AXIS;
use crate::render::Drawable;
use layout::Layout;
pub(crate) use wording::number;
use wording::{subtitle, tick};

/// A panel with the layout of its plot.
pub(crate) struct PanelPlot<'a> {
    name: String,
    panel: &'a Panel,
    layout: Layout,
}

impl<'a> PanelPlot<'a> {
    /// Arranges the plot of `panel`; `name` is that of its file, without extension.
    pub(crate) fn new(name: String, panel: &'a Panel, faces: &Faces) -> Self {
        Self { name, panel, layout: Layout::of(panel, faces) }
    }

    /// Returns a text alternative for readers who cannot see the plot.
    pub(crate) fn caption(&self) -> String {
        let Panel { title, x_name, y_name, .. } = self.panel;
        let names: Vec<_> = self.panel.series.iter().map(|series| series.name.as_str()).collect();
        format!("{title}: {y_name} by {x_name}, for {}.", names.join(", "))
    }

    /// Returns true if the plot needs the whole width of a page.
    pub(crate) fn is_wide(&self) -> bool {
        self.layout.is_wide()
    }
}

impl Drawable for &PanelPlot<'_> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> (u32, u32) {
        self.layout.size
    }

    fn draw<DB: DrawingBackend>(&self, canvas: &mut Canvas<'_, DB>) -> Result<(), Error<DB>> {
        let Layout { frame, legend: rows, labels, name_y, .. } = &self.layout;
        heading(canvas, &self.panel.title, &subtitle(self.panel))?;
        for row in rows {
            legend(canvas, &row.entries, (row.right, row.y))?;
        }
        frame.levels(canvas, tick)?;
        canvas.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], 1.0, AXIS)?;
        labels.draw(canvas, frame.bottom)?;
        let name = &self.panel.x_name;
        let font = canvas.fitted(name, LABEL, frame.right - MARGIN);
        canvas.text(name, (frame.right, *name_y), Align::Right, font)?;
        if self.panel.series.iter().all(|series| series.values.iter().all(Option::is_none)) {
            let middle = f64::midpoint(frame.left, frame.right);
            let at = (middle, f64::midpoint(frame.top, frame.bottom));
            return canvas.text("not measured", at, Align::Centre, SUBTITLE);
        }
        match self.panel.shape {
            Shape::Lines => lines::draw(self.panel, frame, canvas),
            Shape::Bars => bars::draw(self.panel, frame, canvas),
        }
    }
}
