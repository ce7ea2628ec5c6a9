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
    /// A plot cannot be drawn.
    #[error("the plot {plot} cannot be drawn: {cause}")]
    Draw {
        /// The plot.
        plot: &'static str,
        /// The reason.
        cause: String,
    },
}
