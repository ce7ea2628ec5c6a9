use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rackpool_client::RackId;
use rackpool_objects::{CreateOptions, EvictionPolicy, Store, StoreOptions};

use super::{ObjectInfo, ObjectStat, Subscription, UnsealedObject, View, cast};
use crate::arguments::{id, seconds, unsigned};
use crate::bytes::{Writable, flat, len, unchanging};
use crate::errors::NotAStore;
use crate::future::{self, Wait};
use crate::pool::Pool;
use crate::session::{MemberId, Session};

/// A wait looks for signals, such as that of Ctrl-C, this often.
pub(super) const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A named set of objects in the pool: bytes of any size that are written once, sealed, and then
/// read in place. An id is 1 to 64 bytes, or a `str`, which stands for its UTF-8. Any thread of any
/// process in any rack may call any method.
#[pyclass(frozen, module = "rackpool")]
#[derive(Debug)]
pub(crate) struct ObjectStore {
    session: Arc<Session>,
    id: MemberId,
    name: String,
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.session.remove_store(self.id);
    }
}

/// What an object has besides its bytes, in Python's types.
struct Extras<'py> {
    metadata: Option<Bound<'py, PyBytes>>,
    layout_tag: u64,
}

impl<'py> Extras<'py> {
    fn new(
        metadata: Option<&Bound<'py, PyAny>>,
        layout_tag: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let metadata = metadata.map(unchanging).transpose()?;
        let layout_tag = layout_tag.map(|tag| unsigned("layout_tag", tag)).transpose()?;
        Ok(Self { metadata, layout_tag: layout_tag.unwrap_or(0) })
    }

    fn options(&self) -> CreateOptions<'_> {
        let metadata = self.metadata.as_ref().map_or(&[][..], |metadata| metadata.as_bytes());
        CreateOptions { metadata, layout_tag: self.layout_tag, ..CreateOptions::default() }
    }
}

impl ObjectStore {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Store) -> Result<T, rackpool_objects::StoreError> + Send,
    ) -> PyResult<T> {
        self.session.run_store(py, self.id, work)
    }

    fn begin(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyBytes>,
        size: u64,
        extras: &Extras<'_>,
    ) -> PyResult<UnsealedObject> {
        let (id, options) = (id.as_bytes(), extras.options());
        let object = self.run(py, |store| store.create(id, size, &options))?;
        Ok(UnsealedObject::new(Arc::clone(&self.session), object))
    }
}

#[pymethods]
impl ObjectStore {
    #[new]
    #[pyo3(signature = (pool, name, *, create=true))]
    fn new(py: Python<'_>, pool: &Pool, name: String, create: bool) -> PyResult<Self> {
        let session = Arc::clone(&pool.session);
        let found = session.run(py, |pool| {
            let pool = Arc::clone(pool);
            if create {
                Store::open_or_create(pool, &name).map(Some)
            } else {
                Store::open(pool, &name)
            }
        })?;
        let Some(store) = found else {
            let text = format!("there is no object store `{name}`: create it, or check the name");
            return Err(NotAStore::new_err(text));
        };
        let id = session.add_store(py, store)?;
        Ok(Self { session, id, name })
    }

    /// Removes the store of this name with all its objects. Returns whether there was one. Takes
    /// three seconds and more. Other programs that have it open get `Removed`; views stay valid.
    /// After an error or a kill call it again.
    #[staticmethod]
    fn remove(py: Python<'_>, pool: &Pool, name: &str) -> PyResult<bool> {
        pool.session.run(py, |pool| Store::remove(Arc::clone(pool), name))
    }

    /// What this program has done with the store through this object: counters by their names.
    fn stats(&self, py: Python<'_>) -> PyResult<HashMap<&'static str, u64>> {
        Ok(self.run(py, |store| Ok(store.stats()))?.named().into_iter().collect())
    }

    /// The name of the root under which the store is found.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Begins an object of `size` bytes in the own rack, whose contents are unspecified at first.
    #[pyo3(
        signature = (id, size, metadata=None, layout_tag=None),
        text_signature = "($self, id, size, metadata=b'', layout_tag=0)"
    )]
    fn create<'py>(
        &self,
        py: Python<'py>,
        id: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        layout_tag: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<UnsealedObject> {
        let (id, size) = (self::id(id)?, unsigned("size", size)?);
        self.begin(py, &id, size, &Extras::new(metadata, layout_tag)?)
    }

    /// Stores a copy of the bytes of a C-contiguous buffer as an object.
    #[pyo3(
        signature = (id, buffer, metadata=None, layout_tag=None),
        text_signature = "($self, id, buffer, metadata=b'', layout_tag=0)"
    )]
    fn put<'py>(
        &self,
        py: Python<'py>,
        id: &Bound<'py, PyAny>,
        buffer: &Bound<'py, PyAny>,
        metadata: Option<&Bound<'py, PyAny>>,
        layout_tag: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (id, extras) = (self::id(id)?, Extras::new(metadata, layout_tag)?);
        if let Ok(bytes) = buffer.cast::<PyBytes>() {
            let (id, bytes, options) = (id.as_bytes(), bytes.as_bytes(), extras.options());
            return self.run(py, |store| store.put(id, bytes, &options));
        }
        // Other threads could change the bytes while the GIL is released: it is held for the copy.
        let bytes = flat(buffer)?;
        let len = len(&bytes)?;
        let object = Bound::new(py, self.begin(py, &id, len as u64, &extras)?)?;
        if len > 0 {
            Writable::new(&object)?.fill(&bytes)?;
        }
        object.get().seal(py)
    }

    /// The object of this id as a view; `None` if there is no sealed object of this id. An object
    /// of another rack is brought into this one. Raises `LayoutTag` if the object has another tag
    /// than `layout_tag`.
    #[pyo3(signature = (id, layout_tag=None))]
    fn get(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        layout_tag: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<View>> {
        let id = self::id(id)?;
        let layout_tag = layout_tag.map(|tag| unsigned("layout_tag", tag)).transpose()?;
        let id = id.as_bytes();
        let found = self.run(py, |store| match layout_tag {
            Some(tag) => store.get_as(id, tag),
            None => store.get(id),
        })?;
        Ok(found.map(View::new))
    }

    /// Whether there is a sealed object of this id.
    fn __contains__(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = self::id(id)?;
        let id = id.as_bytes();
        self.run(py, |store| store.contains(id))
    }

    /// Removes the object of this id from all racks. Returns whether there was one. The memory of
    /// each rack comes back with its last view.
    fn delete(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = self::id(id)?;
        let id = id.as_bytes();
        self.run(py, |store| store.delete(id))
    }

    /// The sealed objects whose ids begin with `prefix`, in the order of their ids.
    #[pyo3(signature = (prefix=None), text_signature = "($self, prefix=b'')")]
    fn list(&self, py: Python<'_>, prefix: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<ObjectInfo>> {
        let prefix = prefix.map(self::id).transpose()?;
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix.as_bytes());
        let found = self.run(py, |store| store.list(prefix))?;
        Ok(found.into_iter().map(ObjectInfo::from).collect())
    }

    /// What is known of an object; `None` if there is no sealed object of this id.
    fn stat(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<Option<ObjectStat>> {
        let id = self::id(id)?;
        let id = id.as_bytes();
        let found = self.run(py, |store| store.stat(id))?;
        Ok(found.map(ObjectStat::from))
    }

    /// For each id what `get` returns.
    fn get_many(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Option<View>>> {
        let ids = all_ids(&ids)?;
        let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect();
        let found = self.run(py, |store| store.get_many(&ids))?;
        Ok(found.into_iter().map(|view| view.map(View::new)).collect())
    }

    /// Brings objects of other racks into this one. Returns for each id whether there is one.
    fn fetch(&self, py: Python<'_>, ids: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<bool>> {
        let ids = all_ids(&ids)?;
        let ids: Vec<&[u8]> = ids.iter().map(|id| id.as_bytes()).collect();
        self.run(py, |store| store.fetch(&ids))
    }

    /// Waits until there are sealed objects of `count` of the ids (default: all), at most for
    /// `timeout` seconds. Returns for each id whether there was an object during the call.
    #[pyo3(signature = (ids, count=None, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        ids: Vec<Bound<'_, PyAny>>,
        count: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Vec<bool>> {
        let mut wait = ObjectWait::new(&ids, count, timeout)?;
        while !wait.look(py, self)? {
            py.check_signals()?;
        }
        Ok(wait.found)
    }

    /// The same in asyncio: returns a future.
    #[pyo3(signature = (ids, count=None, timeout=None))]
    fn wait_async<'py>(
        slf: Bound<'py, Self>,
        ids: Vec<Bound<'_, PyAny>>,
        count: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wait = ObjectWait::new(&ids, count, timeout)?;
        future::begin(slf.py(), (slf.clone().unbind(), wait))
    }

    /// Subscribes to the objects whose ids begin with `prefix`.
    #[pyo3(signature = (prefix=None), text_signature = "($self, prefix=b'')")]
    fn subscribe(
        &self,
        py: Python<'_>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Subscription> {
        let prefix = prefix.map(self::id).transpose()?;
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| prefix.as_bytes());
        Subscription::new(py, &self.session, self.id, prefix)
    }

    /// Copies an object into other racks, in each of which an agent runs. Returns for each rack
    /// `None`, or why it did not get the object; `None` if there is no object of this id.
    #[pyo3(signature = (id, racks, visible="each", schedule="interleaved", block_size=None))]
    fn cast(
        &self,
        py: Python<'_>,
        id: &Bound<'_, PyAny>,
        racks: Vec<u16>,
        visible: &str,
        schedule: &str,
        block_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<BTreeMap<u16, Option<String>>>> {
        let (id, options) = (self::id(id)?, cast::options(visible, schedule, block_size)?);
        let id = id.as_bytes();
        let racks: Vec<_> = racks.into_iter().map(RackId).collect();
        let report = self.run(py, |store| store.cast(id, &racks, &options, |_| ()))?;
        Ok(report.map(cast::results))
    }

    /// The racks that agents serve.
    fn cast_racks(&self, py: Python<'_>) -> PyResult<Vec<u16>> {
        let racks = self.run(py, Store::cast_racks)?;
        Ok(racks.into_iter().map(|rack| rack.0).collect())
    }

    /// Evicts the objects of this rack that were unused for longest and are not viewed, until
    /// `size` bytes are free again. Returns how many bytes were evicted.
    fn evict(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<u64> {
        let size = unsigned("size", size)?;
        self.run(py, |store| store.evict(size))
    }

    /// Removes what is left of objects whose memory is lost with that of its rack. Returns the
    /// number of lost entries. Their ids are free afterwards.
    fn repair(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, Store::repair)
    }

    /// Sets all options of the store: the most memory in bytes that it takes in each rack; whether
    /// it refuses new objects ("keep"), deletes old ones ("lru") or moves them away ("spill") when
    /// there is no room; the time in seconds after which an object ends. `None`: no limit.
    #[pyo3(signature = (capacity=None, policy="keep", time_to_live=None))]
    fn set_options(
        &self,
        py: Python<'_>,
        capacity: Option<&Bound<'_, PyAny>>,
        policy: &str,
        time_to_live: Option<f64>,
    ) -> PyResult<()> {
        let options = StoreOptions {
            capacity: capacity.map(|capacity| unsigned("capacity", capacity)).transpose()?,
            policy: match policy {
                KEEP => EvictionPolicy::Keep,
                LRU => EvictionPolicy::Lru,
                SPILL => EvictionPolicy::Spill,
                other => {
                    let known = format!("{KEEP:?}, {LRU:?} or {SPILL:?}");
                    let text = format!("policy is {other:?}: it must be {known}");
                    return Err(PyValueError::new_err(text));
                }
            },
            time_to_live: time_to_live.map(|live| seconds("time_to_live", live)).transpose()?,
        };
        self.run(py, |store| store.set_options(&options))
    }

    /// The most memory in bytes that the store takes in each rack.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.run(py, Store::options)?.capacity)
    }

    /// What happens when there is no room for a new object.
    #[getter]
    fn policy(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.run(py, Store::options)?.policy {
            EvictionPolicy::Keep => KEEP,
            EvictionPolicy::Lru => LRU,
            EvictionPolicy::Spill => SPILL,
        })
    }

    /// The time in seconds after which an object ends.
    #[getter]
    fn time_to_live(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let live = self.run(py, Store::options)?.time_to_live;
        Ok(live.map(|live| live.as_secs_f64()))
    }

    fn __repr__(&self) -> String {
        format!("<rackpool.ObjectStore {:?}>", self.name)
    }
}

/// The names of the policies.
/// A wait for sealed objects.
struct ObjectWait {
    ids: Vec<Vec<u8>>,
    found: Vec<bool>,
    /// How many are enough.
    count: usize,
    deadline: Option<Instant>,
}

impl ObjectWait {
    fn new(
        ids: &[Bound<'_, PyAny>],
        count: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let ids = all_ids(ids)?;
        let ids: Vec<Vec<u8>> = ids.iter().map(|id| id.as_bytes().to_vec()).collect();
        let count = count.map(|count| unsigned("count", count)).transpose()?;
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(ids.len());
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(Self { found: vec![false; ids.len()], ids, count, deadline })
    }

    /// Waits for a short time. Returns whether the wait is over.
    fn look(&mut self, py: Python<'_>, store: &ObjectStore) -> PyResult<bool> {
        let left = self.deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let pause = left.map_or(SIGNALS_EVERY, |left| left.min(SIGNALS_EVERY));
        let missing = self.ids.iter().zip(0..).filter(|(_, at)| !self.found[*at]);
        let (missing, at): (Vec<&[u8]>, Vec<usize>) =
            missing.map(|(id, at)| (id.as_slice(), at)).unzip();
        let wanted = self.count.saturating_sub(self.found.len() - missing.len());
        let new = store.run(py, |store| store.wait(&missing, wanted, pause))?;
        for (at, is_new) in at.into_iter().zip(new) {
            self.found[at] |= is_new;
        }
        let found = self.found.iter().filter(|is_found| **is_found).count();
        Ok(found >= self.count || found == self.found.len() || left == Some(Duration::ZERO))
    }
}

impl Wait for (Py<ObjectStore>, ObjectWait) {
    fn look(&mut self, py: Python<'_>) -> PyResult<bool> {
        let (store, wait) = self;
        wait.look(py, store.get())
    }

    fn take(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.1.found.clone().into_pyobject(py)?.into_any().unbind())
    }
}

const KEEP: &str = "keep";
const LRU: &str = "lru";
const SPILL: &str = "spill";

fn all_ids<'py>(ids: &[Bound<'py, PyAny>]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    ids.iter().map(id).collect()
}
