//! Buffers of Python.
//!
//! While the GIL is released other Python threads may change a `bytearray`, an array or a view of
//! one, and the Rust library must not see bytes that change. A `bytes` object does not change: the
//! library reads it in place, and fills a new one in place. Any other buffer is copied once, under
//! the GIL.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};

/// The bytes of a C-contiguous buffer of any item type, as an object that does not change.
pub(crate) fn unchanging<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = buffer.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    let view = contiguous(buffer)?;
    Ok(view.call_method0("tobytes")?.cast_into::<PyBytes>()?)
}

/// A writable buffer of Python, seen as bytes. It can't be resized while this exists.
#[derive(Debug)]
pub(crate) struct Writable<'py>(Bound<'py, PyAny>);

impl<'py> Writable<'py> {
    pub(crate) fn new(buffer: &Bound<'py, PyAny>) -> PyResult<Self> {
        let view = contiguous(buffer)?;
        if view.getattr("readonly")?.is_truthy()? {
            return Err(PyTypeError::new_err(
                "the buffer is read-only: pass a bytearray or another writable buffer",
            ));
        }
        // A view without a byte can't be cast, and the pool refuses the access.
        if view.getattr("nbytes")?.extract::<usize>()? == 0 {
            return Ok(Self(view.into_any()));
        }
        view.call_method1("cast", ("B",)).map(Self)
    }

    pub(crate) fn len(&self) -> PyResult<usize> {
        self.0.getattr("nbytes")?.extract()
    }

    /// Copies as many bytes as the buffer has into it.
    pub(crate) fn fill(&self, bytes: &Bound<'py, PyBytes>) -> PyResult<()> {
        self.0.set_item(PySlice::full(self.0.py()), bytes)
    }
}

fn contiguous<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
    let view = PyMemoryView::from(buffer)?;
    if view.getattr("c_contiguous")?.is_truthy()? {
        return Ok(view);
    }
    Err(PyTypeError::new_err("the buffer is not C-contiguous: pass a contiguous copy of it"))
}
