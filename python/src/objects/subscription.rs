use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rackpool_objects::Store;

use super::ObjectInfo;
use super::store::SIGNALS_EVERY;
use crate::arguments::seconds;
use crate::future::{self, Wait};
use crate::session::{MemberId, Session};

/// A change of a store.
#[pyclass(frozen, eq, get_all, module = "rackpool")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreEvent {
    /// "sealed", or "deleted": the object was deleted or evicted, or has expired.
    kind: &'static str,
    /// The id of the object.
    id: Vec<u8>,
    /// What the store says of a sealed object; `None` for one that is gone.
    info: Option<ObjectInfo>,
}

impl From<rackpool_objects::StoreEvent> for StoreEvent {
    fn from(event: rackpool_objects::StoreEvent) -> Self {
        match event {
            rackpool_objects::StoreEvent::Sealed(info) => {
                Self { kind: "sealed", id: info.id.clone(), info: Some(info.into()) }
            }
            rackpool_objects::StoreEvent::Deleted(id) => Self { kind: "deleted", id, info: None },
        }
    }
}

#[pymethods]
impl StoreEvent {
    fn __repr__(&self) -> String {
        format!("<rackpool.StoreEvent: \"{}\" {}>", self.id.escape_ascii(), self.kind)
    }
}

/// Tells which objects a store has under a prefix: first those that are there, then each change, in
/// an iteration without end, also an asynchronous one. One thread at a time uses it.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct Subscription {
    session: Arc<Session>,
    id: MemberId,
    /// A change that an asynchronous iteration has found, and not taken yet. Locked only by threads
    /// that hold the GIL, and while they call nothing of Python.
    found: Mutex<Option<StoreEvent>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.session.remove_subscription(self.id);
    }
}

impl Subscription {
    /// Subscribes to the objects of a store, which may end before the subscription does.
    pub(super) fn new(
        py: Python<'_>,
        session: &Arc<Session>,
        store: MemberId,
        prefix: &[u8],
    ) -> PyResult<Self> {
        let found = session.run_store(py, store, |store: &Store| Ok(store.subscribe(prefix)))?;
        let id = session.add_subscription(py, found)?;
        Ok(Self { session: Arc::clone(session), id, found: Mutex::default() })
    }

    fn take_found(&self) -> Option<StoreEvent> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Subscription {
    /// The next change; `None` if there was none for `timeout` seconds (default: waits as long as
    /// it takes). In asyncio: `async for event in subscription`.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<StoreEvent>> {
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(found) = self.take_found() {
            return Ok(Some(found));
        }
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let pause = left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY));
            let found = self.session.run_subscription(py, self.id, |told| told.next(pause))?;
            if found.is_some() || left == Some(Duration::ZERO) {
                return Ok(found.map(StoreEvent::from));
            }
            py.check_signals()?;
        }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoreEvent>> {
        self.next(py, None)
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        future::begin(slf.py(), slf.clone().unbind())
    }
}

impl Wait for Py<Subscription> {
    fn look(&mut self, py: Python<'_>) -> PyResult<bool> {
        let subscription = self.get();
        let Some(found) = subscription.next(py, Some(SIGNALS_EVERY.as_secs_f64()))? else {
            return Ok(false);
        };
        *subscription.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        Ok(true)
    }

    fn take(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let found = self.get().take_found().ok_or_else(|| {
            let text = "another task took the change: subscribe once for each task";
            PyRuntimeError::new_err(text)
        })?;
        Ok(Py::new(py, found)?.into_any())
    }
}
