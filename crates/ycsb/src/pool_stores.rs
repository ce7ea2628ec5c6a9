//! The benchmark's store: the key-value table in the pool, accessed from every rack.

use anyhow::Context;
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_kv::ordered::{Direction, KeyRange, MapId, OrderedError, OrderedMaps};
use rackpool_kv::{
    Entry, EntryChange, Handle, KvError, Memory, PoolError, Roots, Table, TableOptions, ValueKind,
};
use rackpool_output::numbers::counted;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use crate::store::{Fields, Pairs, Store, StoreError, StoreFactory, ValueStore};
use crate::trace_recorder::{RecordedPool, TraceRecorder};

/// A pool opened from several racks, and one table in it.
pub struct PoolStores<M: Memory = Arc<Pool>> {
    racks: Vec<Rack<M>>,
    label: String,
}

struct Rack<M: Memory> {
    id: RackId,
    table: Table<M>,
    /// The node table of the ordered keys, if they are kept.
    index: Option<Table<M>>,
}

/// The table, and the racks that access it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The pool's folder.
    pub dir: &'a Path,
    /// The racks; worker threads are assigned to them in turn.
    pub racks: &'a [RackId],
    /// Number of threads in each rack.
    pub threads: usize,
    /// The table's name; the table is created if it does not exist.
    pub table: &'a str,
    /// Whether inserts also store the key in an ordered map, which scans need.
    pub ordered: bool,
}

/// The map of the keys. It is the only one of its node table, and never destroyed.
const INDEX: MapId = MapId::from_bytes(*b"keys, in order  ");

impl PoolStores {
    /// Opens the pool from each of `racks`, and the table `name`, which is created if it does not
    /// exist. Worker threads are assigned to the racks in turn.
    pub fn open(dir: &Path, racks: &[RackId], threads: usize, name: &str) -> anyhow::Result<Self> {
        Self::at(&Place { dir, racks, threads, table: name, ordered: false })
    }

    /// Opens the pool from each of the racks, and the table.
    pub fn at(place: &Place<'_>) -> anyhow::Result<Self> {
        Self::over(place, |pool, _| pool)
    }
}

impl PoolStores<Arc<RecordedPool>> {
    /// As [`at`](PoolStores::at), with every access of the table recorded by `recorder`.
    pub fn recorded(place: &Place<'_>, recorder: &Arc<TraceRecorder>) -> anyhow::Result<Self> {
        Self::over(place, |pool, rack| {
            Arc::new(RecordedPool::new(pool, rack, Arc::clone(recorder)))
        })
    }
}

impl<M: Roots<Error = PoolError> + Clone> PoolStores<M> {
    fn over(place: &Place<'_>, memory: impl Fn(Arc<Pool>, RackId) -> M) -> anyhow::Result<Self> {
        let threads = u16::try_from(place.threads.saturating_add(2)).unwrap_or(u16::MAX).max(8);
        let mut racks = Vec::new();
        let mut fabric = String::new();
        for rack in place.racks {
            let options = ClientOptions::new(place.dir, *rack).threads(threads).exact_daemon(true);
            let pool = Arc::new(Pool::open(options)?);
            fabric = pool.rack_status()?.fabric;
            let options = TableOptions::for_pages(pool.page_bytes());
            let memory = memory(pool, *rack);
            let open = |name: &str| {
                Table::open_or_create(memory.clone(), name, &options)
                    .with_context(|| format!("can't open the table '{name}' from {rack}"))
            };
            let table = open(place.table)?;
            let index = format!("{}.keys", place.table);
            let index = place.ordered.then(|| open(&index)).transpose()?;
            if let Some(index) = &index {
                // The first rack creates it.
                OrderedMaps::new(index.handle()).create(INDEX, place.table.as_bytes())?;
            }
            racks.push(Rack { id: *rack, table, index });
        }
        let count = counted(racks.len() as u64, "rack", "racks");
        let label = format!("pool of {count}, {fabric}");
        Ok(Self { racks, label })
    }
}

struct KvStore<M: Memory> {
    records: Handle<M>,
    keys: Option<OrderedMaps<M>>,
}

fn failed<E: std::error::Error + Send + Sync + 'static>(error: KvError<E>) -> StoreError {
    StoreError::new(error)
}

fn index_failed<E: std::error::Error + Send + Sync + 'static>(
    error: OrderedError<E>,
) -> StoreError {
    StoreError::new(error)
}

impl<M: Memory> Store for KvStore<M> {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.records.get(key, value).map_err(failed)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.records.update(key, value).map_err(failed)
    }

    /// Inserts the key into the ordered map first. A kill in between leaves a key without a record,
    /// which scans skip; so a scan never misses a record.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        if let Some(keys) = &mut self.keys {
            keys.map(INDEX).insert(key, &[]).map_err(index_failed)?;
        }
        self.records.put(key, value).map(drop).map_err(failed)
    }

    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError> {
        let Some(keys) = &mut self.keys else {
            return Err(StoreError::new("the table was opened without its keys' order"));
        };
        pairs.clear();
        let from_start = KeyRange { from: Bound::Included(start), to: Bound::Unbounded };
        let mut rest = count;
        let note = |key: &[u8], _: &[u8]| {
            pairs.push().0.extend_from_slice(key);
            rest = rest.saturating_sub(1);
            if rest > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        keys.map(INDEX).visit(&from_start, Direction::Forward, note).map_err(index_failed)?;
        let records = &mut self.records;
        pairs.retain_found(|keys, found| records.get_many(keys, found).map_err(failed))?;
        Ok(pairs.iter().next().is_some_and(|(key, _)| key == start))
    }

    fn fields(&mut self) -> Fields<'_> {
        Fields::Together(self)
    }
}

impl<M: Memory> ValueStore for KvStore<M> {
    fn modify(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, StoreError> {
        let mut other = None;
        let changed = self.records.modify(key, |entry, value| {
            other = None;
            let Some(Entry { form, value: found }) = entry else { return EntryChange::Keep };
            if form.kind != ValueKind::STRING {
                other = Some(form.kind);
                return EntryChange::Keep;
            }
            value.extend_from_slice(found);
            change(value);
            EntryChange::Put(form)
        });
        match (changed, other) {
            (Ok(_), Some(found)) => Err(failed(KvError::<M::Error>::OtherKind { found })),
            (changed, _) => changed.map_err(failed),
        }
    }
}

impl<M: Memory + Clone + 'static> StoreFactory for PoolStores<M> {
    fn open(&self, thread: usize) -> Result<Box<dyn Store + '_>, StoreError> {
        let Rack { table, index, .. } = &self.racks[thread % self.racks.len()];
        let keys = index.as_ref().map(|index| OrderedMaps::new(index.handle()));
        Ok(Box::new(KvStore { records: table.handle(), keys }))
    }

    fn label(&self) -> String {
        self.label.clone()
    }

    fn rack_of(&self, thread: usize) -> u16 {
        self.racks[thread % self.racks.len()].id.0
    }
}
