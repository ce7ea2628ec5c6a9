use std::ffi::{c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// Mapped memory of the pool that an object of Python exports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// The address of the first byte, whose provenance is exposed.
    start: usize,
    len: usize,
    is_read_only: bool,
}

impl Memory {
    pub(super) fn read_only(bytes: &[u8]) -> Self {
        let (start, len) = (bytes.as_ptr().expose_provenance(), bytes.len());
        Self { start, len, is_read_only: true }
    }

    pub(super) fn writable(bytes: &mut [u8]) -> Self {
        let (start, len) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
        Self { start, len, is_read_only: false }
    }

    pub(super) const fn len(self) -> usize {
        self.len
    }
}

/// Fills `view`, a buffer that Python's interpreter asks `exporter` for. If there is no memory, or
/// it is read-only and `flags` ask for more, the view stays without an object and the error is
/// raised.
///
/// # Safety
/// - `view` is null or valid for writes of a `Py_buffer`, as in a call of `__getbuffer__`.
/// - The memory stays mapped as long as `exporter` exists and does not move. If it is not
///   read-only, no Rust code has a reference to its bytes before the interpreter releases the view.
pub(super) unsafe fn export(
    exporter: &Bound<'_, PyAny>,
    memory: PyResult<Memory>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if !view.is_null() {
        // SAFETY: `view` is not null, so the caller says that it can be written to.
        unsafe { (*view).obj = ptr::null_mut() };
    }
    let Memory { start, len, is_read_only } = memory?;
    let start = ptr::with_exposed_provenance_mut::<c_void>(start);
    let len = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: `view` can be written to (a null pointer is refused by the function), `exporter` is
    // an object of Python, of which the view gets a reference, and `start` begins `len` mapped
    // bytes, which stay as long as that reference. The thread holds the GIL, as `Bound` says.
    let result = unsafe {
        ffi::PyBuffer_FillInfo(view, exporter.as_ptr(), start, len, is_read_only.into(), flags)
    };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(exporter.py())) }
}
