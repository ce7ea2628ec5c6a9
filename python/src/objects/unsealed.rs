use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::export::{Memory, export};
use crate::errors::Raise;
use crate::process::Process;
use crate::session::Session;

/// An object that its creator writes in place, as a writable buffer, until it is sealed. If it is
/// dropped before, or its process is killed, its memory is freed.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct UnsealedObject {
    session: Arc<Session>,
    process: Process,
    memory: Memory,
    /// Locked only by threads that hold the GIL, and while they call nothing of Python.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once the object is sealed or aborted. Its bytes are not touched while there are
    /// buffers.
    object: Option<rackpool_objects::UnsealedObject>,
    /// The number of buffers.
    buffers: usize,
    /// Whether the object is aborted when the last buffer is released.
    is_abandoned: bool,
}

impl UnsealedObject {
    pub(super) fn new(session: Arc<Session>, mut object: rackpool_objects::UnsealedObject) -> Self {
        let memory = Memory::writable(&mut object);
        let state = State { object: Some(object), buffers: 0, is_abandoned: false };
        Self { session, process: Process::own(), memory, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        let state = self.state();
        state.object.is_none() || state.is_abandoned
    }

    fn check_unsealed(&self) -> PyResult<()> {
        if self.is_over() { Err(over()) } else { Ok(()) }
    }

    fn writable(&self, py: Python<'_>) -> PyResult<Memory> {
        self.process.check(py)?;
        self.check_unsealed()?;
        Ok(self.memory)
    }

    /// Takes the object, which nobody writes any more.
    fn take(&self, py: Python<'_>) -> PyResult<rackpool_objects::UnsealedObject> {
        self.process.check(py)?;
        let mut state = self.state();
        if state.buffers > 0 {
            return Err(PyBufferError::new_err(
                "a buffer of the object exists, through which its bytes could be changed: release \
                 each memoryview and drop each array first",
            ));
        }
        state.object.take().ok_or_else(over)
    }

    /// Aborts the object as soon as it has no buffer. In a forked child it stays the parent's.
    fn abandon(&self, py: Python<'_>) {
        if self.process == Process::own() {
            self.state().is_abandoned = true;
            self.free_abandoned(py);
        }
    }

    fn free_abandoned(&self, py: Python<'_>) {
        let mut state = self.state();
        let is_free = state.is_abandoned && state.buffers == 0;
        let object = if is_free { state.object.take() } else { None };
        drop(state);
        // The daemon is told, which may take a while.
        py.detach(move || drop(object));
    }
}

fn over() -> PyErr {
    PyValueError::new_err(
        "the object was sealed or aborted already: get it from the store, or create another",
    )
}

#[pymethods]
impl UnsealedObject {
    /// Makes the object visible to all programs. Nobody changes it afterwards.
    pub(super) fn seal(&self, py: Python<'_>) -> PyResult<()> {
        self.session.check_open(py)?;
        let object = self.take(py)?;
        py.detach(move || object.seal().map(drop)).map_err(|error| error.raise(py))
    }

    /// Frees the object's memory.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let object = self.take(py)?;
        py.detach(move || drop(object));
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().check_unsealed()?;
        Ok(slf)
    }

    /// Seals the object, or aborts it after an exception.
    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.is_over() {
            return Ok(());
        }
        if kind.is_none() {
            return self.seal(py);
        }
        // Arrays may still exist in frames that the exception keeps.
        self.abandon(py);
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if self.is_over() { "sealed or aborted" } else { "not sealed" };
        format!("<rackpool.UnsealedObject of {} B, {state}>", self.memory.len())
    }

    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let memory = this.writable(slf.py());
        // SAFETY: the interpreter passes `view` on. The object's memory does not move; it stays
        // mapped until the object is taken, and nothing else makes a reference to its bytes. It is
        // not taken while there are buffers, which are counted below before any other code of
        // Python runs.
        unsafe { export(slf, memory, view, flags) }?;
        this.state().buffers += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(slf: &Bound<'_, Self>, _view: *mut ffi::Py_buffer) {
        let this = slf.get();
        let mut state = this.state();
        state.buffers = state.buffers.saturating_sub(1);
        drop(state);
        this.free_abandoned(slf.py());
    }
}

impl Drop for UnsealedObject {
    fn drop(&mut self) {
        let object = self.state().object.take();
        if object.is_some() {
            // The daemon is told, which may take a while.
            let _ = Python::try_attach(move |py| py.detach(move || drop(object)));
        }
    }
}
