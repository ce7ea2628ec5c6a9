use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rackpool_client::{AccessError, DaemonError, GlobalAddr, Pool, RackId};
use rackpool_kv::{EntryPlace, Handle, Table, TableOptions, now_ms};

use crate::cast::Lenders;
use crate::error::StoreError;
use crate::layout::head::Head;
use crate::layout::header::{StoreHeader, StorePhase, StorePrefix};
use crate::options::StoreOptions;
use crate::stats::{Counters, StoreStats};
use crate::survey::Survey;

/// Options and phase are read again after this time.
pub(crate) const OPTIONS_AGE: Duration = Duration::from_secs(1);

/// A named set of objects in a pool. Cheap to clone; all clones and threads can use it at once.
///
/// All operations are linearizable among all programs in all racks: a sealed object is in the store
/// until it is deleted, and a get returns an object that was in the store during the call.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use rackpool_client::{ClientOptions, Pool, RackId};
/// # use rackpool_objects::{CreateOptions, Store};
/// # let pool = Arc::new(Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?);
/// let store = Store::open_or_create(pool, "images")?;
/// store.put(b"logo", &[7; 1000], &CreateOptions::default())?;
/// assert!(store.contains(b"logo")?);
/// assert!(store.delete(b"logo")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) shared: Arc<StoreState>,
}

/// What all clones of a store share.
pub(crate) struct StoreState {
    pub(crate) pool: Arc<Pool>,
    header: GlobalAddr,
    /// The stamp of the header.
    stamp: u64,
    pub(crate) purpose: Purpose,
    objects: Table<Arc<Pool>>,
    /// The replica tables that were opened, by rack.
    replicas: Mutex<HashMap<RackId, Table<Arc<Pool>>>>,
    /// Handles that no thread uses at the moment.
    handles: Mutex<Vec<Handles>>,
    /// The options, and when they were read.
    options: Mutex<(StoreOptions, Instant)>,
    /// The memory of the store in the own rack. An eviction holds the lock.
    pub(crate) survey: Mutex<Survey>,
    /// The racks that take objects of this one.
    pub(crate) lenders: Mutex<Lenders>,
    pub(crate) counters: Counters,
}

/// What a program has opened a store for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// What makes room may move to other racks.
    Program,
    /// What makes room moves to files at most: agents that wait for each other have no thread left.
    Agent,
    /// An agent that takes objects of other racks: nothing makes room for them.
    Lender,
    /// The removal of the store.
    Removal,
}

/// What one operation works with.
#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) objects: Handle<Arc<Pool>>,
    /// The replica table of the own rack, once it was needed.
    pub(crate) replicas: Option<Handle<Arc<Pool>>>,
    /// The value that was read last.
    value: Vec<u8>,
}

/// The head of an object, as a table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedHead {
    pub(crate) place: EntryPlace,
    pub(crate) head: Head,
}

impl Handles {
    /// The head of the object with this key in the object table.
    pub(crate) fn find(&mut self, key: &[u8]) -> Result<Option<PlacedHead>, StoreError> {
        find(&mut self.objects, key, &mut self.value)
    }

    /// The head of the replica with this key in this rack's replica table, as far as it was opened.
    pub(crate) fn find_replica(&mut self, key: &[u8]) -> Result<Option<PlacedHead>, StoreError> {
        match &mut self.replicas {
            Some(replicas) => find(replicas, key, &mut self.value),
            None => Ok(None),
        }
    }

    /// The value of another entry of the object table.
    pub(crate) fn value(&mut self, key: &[u8]) -> Result<Option<&[u8]>, StoreError> {
        let is_present = self.objects.get(key, &mut self.value)?;
        Ok(is_present.then_some(&self.value))
    }
}

/// The head with this key in a table.
pub(crate) fn find(
    table: &mut Handle<Arc<Pool>>,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Result<Option<PlacedHead>, StoreError> {
    let Some(place) = table.get_placed(key, value)? else { return Ok(None) };
    let head = Head::decode(value).ok_or(StoreError::Damaged { addr: place.addr })?;
    Ok(Some(PlacedHead { place, head }))
}

/// Locks a mutex, poisoned or not: no holder leaves its contents half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the store of this name; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`] if the root of this name leads to something else,
    /// [`StoreError::Version`], [`StoreError::Removed`] if a removal of the store is not complete,
    /// or that of the pool.
    pub fn open(pool: Arc<Pool>, name: &str) -> Result<Option<Self>, StoreError> {
        match pool.root(name)? {
            Some(header) => Self::at(pool, header, name).map(Some),
            None => Ok(None),
        }
    }

    /// Opens the store of this name (1 to 255 bytes), or creates an empty one with the default
    /// options, which keep everything. The name is a root of the pool. Concurrent calls all get the
    /// same store. A kill during the call may leak the header, which takes 4 KiB; else the next
    /// call continues. If a program was killed while it removed a store of this name, the call
    /// completes the removal first.
    ///
    /// # Errors
    /// As [`Store::open`], and as [`Store::remove`] instead of [`StoreError::Removed`].
    pub fn open_or_create(pool: Arc<Pool>, name: &str) -> Result<Self, StoreError> {
        Self::open_or_create_with(pool, name, &StoreOptions::default())
    }

    /// As [`open_or_create`](Self::open_or_create), with options for the store if it is created.
    ///
    /// # Errors
    /// As [`Store::open`], and [`StoreError::Option`].
    pub fn open_or_create_with(
        pool: Arc<Pool>,
        name: &str,
        options: &StoreOptions,
    ) -> Result<Self, StoreError> {
        options.check()?;
        loop {
            if let Some(header) = pool.root(name)? {
                match Self::at(Arc::clone(&pool), header, name) {
                    // A program was killed while it removed the store.
                    Err(StoreError::Removed) => drop(Self::remove(Arc::clone(&pool), name)?),
                    opened => return opened,
                }
                continue;
            }
            let seat = pool.alloc(StoreHeader::SEAT_BYTES)?;
            let header = match pool.alloc(StoreHeader::BYTES as u64) {
                Ok(header) => header,
                Err(full) => {
                    pool.free(seat)?;
                    return Err(full.into());
                }
            };
            pool.write(header, &StoreHeader::encode(options, seat, rand::random()))?;
            match pool.set_root(name, None, Some(header)) {
                Ok(root) if root.changed => {}
                // Another program set the root first.
                Ok(_) => [header, seat].into_iter().try_for_each(|addr| pool.free(addr))?,
                // The root may have been set, so the header stays.
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The store whose header is at this address and has this stamp.
    pub(crate) fn at_header(
        pool: Arc<Pool>,
        header: GlobalAddr,
        stamp: u64,
        purpose: Purpose,
    ) -> Result<Self, StoreError> {
        let prefix = read_prefix(&pool, header)?;
        let ours = prefix.filter(|prefix| {
            let is_in_use = prefix.phase == Some(StorePhase::InUse);
            prefix.version == StoreHeader::VERSION && prefix.stamp == stamp && is_in_use
        });
        Self::with_prefix(pool, header, &ours.ok_or(StoreError::Removed)?, purpose)
    }

    /// The address of the header, and its stamp.
    pub(crate) fn header(&self) -> (GlobalAddr, u64) {
        (self.shared.header, self.shared.stamp)
    }

    fn at(pool: Arc<Pool>, header: GlobalAddr, name: &str) -> Result<Self, StoreError> {
        let prefix = read_prefix(&pool, header)?;
        let prefix = prefix.ok_or_else(|| StoreError::NotAStore { name: name.into() })?;
        if prefix.version != StoreHeader::VERSION {
            let (found, supported) = (prefix.version, StoreHeader::VERSION);
            return Err(StoreError::Version { found, supported });
        }
        if prefix.phase != Some(StorePhase::InUse) {
            return Err(StoreError::Removed);
        }
        Self::with_prefix(pool, header, &prefix, Purpose::Program)
    }

    /// The store with this header. Its phase is not checked for its removal.
    pub(crate) fn with_prefix(
        pool: Arc<Pool>,
        header: GlobalAddr,
        prefix: &StorePrefix,
        purpose: Purpose,
    ) -> Result<Self, StoreError> {
        let objects = table_at(&pool, StoreHeader::objects_at(header))?;
        Ok(Self {
            shared: Arc::new(StoreState {
                pool,
                header,
                stamp: prefix.stamp,
                purpose,
                objects,
                replicas: Mutex::default(),
                handles: Mutex::default(),
                options: Mutex::new((prefix.options, Instant::now())),
                survey: Mutex::default(),
                lenders: Mutex::default(),
                counters: Counters::default(),
            }),
        })
    }

    /// The options of the store, as they were at most a second ago.
    ///
    /// # Errors
    /// [`StoreError::Removed`], or that of the pool.
    pub fn options(&self) -> Result<StoreOptions, StoreError> {
        let shared = &*self.shared;
        self.check_not_inherited()?;
        let mut options = lock(&shared.options);
        if options.1.elapsed() > OPTIONS_AGE {
            *options = (shared.read_options()?, Instant::now());
        }
        Ok(options.0)
    }

    /// Changes the options of the store. Other programs see it within a second. Nothing is evicted
    /// before the next object is created.
    ///
    /// # Errors
    /// [`StoreError::Option`], or that of the pool.
    pub fn set_options(&self, options: &StoreOptions) -> Result<(), StoreError> {
        options.check()?;
        let shared = &*self.shared;
        self.check_in_use()?;
        shared.pool.write(StoreHeader::options_at(shared.header), &options.to_bytes())?;
        *lock(&shared.options) = (*options, Instant::now());
        Ok(())
    }

    /// The oldest time of a seal, in milliseconds since 1970, whose object has not expired.
    pub(crate) fn oldest_alive(&self) -> Result<u64, StoreError> {
        let Some(live) = self.options()?.time_to_live else { return Ok(0) };
        Ok(now_ms().saturating_sub(u64::try_from(live.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Fails if the store was removed a second ago or earlier. Each operation calls this before it
    /// begins, and again after steps that may take long, such as the transfer of an object: so the
    /// program that removes the store knows when nobody uses its tables any more.
    pub(crate) fn check_in_use(&self) -> Result<(), StoreError> {
        self.options().map(drop)
    }

    /// In a forked child the locks may be held by threads of the parent.
    pub(crate) fn check_not_inherited(&self) -> Result<(), StoreError> {
        if self.shared.pool.check_served() == Err(DaemonError::Inherited) {
            return Err(DaemonError::Inherited.into());
        }
        Ok(())
    }

    /// What this program has done with the store through this handle and its clones.
    ///
    /// ```no_run
    /// # use rackpool_objects::Store;
    /// fn share_of_transfers(store: &Store) -> f64 {
    ///     let stats = store.stats();
    ///     stats.transfers as f64 / (stats.local_gets + stats.far_gets) as f64
    /// }
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.shared.counters.stats()
    }

    /// The pool of this store.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Runs `work` with handles of the store's tables.
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut Handles) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let shared = &*self.shared;
        self.check_not_inherited()?;
        let kept = lock(&shared.handles).pop();
        let mut handles = kept.unwrap_or_else(|| Handles {
            objects: shared.objects.handle(),
            replicas: None,
            value: Vec::new(),
        });
        if handles.replicas.is_none() {
            let own = shared.pool.rack();
            handles.replicas = lock(&shared.replicas).get(&own).map(Table::handle);
        }
        let result = work(&mut handles);
        lock(&shared.handles).push(handles);
        result
    }

    /// Opens the replica table of the own rack if there is one.
    pub(crate) fn open_replicas_if_any(&self) -> Result<(), StoreError> {
        let mut word = [0; 8];
        let at = StoreHeader::replicas_at(self.shared.header, self.pool().rack());
        self.pool().read(at, &mut word)?;
        if word != [0; 8] {
            self.own_replica_table()?;
        }
        Ok(())
    }

    /// A handle of a rack's replica table; `None` if there is none.
    pub(crate) fn replica_table_if_any(
        &self,
        rack: RackId,
    ) -> Result<Option<Handle<Arc<Pool>>>, StoreError> {
        let shared = &*self.shared;
        let mut word = [0; 8];
        shared.pool.read(StoreHeader::replicas_at(shared.header, rack), &mut word)?;
        let addr = GlobalAddr::from_raw(u64::from_le_bytes(word));
        // A rack that has lost its memory makes a new table.
        lock(&shared.replicas).retain(|known, table| *known != rack || table.addr() == addr);
        (!addr.is_null()).then(|| self.replica_table(rack)).transpose()
    }

    /// A handle of a rack's replica table, which is created if there is none.
    fn replica_table(&self, rack: RackId) -> Result<Handle<Arc<Pool>>, StoreError> {
        let shared = &*self.shared;
        if let Some(table) = lock(&shared.replicas).get(&rack) {
            return Ok(table.handle());
        }
        let table = table_at(&shared.pool, StoreHeader::replicas_at(shared.header, rack))?;
        let handle = table.handle();
        lock(&shared.replicas).insert(rack, table);
        Ok(handle)
    }

    /// A handle of the own rack's replica table. It is created if there is none, or if its memory
    /// was lost, and the replicas with it.
    pub(crate) fn own_replica_table(&self) -> Result<Handle<Arc<Pool>>, StoreError> {
        let (pool, rack) = (self.pool(), self.pool().rack());
        let at = StoreHeader::replicas_at(self.shared.header, rack);
        loop {
            let mut word = [0; 8];
            pool.read(at, &mut word)?;
            match self.replica_table(rack) {
                Err(error) if error.is_lost() => {
                    pool.compare_and_swap(at, u64::from_le_bytes(word), 0)?;
                }
                opened => return opened,
            }
        }
    }
}

impl StoreState {
    /// Reads the options. The memory of a store that was removed may be used for anything.
    fn read_options(&self) -> Result<StoreOptions, StoreError> {
        let prefix = match read_prefix(&self.pool, self.header) {
            Err(StoreError::Access(AccessError::NotAllocated(_))) => None,
            read => read?,
        };
        let ours = prefix.filter(|prefix| {
            let is_removed = prefix.phase != Some(StorePhase::InUse);
            let is_in_use = !is_removed || self.purpose == Purpose::Removal;
            prefix.stamp == self.stamp && is_in_use
        });
        Ok(ours.ok_or(StoreError::Removed)?.options)
    }
}

/// Reads the first part of a header; `None` if there is no store.
pub(crate) fn read_prefix(
    pool: &Pool,
    header: GlobalAddr,
) -> Result<Option<StorePrefix>, StoreError> {
    let mut bytes = [0; StorePrefix::BYTES];
    pool.read(header, &mut bytes)?;
    Ok(StorePrefix::decode(&bytes))
}

fn table_at(pool: &Arc<Pool>, word: GlobalAddr) -> Result<Table<Arc<Pool>>, StoreError> {
    let options = TableOptions::for_pages(pool.page_bytes());
    Ok(Table::open_or_create_at(Arc::clone(pool), word, &options)?)
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("header", &self.shared.header).finish_non_exhaustive()
    }
}
