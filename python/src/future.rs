//! Waits of asyncio: a thread looks, and an eventfd tells the event loop.
//!
//! ```text
//! event loop                           thread of this wait
//! future := create_future()
//! add_reader(eventfd)
//! starts the thread -----------------> looks, 50 ms at a time, without the GIL
//!                                      it is there: signals the eventfd
//! reader: takes the result  <---------
//! future.set_result(...)
//! done callback: remove_reader ------> cancelled before: the thread ends at its next look
//! ```

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};
use rackpool_sync::eventfd;

/// What is waited for.
pub(crate) trait Wait: Send + 'static {
    /// Looks for some time, without the GIL. Returns whether there is a result.
    fn look(&mut self, py: Python<'_>) -> PyResult<bool>;

    /// Takes the result. Called in the thread of the event loop, if nobody has cancelled the wait:
    /// so a result that nobody gets is not taken.
    fn take(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

/// What the event loop and the thread share.
struct Shared<W> {
    is_over: OwnedFd,
    is_cancelled: AtomicBool,
    /// The wait, and the error of a look. Locked by the thread while it looks.
    state: Mutex<(W, Option<PyErr>)>,
}

/// Begins a wait, and returns an asyncio future for its result.
pub(crate) fn begin<W: Wait>(py: Python<'_>, wait: W) -> PyResult<Bound<'_, PyAny>> {
    let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
    let future = event_loop.call_method0("create_future")?;
    let (is_over, is_cancelled) = (eventfd::new()?, AtomicBool::new(false));
    let shared = Arc::new(Shared { is_over, is_cancelled, state: Mutex::new((wait, None)) });
    let fd = shared.is_over.as_raw_fd();
    let ended = {
        let (shared, future) = (Arc::clone(&shared), future.clone().unbind());
        move |py: Python<'_>| finish(py, &shared, future.bind(py))
    };
    event_loop.call_method1("add_reader", (fd, callback(py, ended)?))?;
    let done = {
        let (shared, event_loop) = (Arc::clone(&shared), event_loop.unbind());
        move |py: Python<'_>| {
            shared.is_cancelled.store(true, Ordering::Relaxed);
            event_loop.call_method1(py, "remove_reader", (fd,)).map(drop)
        }
    };
    future.call_method1("add_done_callback", (callback(py, done)?,))?;
    thread::Builder::new().name("rackpool-wait".into()).spawn(move || shared.run())?;
    Ok(future)
}

/// A function for Python that takes any arguments.
fn callback(
    py: Python<'_>,
    work: impl Fn(Python<'_>) -> PyResult<()> + Send + Sync + 'static,
) -> PyResult<Bound<'_, PyCFunction>> {
    PyCFunction::new_closure(py, None, None, move |given: &Bound<'_, PyTuple>, _| work(given.py()))
}

/// Gives the result to the future, unless it was cancelled.
fn finish<W: Wait>(py: Python<'_>, shared: &Shared<W>, future: &Bound<'_, PyAny>) -> PyResult<()> {
    eventfd::drain(&shared.is_over);
    if future.call_method0("done")?.extract()? {
        return Ok(());
    }
    // The thread has ended: nobody waits here.
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let result = match state.1.take() {
        Some(error) => Err(error),
        None => state.0.take(py),
    };
    drop(state);
    match result {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(py),))?,
    };
    Ok(())
}

impl<W: Wait> Shared<W> {
    /// Looks until there is a result. Ends without one if the wait is cancelled, or the interpreter
    /// ends.
    fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.is_cancelled.load(Ordering::Relaxed) {
                return;
            }
            match Python::try_attach(|py| state.0.look(py)) {
                None => return,
                Some(Ok(false)) => {}
                Some(Ok(true)) => break,
                Some(Err(error)) => {
                    state.1 = Some(error);
                    break;
                }
            }
        }
        drop(state);
        eventfd::signal(&self.is_over);
    }
}
