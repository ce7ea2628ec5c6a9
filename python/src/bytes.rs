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
        let view = flat(buffer)?;
        if view.getattr("readonly")?.is_truthy()? {
            return Err(PyTypeError::new_err(
                "the buffer is read-only: pass a bytearray or another writable buffer",
            ));
        }
        Ok(Self(view))
    }

    pub(crate) fn len(&self) -> PyResult<usize> {
        len(&self.0)
    }

    /// Copies as many bytes as the buffer has into it, from another buffer of bytes.
    pub(crate) fn fill(&self, bytes: &Bound<'py, PyAny>) -> PyResult<()> {
        self.0.set_item(PySlice::full(self.0.py()), bytes)
    }
}

/// The length of a view in bytes.
pub(crate) fn len(view: &Bound<'_, PyAny>) -> PyResult<usize> {
    view.getattr("nbytes")?.extract()
}

/// A view of a C-contiguous buffer of any item type as bytes. A view without a byte can't be cast.
pub(crate) fn flat<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let view = contiguous(buffer)?.into_any();
    if len(&view)? == 0 { Ok(view) } else { view.call_method1("cast", ("B",)) }
}

fn contiguous<'py>(buffer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
    let view = PyMemoryView::from(buffer)?;
    if view.getattr("c_contiguous")?.is_truthy()? {
        return Ok(view);
    }
    Err(PyTypeError::new_err("the buffer is not C-contiguous: pass a contiguous copy of it"))
}
