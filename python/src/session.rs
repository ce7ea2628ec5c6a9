//! The state that a Python `Pool` shares with its tables and object stores: the open pool, the
//! tables' handles, the stores and their subscriptions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rackpool_client::{DaemonError, Pool};
use rackpool_objects::{Store, StoreError, Subscription};

use crate::errors::{KvError, Raise};
use crate::process::Process;

type Table = rackpool_kv::Table<Arc<Pool>>;
pub(crate) type Handle = rackpool_kv::Handle<Arc<Pool>>;

/// A pool that is open until it is closed. The Rust pool closes when its last reference goes:
/// `close` drops those of the session, its tables, stores and subscriptions; a call in progress
/// drops its own.
#[derive(Debug)]
pub(crate) struct Session {
    /// Locked only by threads that hold the GIL, and while they call nothing of Python: a
    /// finalizer could lock it again.
    open: Mutex<Option<Open>>,
    process: Process,
}

#[derive(Debug)]
struct Open {
    pool: Arc<Pool>,
    tables: HashMap<MemberId, OpenTable>,
    stores: HashMap<MemberId, Store>,
    /// `None`: a call uses the subscription.
    subscriptions: HashMap<MemberId, Option<Subscription>>,
    next: MemberId,
}

impl Open {
    fn next_id(&mut self) -> MemberId {
        let id = self.next;
        self.next = MemberId(id.0 + 1);
        id
    }
}

/// A table, and those of its handles that no call uses. Each call has a handle of its own.
#[derive(Debug)]
struct OpenTable {
    table: Table,
    idle: Vec<Handle>,
}

/// Names a table, a store or a subscription within its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MemberId(u64);

impl Session {
    pub(crate) fn new(pool: Pool) -> Arc<Self> {
        let open = Open {
            pool: Arc::new(pool),
            tables: HashMap::new(),
            stores: HashMap::new(),
            subscriptions: HashMap::new(),
            next: MemberId::default(),
        };
        Arc::new(Self { open: Mutex::new(Some(open)), process: Process::own() })
    }

    fn open(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.open().is_none()
    }

    fn pool(&self, py: Python<'_>) -> PyResult<Arc<Pool>> {
        let pool = self.open().as_ref().map(|open| Arc::clone(&open.pool));
        pool.ok_or_else(|| closed(py))
    }

    /// Calls `work` with the pool, without the GIL.
    pub(crate) fn run<T: Send, E: Raise + Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Arc<Pool>) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let pool = self.pool(py)?;
        py.detach(move || work(&pool)).map_err(|error| error.raise(py))
    }

    /// Adds a table of this pool.
    pub(crate) fn add_table(&self, py: Python<'_>, table: Table) -> PyResult<MemberId> {
        let added = self.open().as_mut().map(|open| {
            let id = open.next_id();
            open.tables.insert(id, OpenTable { table, idle: Vec::new() });
            id
        });
        added.ok_or_else(|| closed(py))
    }

    /// Removes a table that no Python object names any more.
    pub(crate) fn remove_table(&self, id: MemberId) {
        let removed = self.open().as_mut().and_then(|open| open.tables.remove(&id));
        drop(removed);
    }

    /// Calls `work` with a handle of a table, without the GIL.
    pub(crate) fn run_table<T: Send>(
        &self,
        py: Python<'_>,
        id: MemberId,
        work: impl FnOnce(&mut Handle) -> Result<T, KvError> + Send,
    ) -> PyResult<T> {
        let handle = self.take_handle(id).ok_or_else(|| closed(py))?;
        let (result, handle) = py.detach(move || {
            let mut handle = handle;
            (work(&mut handle), handle)
        });
        self.return_handle(id, handle);
        result.map_err(|error| error.raise(py))
    }

    fn take_handle(&self, id: MemberId) -> Option<Handle> {
        let mut open = self.open();
        let table = open.as_mut()?.tables.get_mut(&id)?;
        Some(table.idle.pop().unwrap_or_else(|| table.table.handle()))
    }

    fn return_handle(&self, id: MemberId, handle: Handle) {
        let mut open = self.open();
        if let Some(table) = open.as_mut().and_then(|open| open.tables.get_mut(&id)) {
            table.idle.push(handle);
        }
    }

    /// Adds an object store of this pool.
    pub(crate) fn add_store(&self, py: Python<'_>, store: Store) -> PyResult<MemberId> {
        let added = self.open().as_mut().map(|open| {
            let id = open.next_id();
            open.stores.insert(id, store);
            id
        });
        added.ok_or_else(|| closed(py))
    }

    /// Removes a store that no Python object names any more.
    pub(crate) fn remove_store(&self, id: MemberId) {
        let removed = self.open().as_mut().and_then(|open| open.stores.remove(&id));
        drop(removed);
    }

    /// Calls `work` with an object store, without the GIL.
    pub(crate) fn run_store<T: Send>(
        &self,
        py: Python<'_>,
        id: MemberId,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.open().as_ref().and_then(|open| open.stores.get(&id).cloned());
        let store = store.ok_or_else(|| closed(py))?;
        // A child may have inherited a lock of the store that a thread of the parent holds.
        self.process.check(py)?;
        py.detach(move || work(&store)).map_err(|error| error.raise(py))
    }

    /// Adds a subscription to a store of this pool.
    pub(crate) fn add_subscription(
        &self,
        py: Python<'_>,
        subscription: Subscription,
    ) -> PyResult<MemberId> {
        let added = self.open().as_mut().map(|open| {
            let id = open.next_id();
            open.subscriptions.insert(id, Some(subscription));
            id
        });
        added.ok_or_else(|| closed(py))
    }

    /// Removes a subscription that no Python object names any more.
    pub(crate) fn remove_subscription(&self, id: MemberId) {
        let removed = self.open().as_mut().and_then(|open| open.subscriptions.remove(&id));
        drop(removed);
    }

    /// Calls `work` with a subscription, without the GIL. Raises `RuntimeError` while a call of
    /// another thread uses it.
    pub(crate) fn run_subscription<T: Send>(
        &self,
        py: Python<'_>,
        id: MemberId,
        work: impl FnOnce(&mut Subscription) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        self.check_open(py)?;
        // A child may have inherited a lock of the store that a thread of the parent holds.
        self.process.check(py)?;
        let taken = self.open().as_mut().and_then(|open| open.subscriptions.get_mut(&id)?.take());
        let mut taken = taken.ok_or_else(|| {
            PyRuntimeError::new_err(
                "another thread waits for this subscription: subscribe once for each thread",
            )
        })?;
        let (result, taken) = py.detach(move || (work(&mut taken), taken));
        self.return_subscription(id, taken);
        result.map_err(|error| error.raise(py))
    }

    fn return_subscription(&self, id: MemberId, taken: Subscription) {
        let mut open = self.open();
        if let Some(place) = open.as_mut().and_then(|open| open.subscriptions.get_mut(&id)) {
            *place = Some(taken);
        }
    }

    /// Raises `Closed` if the pool is closed.
    pub(crate) fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed() { Err(closed(py)) } else { Ok(()) }
    }

    /// Closes the pool; the second time does nothing. A call that other threads have begun goes on
    /// and ends; each later call raises `Closed`.
    pub(crate) fn close(&self, py: Python<'_>) {
        let open = self.open().take();
        py.detach(move || drop(open));
    }
}

fn closed(py: Python<'_>) -> PyErr {
    DaemonError::Closed.raise(py)
}
