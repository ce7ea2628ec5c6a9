//! Casts: the options and results in Python's types.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rackpool_objects::{CastOptions, CastReport, CastSchedule, CastVisibility};

use crate::arguments::unsigned;

/// The schedules for racks without pods.
const SCHEDULES: [CastSchedule; 5] = [
    CastSchedule::InterleavedPipelines,
    CastSchedule::BinomialPipeline,
    CastSchedule::Chain,
    CastSchedule::BinomialTree,
    CastSchedule::Sequential,
];

/// The options that these arguments name.
pub(super) fn options(
    visible: &str,
    schedule: &str,
    block_size: Option<&Bound<'_, PyAny>>,
) -> PyResult<CastOptions> {
    let found = SCHEDULES.into_iter().find(|one| one.name() == schedule);
    let schedule = found.ok_or_else(|| {
        let names = SCHEDULES.map(|one| format!("{:?}", one.name())).join(", ");
        PyValueError::new_err(format!("schedule is {schedule:?}: it must be one of {names}"))
    })?;
    let visible = match visible {
        "each" => CastVisibility::Each,
        "together" => CastVisibility::Together,
        other => {
            let text = format!("visible is {other:?}: it must be \"each\" or \"together\"");
            return Err(PyValueError::new_err(text));
        }
    };
    let block_bytes = block_size.map(|size| unsigned("block_size", size)).transpose()?;
    Ok(CastOptions { schedule, visible, block_bytes, ..CastOptions::default() })
}

/// For each rack `None`, or why it did not get the object.
pub(super) fn results(report: CastReport) -> BTreeMap<u16, Option<String>> {
    let racks = report.racks.into_iter();
    racks.map(|(rack, result)| (rack.0, result.err().map(|why| why.to_string()))).collect()
}
