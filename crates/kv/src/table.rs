use std::sync::Arc;
use std::time::Duration;

use rackpool_client::GlobalAddr;

use crate::bucket::SegmentShape;
use crate::error::KvError;
use crate::handle::{Handle, Shared};
use crate::hash::KeyHash;
use crate::header::TableHeader;
use crate::memory::Memory;
use crate::segment::{Layout, SegmentRef};
use crate::shelf::{Place, ShelfBlock};

/// A hash table in the pool, used by any number of clients in any rack at once.
///
/// A `Table` names it and is cheap to clone; the operations are those of a [`Handle`], of which
/// each thread takes its own.
///
/// ```
/// use rackpool_kv::{KvError, Memory, Options, Table};
///
/// fn demo<M: Memory + Clone>(pool: M) -> Result<(), KvError<M::Error>> {
///     let table = Table::create(pool.clone(), &Options::default())?;
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
    pub(crate) shared: Arc<Shared<M>>,
}

/// How a table is laid out; fixed when it is created.
///
/// ```
/// let options = rackpool_kv::Options { max_depth: 18, ..Default::default() };
/// assert_eq!(options.segment_bytes, 32 << 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The table grows to at most `2^max_depth` segments. Its directory takes `8 * 2^max_depth`
    /// bytes, which must fit into a page. 0 to 18; 16 unless set: about 150 million entries in
    /// segments of 32 KiB.
    pub max_depth: u8,
    /// The bytes of a segment: a power of two from 256 to 1 MiB, at most a page. 32 KiB unless
    /// set. A segment is what one split copies.
    pub segment_bytes: u64,
}

impl Options {
    /// The largest [`max_depth`](Self::max_depth).
    pub const MAX_DEPTH: u8 = 18;
}

impl Default for Options {
    fn default() -> Self {
        Self { max_depth: 16, segment_bytes: 32 << 10 }
    }
}

impl<M> Clone for Table<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// How long a client lets another one finish a split before it does the split itself.
const PATIENCE: Duration = Duration::from_millis(2);

impl<M: Memory> Table<M> {
    /// Creates an empty table in `memory`.
    ///
    /// # Errors
    /// [`KvError::Option`] for an option out of its range, or the memory's own error, as when it has no
    /// room. Then nothing is left of the table, unless giving it back fails too.
    pub fn create(memory: M, options: &Options) -> Result<Self, KvError<M::Error>> {
        let page_bytes = memory.page_bytes();
        let directory_bytes = 8u64 << options.max_depth.min(Options::MAX_DEPTH);
        if options.max_depth > Options::MAX_DEPTH || directory_bytes > page_bytes {
            return Err(KvError::Option {
                name: "max_depth",
                value: options.max_depth.into(),
                allowed: "0 to 18, and 8 * 2^max_depth at most the page size",
            });
        }
        let segment_bytes = options.segment_bytes;
        let shape = u8::try_from(segment_bytes.trailing_zeros()).ok().and_then(SegmentShape::new);
        let fits = segment_bytes.is_power_of_two() && segment_bytes <= page_bytes;
        let Some(shape) = shape.filter(|_| fits) else {
            return Err(KvError::Option {
                name: "segment_bytes",
                value: segment_bytes,
                allowed: "a power of two from 256 B to 1 MiB, and at most the page size",
            });
        };
        let addr = memory.allocate(TableHeader::BYTES as u64).map_err(KvError::Memory)?;
        let directory = match memory.allocate(directory_bytes.max(16)) {
            Ok(directory) => directory,
            Err(error) => {
                // The first error is the one to tell.
                let _ = memory.free(addr);
                return Err(KvError::Memory(error));
            }
        };
        let layout = Layout { addr, directory, max_depth: options.max_depth, shape };
        let table = Self::with_layout(memory, layout);
        if let Err(error) = table.format(directory_bytes) {
            // Nobody knows of it yet: a header that was written does no harm.
            table.take_back();
            return Err(error);
        }
        Ok(table)
    }

    /// Writes the empty table; the header last, so that nobody opens a part of one.
    fn format(&self, directory_bytes: u64) -> Result<(), KvError<M::Error>> {
        let Shared { memory, layout, .. } = &*self.shared;
        // A directory is small beside the table it is made for, and made once.
        let entries = usize::try_from(directory_bytes).unwrap_or_default();
        memory.write(layout.directory, &vec![0; entries]).map_err(KvError::Memory)?;
        let header = TableHeader::encode(layout.directory, layout.max_depth, layout.shape.bits());
        // The shelf must be there before the first segment is made.
        memory.write(layout.addr, &[0; TableHeader::BYTES]).map_err(KvError::Memory)?;
        let (mut handle, all) = (self.handle(), KeyHash::from_raw(0));
        let taken = handle.take_segment()?;
        let first = handle.make_segment(taken, SegmentRef::NONE, 0, all, &[])?;
        handle.publish_segment(all, SegmentRef::NONE, first)?;
        memory.write(layout.addr, &header).map_err(KvError::Memory)
    }

    /// Gives back what belongs to a table that could not be made. What fails is left.
    fn take_back(&self) {
        let Shared { memory, layout, .. } = &*self.shared;
        let mut first = [0; 8];
        let segment = memory.read(layout.entry_addr(0), &mut first).map(|()| first);
        let segment = SegmentRef::from_raw(segment.map_or(0, u64::from_le_bytes));
        let mut addrs = vec![layout.directory, layout.addr];
        if !segment.is_none() {
            addrs.push(segment.addr());
        }
        if let Ok(blocks) = self.handle().shelf() {
            for (_, place) in blocks.iter().flat_map(ShelfBlock::places) {
                if let Some(Place::Segment(addr)) = place {
                    addrs.push(addr);
                }
            }
        }
        for addr in addrs {
            let _ = memory.free(addr);
        }
    }

    /// Opens the table at `addr`, which another client created.
    ///
    /// # Errors
    /// [`KvError::NotATable`], [`KvError::Version`] of another release, [`KvError::Corrupt`], or the
    /// memory's own error.
    pub fn open(memory: M, addr: GlobalAddr) -> Result<Self, KvError<M::Error>> {
        let mut header = [0; TableHeader::FIXED];
        memory.read(addr, &mut header).map_err(KvError::Memory)?;
        let layout = TableHeader::decode(addr, &header)?;
        Ok(Self::with_layout(memory, layout))
    }

    fn with_layout(memory: M, layout: Layout) -> Self {
        let records = None;
        Self { shared: Arc::new(Shared { memory, layout, patience: PATIENCE, records }) }
    }

    /// How long handles taken from the result let another client finish a split that it has begun
    /// before they do the split themselves; 2 ms unless set. As long they wait for
    /// an optimistic transaction that has an entry in its hands before they abort it.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self
    where
        M: Clone,
    {
        let Shared { memory, layout, records, .. } = &*self.shared;
        let (memory, records) = (memory.clone(), records.clone());
        Self { shared: Arc::new(Shared { memory, layout: *layout, patience, records }) }
    }

    /// The same table for transactions whose records are in `records`: what those of
    /// [`Committer`](crate::Committer) need of every table but the first.
    #[must_use]
    pub fn with_records(&self, records: &Self) -> Self
    where
        M: Clone,
    {
        let Shared { memory, layout, patience, .. } = &*self.shared;
        let (memory, records) = (memory.clone(), Some(Arc::clone(&records.shared)));
        let shared = Shared { memory, layout: *layout, patience: *patience, records };
        Self { shared: Arc::new(shared) }
    }

    /// Where the table is: what other clients open it with.
    #[must_use]
    pub fn addr(&self) -> GlobalAddr {
        self.shared.layout.addr
    }

    /// The memory the table lives in.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.shared.memory
    }

    /// Access for one thread.
    #[must_use]
    pub fn handle(&self) -> Handle<M> {
        Handle::new(Arc::clone(&self.shared))
    }
}
