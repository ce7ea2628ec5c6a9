//! The report of a demo: plots as PNG and SVG, the results as JSON, and one HTML page with
//! everything.
//!
//! [`DemoRun`] -> [`write()`] -> a folder with `index.html`, `results.json` and two files for each
//! plot. The page needs nothing else: styles and plots are inside, it links to nothing and runs no
//! script.

mod axis;
mod canvas;
mod clock;
mod companions;
mod font;
mod frame;
mod html;
mod machine;
mod palette;
mod plot;
mod redis;
mod render;
mod swap;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ycsb::WorkloadResult;
use plot::Plot;

pub use clock::{utc, utc_millis};
pub use companions::{Companions, MountStep};
pub use machine::facts as machine_facts;
pub use redis::Redis;
pub use swap::{Ablation, AblationRun, HeatCell, HeatMap, HeatRow};

/// The contents of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DemoRun {
    /// Headline: `rackpool demo: YCSB on two racks`.
    pub title: String,
    /// Time of the run, formatted by [`utc`].
    pub started: String,
    /// The machine, as names and values, see [`machine_facts`].
    pub machine: Vec<(String, String)>,
    /// The pool (racks, fabric, latency model, memory), as names and values.
    pub pool: Vec<(String, String)>,
    /// The results, in order.
    pub results: Vec<WorkloadResult>,
    /// The same workload with and without swaps of pages, if it was run.
    #[serde(default)]
    pub ablation: Option<Ablation>,
    /// Hotness of pages during the ablation, if it was sampled.
    #[serde(default)]
    pub heat: Option<HeatMap>,
    /// Results of the key-value service and the mount, if they were run.
    #[serde(default)]
    pub companions: Option<Companions>,
    /// The same workloads through Redis, if that was tried.
    #[serde(default)]
    pub redis: Option<Redis>,
    /// Facts that a reader needs to interpret the numbers. The page adds those that hold for every
    /// run.
    pub notes: Vec<String>,
    /// The commands that repeat the run, one for each line.
    pub commands: Vec<String>,
}

/// The files of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportPaths {
    /// The page.
    pub html: PathBuf,
    /// The run as JSON.
    pub json: PathBuf,
    /// The plots: each as PNG and as SVG.
    pub plots: Vec<PathBuf>,
}

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

/// Writes the report of `run` into the folder `dir`, which is created if needed. Files of an
/// earlier report are replaced.
///
/// # Errors
/// If there are no results, the font (package `fonts-dejavu-core`) is missing, or a file cannot be
/// written.
pub fn write(dir: &Path, run: &DemoRun) -> Result<ReportPaths, ReportError> {
    if run.results.is_empty() {
        return Err(ReportError::NoResults);
    }
    let faces = font::Faces::load()?;
    std::fs::create_dir_all(dir).map_err(|cause| ReportError::Write { file: dir.into(), cause })?;
    let mut plots = Vec::new();
    let mut drawings = Vec::new();
    for plot in Plot::of(run) {
        let drawing = render::svg(plot, &faces)?;
        plots.push(put(dir, &format!("{}.svg", plot.name()), drawing.as_bytes())?);
        let file = dir.join(format!("{}.png", plot.name()));
        render::png(plot, &faces, &file)?;
        plots.push(file);
        drawings.push((plot.caption(), drawing));
    }
    let html = put(dir, "index.html", html::page(run, &drawings).as_bytes())?;
    let json = serde_json::to_vec_pretty(run).map_err(|cause| ReportError::Write {
        file: dir.join("results.json"),
        cause: cause.into(),
    })?;
    let json = put(dir, "results.json", &json)?;
    Ok(ReportPaths { html, json, plots })
}

fn put(dir: &Path, name: &str, content: &[u8]) -> Result<PathBuf, ReportError> {
    let file = dir.join(name);
    match std::fs::write(&file, content) {
        Ok(()) => Ok(file),
        Err(cause) => Err(ReportError::Write { file, cause }),
    }
}
