use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::export::{Memory, export};
use crate::errors::Raise;
use crate::process::Process;

/// A sealed object as a read-only buffer. The bytes stay, and do not change, as long as the view or
/// a buffer of it exists, even if a program deletes the object.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct View {
    view: rackpool_objects::View,
    process: Process,
}

impl View {
    pub(super) fn new(view: rackpool_objects::View) -> Self {
        Self { view, process: Process::own() }
    }

    fn memory(&self, py: Python<'_>) -> PyResult<Memory> {
        // The pin is that of the parent: in a child it does not keep the memory.
        self.process.check(py)?;
        Ok(Memory::read_only(&self.view))
    }
}

#[pymethods]
impl View {
    /// The metadata of the object.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.process.check(py)?;
        Ok(PyBytes::new(py, self.view.metadata()))
    }

    /// The number that names the layout of the bytes.
    #[getter]
    const fn layout_tag(&self) -> u64 {
        self.view.layout_tag()
    }

    /// The checksum of bytes and metadata, computed when the object was sealed.
    #[getter]
    const fn checksum(&self) -> u64 {
        self.view.checksum()
    }

    /// When the object was sealed, in milliseconds since 1970 by the creator's clock.
    #[getter]
    const fn created_ms(&self) -> u64 {
        self.view.created_ms()
    }

    /// Computes the checksum of the bytes; raises `Damaged` if it is not that of the seal.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(py)?;
        py.detach(|| self.view.verify()).map_err(|error| error.raise(py))
    }

    fn __len__(&self) -> usize {
        self.view.len()
    }

    fn __repr__(&self) -> String {
        format!("<rackpool.View of {} B>", self.view.len())
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get().memory(slf.py());
        // SAFETY: the interpreter passes `view` on. The view of Rust in this object keeps the
        // memory mapped, at one place; it is dropped with this object.
        unsafe { export(slf, memory, view, flags) }
    }
}
