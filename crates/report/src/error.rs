//! Why a report could not be written.

use std::io;
use std::path::PathBuf;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The run has no results.
    #[error("the run has no results: run at least one workload before writing a report")]
    NoResults,
    /// The font of the plots cannot be read.
    #[error(
        "the plots' font cannot be read from {}: {cause}; install the package fonts-dejavu-core",
        file.display()
    )]
    Font {
        /// The font's file.
        file: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// A file cannot be written.
    #[error("{} cannot be written: {cause}", file.display())]
    Write {
        /// The file or folder.
        file: PathBuf,
        /// The reason.
        cause: io::Error,
    },
    /// The run has no figures.
    #[error("the run has no figures: measure at least one before writing a report")]
    NoFigures,
    /// The name of a panel cannot be part of a file name.
    #[error(
        "figure {figure}: the panel's name {panel:?} cannot be part of a file name; use a-z, 0-9 \
         and '-'"
    )]
    PanelName {
        /// The figure's id.
        figure: String,
        /// The panel's name.
        panel: String,
    },
    /// A figure's id is no part of a file name.
    #[error("the figure id {0:?} is not a file name; use the letters a-z, digits and '-'")]
    FigureId(String),
    /// Two panels would be written to the same file.
    #[error("figure {figure} has two panels with the name {panel:?}; give each a name of its own")]
    PanelTwice {
        /// The figure's id.
        figure: String,
        /// The panels' name.
        panel: String,
    },
    /// A series has not one value for each place of the x axis.
    #[error(
        "figure {figure}, panel {panel:?}: the series {series:?} has {values} values for {places} \
         places of the x axis; give one for each, None where nothing was measured"
    )]
    SeriesLength {
        /// The figure's id.
        figure: String,
        /// The panel's name.
        panel: String,
        /// The series' name.
        series: String,
        /// The number of values.
        values: usize,
        /// The number of places.
        places: usize,
    },
    /// A value is infinite, not a number, or too large for an axis.
    #[error(
        "figure {figure}, panel {panel:?}: the series {series:?} has the value {value}, which no \
         axis can show; use None where nothing was measured"
    )]
    Value {
        /// The figure's id.
        figure: String,
        /// The panel's name.
        panel: String,
        /// The series' name.
        series: String,
        /// The value.
        value: f64,
    },
    /// A plot cannot be drawn.
    #[error("the plot {plot} cannot be drawn: {cause}")]
    Draw {
        /// The plot.
        plot: String,
        /// The reason.
        cause: String,
    },
}
