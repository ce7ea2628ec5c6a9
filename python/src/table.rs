use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackpool_kv::{Form, PoolError, TableOptions, ValueKind, now_ms};

use crate::arguments::{seconds, unsigned};
use crate::bytes::unchanging;
use crate::errors::{KvError, NotATable};
use crate::items::{Items, Part};
use crate::pool::Pool;
use crate::session::{Handle, MemberId, Session};

/// A hash table in the pool: keys and values are `bytes`. Any thread of any process in any rack may
/// call any method.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct Table {
    entry: Arc<TableEntry>,
    name: String,
}

/// A table in its session, which it leaves with the last Python object that uses it.
#[derive(Debug)]
pub(crate) struct TableEntry {
    session: Arc<Session>,
    id: MemberId,
}

impl TableEntry {
    /// Calls `work` with a handle of the table, without the GIL.
    pub(crate) fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Handle) -> Result<T, KvError> + Send,
    ) -> PyResult<T> {
        self.session.run_table(py, self.id, work)
    }
}

impl Drop for TableEntry {
    fn drop(&mut self) {
        self.session.remove_table(self.id);
    }
}

/// The entry's expiry for a time to live.
fn form(ttl: Option<f64>) -> PyResult<Form> {
    let Some(ttl) = ttl else { return Ok(Form::PLAIN) };
    let ttl = seconds("ttl", ttl)?;
    if ttl < Duration::from_millis(1) {
        return Err(PyValueError::new_err("ttl is less than 1 ms: delete the key instead"));
    }
    let ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Ok(Form { kind: ValueKind::STRING, expires_ms: now_ms().saturating_add(ms) })
}

/// The options of a table that is created.
fn options(
    pool: &Pool,
    max_depth: Option<&Bound<'_, PyAny>>,
    segment_bytes: Option<&Bound<'_, PyAny>>,
) -> PyResult<TableOptions> {
    let mut options = TableOptions::for_pages(pool.page_bytes());
    if let Some(depth) = max_depth {
        // The library refuses a depth that is too large.
        options.max_depth = u8::try_from(unsigned("max_depth", depth)?).unwrap_or(u8::MAX);
    }
    if let Some(bytes) = segment_bytes {
        options.segment_bytes = unsigned("segment_bytes", bytes)?;
    }
    Ok(options)
}

#[pymethods]
impl Table {
    #[new]
    #[pyo3(signature = (pool, name, *, create=true, max_depth=None, segment_bytes=None))]
    fn new(
        py: Python<'_>,
        pool: &Pool,
        name: String,
        create: bool,
        max_depth: Option<&Bound<'_, PyAny>>,
        segment_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = options(pool, max_depth, segment_bytes)?;
        let session = Arc::clone(&pool.session);
        let found = session.run(py, |pool| -> Result<_, KvError> {
            let memory = Arc::clone(pool);
            if create {
                return rackpool_kv::Table::open_or_create(memory, &name, &options).map(Some);
            }
            let root = pool.root(&name).map_err(PoolError::from).map_err(KvError::Memory)?;
            root.map(|addr| rackpool_kv::Table::open(memory, addr)).transpose()
        })?;
        let Some(table) = found else {
            let text = format!("there is no table `{name}`: create it, or check the name");
            return Err(NotATable::new_err(text));
        };
        let id = session.add_table(py, table)?;
        Ok(Self { entry: Arc::new(TableEntry { session, id }), name })
    }

    /// The name of the root under which the table is found.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The value of `key`; `default` if the key is absent.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = unchanging(key)?;
        Ok(self.find(py, &key)?.map(Bound::into_any).or(default))
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let key = unchanging(key)?;
        self.find(py, &key)?.ok_or_else(|| PyKeyError::new_err(key.unbind()))
    }

    /// Whether the key is present, whatever the kind of its value.
    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = unchanging(key)?;
        let key = key.as_bytes();
        self.entry.run(py, |handle| Ok(handle.read(key)?.is_some()))
    }

    /// Stores `value` under `key`, for `ttl` seconds if that is given. Returns whether it replaced
    /// a value.
    #[pyo3(signature = (key, value, *, ttl=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        ttl: Option<f64>,
    ) -> PyResult<bool> {
        let (key, value, form) = (unchanging(key)?, unchanging(value)?, form(ttl)?);
        let (key, value) = (key.as_bytes(), value.as_bytes());
        self.entry.run(py, |handle| handle.put_entry(key, form, value))
    }

    fn __setitem__(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.put(py, key, value, None).map(drop)
    }

    /// Stores `new` under `key` if its value is `expected`; `None` means that the key is absent.
    /// Returns whether it stored the value, which does not expire.
    #[pyo3(signature = (key, expected, new))]
    fn compare_and_put(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        new: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (key, new) = (unchanging(key)?, unchanging(new)?);
        let expected = expected.map(unchanging).transpose()?;
        let expected = expected.as_ref().map(|expected| expected.as_bytes());
        let (key, new) = (key.as_bytes(), new.as_bytes());
        self.entry.run(py, |handle| handle.compare_and_put(key, expected, new))
    }

    /// Deletes `key`. Returns whether it was present.
    fn delete(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let key = unchanging(key)?;
        let key = key.as_bytes();
        self.entry.run(py, |handle| handle.delete(key))
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = unchanging(key)?;
        if self.delete(py, &key)? { Ok(()) } else { Err(PyKeyError::new_err(key.unbind())) }
    }

    /// Seconds until the entry of `key` expires; `None` if it does not.
    fn ttl(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<f64>> {
        let key = unchanging(key)?;
        let bytes = key.as_bytes();
        let found = self.entry.run(py, |handle| Ok(handle.read(bytes)?.map(|entry| entry.form)))?;
        match found {
            None => Err(PyKeyError::new_err(key.unbind())),
            Some(Form { expires_ms: 0, .. }) => Ok(None),
            Some(Form { expires_ms, .. }) => {
                let left = Duration::from_millis(expires_ms.saturating_sub(now_ms()));
                Ok(Some(left.as_secs_f64()))
            }
        }
    }

    /// Counts the entries by reading every slot. Expired entries that are still in their slots
    /// count; entries that others store or delete meanwhile may or may not.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        self.entry.run(py, |handle| handle.count())
    }

    /// An iterator over keys and values, in no order.
    fn items(&self) -> Items {
        Items::new(Arc::clone(&self.entry), Part::KeyAndValue)
    }

    /// An iterator over the keys, in no order.
    fn keys(&self) -> Items {
        Items::new(Arc::clone(&self.entry), Part::Key)
    }

    fn __iter__(&self) -> Items {
        self.keys()
    }

    fn __repr__(&self) -> String {
        format!("<rackpool.Table {:?}>", self.name)
    }
}

impl Table {
    fn find<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let key = key.as_bytes();
        let found = self.entry.run(py, |handle| {
            let mut value = Vec::new();
            Ok(handle.get(key, &mut value)?.then_some(value))
        })?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }
}
