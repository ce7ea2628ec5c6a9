//! Checks a run before anything of it is written.

use std::collections::BTreeSet;

use super::{Figure, FiguresRun, Panel, Series};
use crate::error::ReportError;

/// Values of this size and above are refused: the ratio of an axis' ends has to be finite.
const TOO_LARGE: f64 = 1e30;

/// Returns the first error of the run.
pub(super) fn check(run: &FiguresRun) -> Result<(), ReportError> {
    if run.figures.is_empty() {
        return Err(ReportError::NoFigures);
    }
    let mut seen = BTreeSet::new();
    for figure in &run.figures {
        if !is_fit(&figure.id) {
            return Err(ReportError::FigureId(figure.id.clone()));
        }
        for panel in &figure.panels {
            check_panel(figure, panel)?;
            if !seen.insert((&figure.id, &panel.name)) {
                let (figure, panel) = (figure.id.clone(), panel.name.clone());
                return Err(ReportError::PanelTwice { figure, panel });
            }
        }
    }
    Ok(())
}

/// Returns true if the name can be a part of a file's name.
fn is_fit(name: &str) -> bool {
    let is_fit = |letter| matches!(letter, 'a'..='z' | '0'..='9' | '-');
    !name.is_empty() && name.chars().all(is_fit)
}

fn check_panel(figure: &Figure, panel: &Panel) -> Result<(), ReportError> {
    if !is_fit(&panel.name) {
        let (figure, panel) = (figure.id.clone(), panel.name.clone());
        return Err(ReportError::PanelName { figure, panel });
    }
    panel.series.iter().try_for_each(|series| check_series(figure, panel, series))
}

fn check_series(figure: &Figure, panel: &Panel, series: &Series) -> Result<(), ReportError> {
    let (values, places) = (series.values.len(), panel.x.len());
    let (figure, panel) = (figure.id.clone(), panel.name.clone());
    let name = series.name.clone();
    if values != places {
        return Err(ReportError::SeriesLength { figure, panel, series: name, values, places });
    }
    let is_unfit = |value: &f64| !value.is_finite() || value.abs() >= TOO_LARGE;
    match series.values.iter().flatten().copied().find(is_unfit) {
        Some(value) => Err(ReportError::Value { figure, panel, series: name, value }),
        None => Ok(()),
    }
}
