//! The report of a paper's figures that were measured again.
//!
//! [`FiguresRun`] -> [`write()`] -> a folder with `index.html`, `figures.json`, and for each panel
//! its values as CSV and its plot as SVG. The page needs nothing else: styles and plots are
//! inside, it links to nothing and runs no script.

mod check;
mod csv;
mod page;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::ReportError;
use super::font::Faces;
use super::plot::PanelPlot;
use super::{make_folder, put, put_json, render};

/// The contents of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FiguresRun {
    /// Headline.
    pub title: String,
    /// Date and time of the run.
    pub started: String,
    /// The machine, as names and values, see [`machine_facts`](crate::machine_facts).
    pub machine: Vec<(String, String)>,
    /// The figures, in the order of the page; at least one.
    pub figures: Vec<Figure>,
    /// The commands that repeat the run, one for each line.
    pub commands: Vec<String>,
    /// Facts that a reader needs to interpret the numbers.
    pub notes: Vec<String>,
}

/// A figure of the paper, measured again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Id on the page and in file names, of a-z, 0-9 and `-`: `14` -> `figure-14-reads.csv`.
    pub id: String,
    /// Headline.
    pub title: String,
    /// What was run, and how, in one sentence.
    pub setting: String,
    /// The plots, in the order of the page.
    pub panels: Vec<Panel>,
    /// What the paper says of the figure, beside what was measured.
    pub statements: Vec<Statement>,
    /// Facts that a reader needs to interpret this figure.
    pub notes: Vec<String>,
}

/// One plot of a figure with its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Name in file names, of a-z, 0-9 and `-`: `reads` -> `figure-14-reads.csv`. Each panel of a
    /// figure has its own.
    pub name: String,
    /// Headline.
    pub title: String,
    /// Name of the x axis: `bytes`.
    pub x_name: String,
    /// Name of the y axis, its unit first: `us, mean`.
    pub y_name: String,
    /// How values are drawn.
    pub shape: Shape,
    /// Scale of the y axis.
    pub scale: Scale,
    /// Labels of the places on the x axis, which are evenly spaced.
    pub x: Vec<String>,
    /// The values; from the ninth series on colours repeat.
    pub series: Vec<Series>,
}

/// How the values of a panel are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A line with discs for each series.
    Lines,
    /// A group of bars for each place on the x axis, with one bar for each series.
    Bars,
}

/// The scale of a y axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scale {
    /// Equal steps, from zero. Negative values are drawn at zero.
    Linear,
    /// Equal ratios. Values that are not above zero are drawn at the foot of the axis.
    Log,
}

/// The values of one system or variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// One value for each place on the x axis; `None` where nothing was measured.
    pub values: Vec<Option<f64>>,
}

/// What the paper says of a figure, and what was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// What the paper says.
    pub paper: String,
    /// What was measured.
    pub measured: String,
    /// Whether the measurement confirms the paper.
    pub verdict: Verdict,
    /// Why the measurement does not confirm the paper, or can't.
    pub cause: Option<String>,
}

/// Whether a measurement confirms what the paper says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// It does.
    Agrees,
    /// It does not.
    Differs,
    /// This machine can't tell.
    Untestable,
}

/// The files of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FiguresPaths {
    /// The page.
    pub html: PathBuf,
    /// The run as JSON.
    pub json: PathBuf,
    /// The panels: each as CSV and as SVG.
    pub panels: Vec<PathBuf>,
}

/// A panel as the page shows it.
struct Drawing {
    svg: String,
    caption: String,
    is_wide: bool,
}

/// Writes the report of `run` into the folder `dir`, which is created if needed. Files of an
/// earlier report are replaced if they have the same name.
///
/// # Errors
/// Before anything is written: if there are no figures, a figure or a panel has an unfit name or
/// that of another, a series has not one value for each place of the x axis or a value that is not
/// finite, or the font (package `fonts-dejavu-core`) is missing. Later: if a file cannot be
/// written.
pub fn write(dir: &Path, run: &FiguresRun) -> Result<FiguresPaths, ReportError> {
    check::check(run)?;
    let faces = Faces::load()?;
    make_folder(dir)?;
    let mut panels = Vec::new();
    let mut drawings = Vec::new();
    for figure in &run.figures {
        let mut of_figure = Vec::new();
        for panel in &figure.panels {
            let name = format!("figure-{}-{}", figure.id, panel.name);
            let plot = PanelPlot::new(name.clone(), panel, &faces);
            let svg = render::svg(&plot, &faces)?;
            panels.push(put(dir, &format!("{name}.csv"), csv::table(panel).as_bytes())?);
            panels.push(put(dir, &format!("{name}.svg"), svg.as_bytes())?);
            of_figure.push(Drawing { svg, caption: plot.caption(), is_wide: plot.is_wide() });
        }
        drawings.push(of_figure);
    }
    let html = put(dir, "index.html", page::page(run, &drawings).as_bytes())?;
    let json = put_json(dir, "figures.json", run)?;
    Ok(FiguresPaths { html, json, panels })
}
