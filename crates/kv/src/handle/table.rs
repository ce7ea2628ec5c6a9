use std::sync::Arc;
use std::time::Duration;

use rackpool_client::GlobalAddr;

use crate::handle::{Handle, TableState};
use crate::layout::segment::TableLayout;
use crate::memory::Memory;

/// A hash table in the pool, used concurrently by any number of clients in any racks.
///
/// A `Table` names the table and is cheap to clone. The operations are methods of [`Handle`]; each
/// thread takes a handle of its own.
///
/// ```
/// use rackpool_kv::{KvError, Memory, TableOptions, Table};
///
/// fn demo<M: Memory + Clone>(pool: M) -> Result<(), KvError<M::Error>> {
///     let table = Table::create(pool.clone(), &TableOptions::default())?;
///     let mut handle = table.handle();
///     handle.put(b"rack", b"7")?;
///
///     // Any other client opens it at its address.
///     let mut other = Table::open(pool, table.addr())?.handle();
///     let mut value = Vec::new();
///     assert!(other.get(b"rack", &mut value)?);
///     assert_eq!(value, b"7");
///     assert!(other.compare_and_put(b"rack", Some(b"7"), b"8")?);
///     assert!(!handle.insert(b"rack", b"9")?);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Table<M> {
    pub(crate) shared: Arc<TableState<M>>,
}

impl<M> Clone for Table<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// How long a client waits for another client to finish a split before it does the split itself.
const LOCK_WAIT: Duration = Duration::from_millis(2);

impl<M: Memory> Table<M> {
    pub(crate) fn with_layout(memory: M, layout: TableLayout) -> Self {
        let records = None;
        Self { shared: Arc::new(TableState { memory, layout, lock_wait: LOCK_WAIT, records }) }
    }

    /// Sets how long handles of the returned table wait for another client to finish a split before
    /// they do the split themselves; default 2 ms. They wait equally long for an optimistic
    /// transaction that holds a lock on an entry before they abort it.
    #[must_use]
    pub fn with_lock_wait(self, lock_wait: Duration) -> Self
    where
        M: Clone,
    {
        let TableState { memory, layout, records, .. } = &*self.shared;
        let (memory, records) = (memory.clone(), records.clone());
        Self { shared: Arc::new(TableState { memory, layout: *layout, lock_wait, records }) }
    }

    /// The same table, used in transactions whose records are in `records`.
    /// [`Committer`](crate::Committer) needs this of every table but the first.
    #[must_use]
    pub fn with_records(&self, records: &Self) -> Self
    where
        M: Clone,
    {
        let TableState { memory, layout, lock_wait, .. } = &*self.shared;
        let (memory, records) = (memory.clone(), Some(Arc::clone(&records.shared)));
        let shared = TableState { memory, layout: *layout, lock_wait: *lock_wait, records };
        Self { shared: Arc::new(shared) }
    }

    /// The address of the table, to pass to [`Table::open`] in other clients.
    #[must_use]
    pub fn addr(&self) -> GlobalAddr {
        self.shared.layout.addr
    }

    /// The memory that holds the table.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.shared.memory
    }

    /// A new handle, for one thread.
    #[must_use]
    pub fn handle(&self) -> Handle<M> {
        Handle::new(Arc::clone(&self.shared))
    }
}
