use std::sync::Arc;
use std::vec;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rackpool_kv::{Entry, ValueKind};

use crate::table::TableEntry;

/// Entries that a step of the scan asks for.
const STEP: usize = 256;

/// An iterator over the strings of a table. A key that is present throughout comes at least once,
/// and twice if the table grows meanwhile.
#[pyclass(module = "rackpool")]
#[derive(Debug)]
pub(crate) struct Items {
    table: Arc<TableEntry>,
    part: Part,
    /// The cursor of the next step; `None` after the last one.
    cursor: Option<u64>,
    /// What the last step found and `next` has not returned yet.
    found: vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

/// What an iterator returns of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Key,
    KeyAndValue,
}

impl Items {
    pub(crate) fn new(table: Arc<TableEntry>, part: Part) -> Self {
        Self { table, part, cursor: Some(0), found: Vec::new().into_iter() }
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        loop {
            if let Some((key, value)) = self.found.next() {
                let key = PyBytes::new(py, &key);
                return Ok(Some(match self.part {
                    Part::Key => key.into_any(),
                    Part::KeyAndValue => {
                        PyTuple::new(py, [key, PyBytes::new(py, &value)])?.into_any()
                    }
                }));
            }
            let Some(cursor) = self.cursor else { return Ok(None) };
            let (next, found) = self.table.run(py, |handle| {
                let mut found = Vec::new();
                let next = handle.scan(cursor, STEP, |key, Entry { form, value }| {
                    if form.kind == ValueKind::STRING && !form.is_over() {
                        found.push((key.to_vec(), value.to_vec()));
                    }
                })?;
                Ok((next, found))
            })?;
            self.cursor = (next != 0).then_some(next);
            self.found = found.into_iter();
        }
    }
}
