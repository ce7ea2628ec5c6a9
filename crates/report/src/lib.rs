//! The report of a demo: plots as PNG and SVG, the results as JSON, and one HTML page with
//! everything. And, in [`figures`], the report of a paper's figures that were measured again.
//!
//! [`DemoRun`] -> [`write()`] -> a folder with `index.html`, `results.json` and two files for each
//! plot. The page needs nothing else: styles and plots are inside, it links to nothing and runs no
//! script.
#![forbid(unsafe_code)]

mod axis;
mod canvas;
mod companions;
mod demo_run;
mod error;
mod escape;
pub mod figures;
mod font;
mod frame;
mod html;
mod machine;
mod objects;
mod page;
mod palette;
mod plot;
mod redis;
mod redis_section;
mod render;
mod swap_runs;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use plot::Plot;
use render::Drawable as _;

pub use companions::{Companions, MountStep};
pub use demo_run::DemoRun;
pub use error::ReportError;
pub use machine::facts as machine_facts;
pub use objects::{ObjectTimes, Objects};
pub use redis::Redis;
pub use swap_runs::{Ablation, AblationRun, HeatCell, HeatMap, HeatRow};

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
    make_folder(dir)?;
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
    let json = put_json(dir, "results.json", run)?;
    Ok(ReportPaths { html, json, plots })
}

fn make_folder(dir: &Path) -> Result<(), ReportError> {
    std::fs::create_dir_all(dir).map_err(|cause| ReportError::Write { file: dir.into(), cause })
}

fn put_json(dir: &Path, name: &str, run: &impl serde::Serialize) -> Result<PathBuf, ReportError> {
    let json = serde_json::to_vec_pretty(run)
        .map_err(|cause| ReportError::Write { file: dir.join(name), cause: cause.into() })?;
    put(dir, name, &json)
}

fn put(dir: &Path, name: &str, content: &[u8]) -> Result<PathBuf, ReportError> {
    let file = dir.join(name);
    match std::fs::write(&file, content) {
        Ok(()) => Ok(file),
        Err(cause) => Err(ReportError::Write { file, cause }),
    }
}
