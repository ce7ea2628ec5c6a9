use std::process;

use pyo3::prelude::*;
use rackpool_client::DaemonError;

use crate::errors::Raise;

/// The process that opened a pool, to which all belongs that came from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// This process.
    pub(crate) fn own() -> Self {
        Self(process::id())
    }

    /// Raises `Inherited` in a process that was forked from this one.
    pub(crate) fn check(self, py: Python<'_>) -> PyResult<()> {
        if self == Self::own() { Ok(()) } else { Err(DaemonError::Inherited.raise(py)) }
    }
}
