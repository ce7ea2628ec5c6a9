//! Creation of a table: docs/design/kv.md, "Creation".

use rackpool_client::{GlobalAddr, PublishCas, PublishMode};

use crate::error::KvError;
use crate::handle::TableState;
use crate::handle::table::Table;
use crate::layout::bucket::SegmentShape;
use crate::layout::hash::KeyHash;
use crate::layout::header::{CreationStage, DecodedHeader, TableHeader};
use crate::layout::segment::{SegmentRef, TableLayout};
use crate::layout::spare_block::{SparePlace, SpareSegments};
use crate::layout::table_options::TableOptions;
use crate::memory::words::{CasOutcome, read_word, swap_word};
use crate::memory::{CasError, Memory, ReservedObject, Roots};
use crate::objects::publish::publish_once;
use crate::objects::reclaim::clear_owner;

impl<M: Memory> Table<M> {
    /// Creates an empty table in `memory`.
    ///
    /// A kill during the call leaks the memory allocated so far. Use [`Table::open_or_create`] for
    /// a table with a name.
    ///
    /// # Errors
    /// [`KvError::Option`] for an option out of its range, or the memory's own error, such as that
    /// of a full pool. The memory allocated so far is freed, unless that fails too.
    pub fn create(memory: M, options: &TableOptions) -> Result<Self, KvError<M::Error>> {
        let begun = begin(&memory, options)?;
        let layout = match place_directory(&memory, begun) {
            Ok(layout) => layout,
            Err(error) => {
                // No other client knows of the table. The caller gets the first error.
                if let Ok(directory @ 1..) =
                    read_word(&memory, TableHeader::directory_at(begun.addr))
                {
                    let _ = memory.free(GlobalAddr::from_raw(directory));
                }
                let _ = memory.free(begun.addr);
                return Err(error);
            }
        };
        let table = Self::with_layout(memory, layout);
        if let Err(error) = table.place_first_segment() {
            table.take_back();
            return Err(error);
        }
        Ok(table)
    }

    /// Opens the table at `addr`, which another client created. If a kill interrupted its creation,
    /// this call completes it.
    ///
    /// # Errors
    /// [`KvError::NotATable`], [`KvError::Version`] of another release, [`KvError::Corrupt`], or
    /// the memory's own error.
    pub fn open(memory: M, addr: GlobalAddr) -> Result<Self, KvError<M::Error>> {
        let DecodedHeader { mut layout, stage } = read_header(&memory, addr)?;
        if stage == CreationStage::Begun {
            layout = place_directory(&memory, layout)?;
        }
        let table = Self::with_layout(memory, layout);
        if stage != CreationStage::Complete {
            table.place_first_segment()?;
        }
        Ok(table)
    }

    /// Opens the table at the root `name`, or creates an empty one there with `options`. Concurrent
    /// calls all get the same table.
    ///
    /// After a kill during the call the root either does not exist or leads to a table that the
    /// next client to open it completes. A kill between the allocation of the table's header and
    /// the change of the root leaks the header, which takes 1 KiB.
    ///
    /// ```no_run
    /// use rackpool_client::{ClientOptions, Pool, RackId};
    /// use rackpool_kv::{TableOptions, Table};
    ///
    /// let pool = Pool::open(ClientOptions::new("/dev/shm/rackpool", RackId(0)))?;
    /// let options = TableOptions::for_pages(pool.page_bytes());
    /// let words = Table::open_or_create(pool, "words", &options)?;
    /// words.handle().put(b"rack", b"7")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Table::open`] and [`Table::create`], or the error of the root's change. If the root was
    /// set and the creation failed, for example in a full pool, the next call completes it.
    pub fn open_or_create(
        memory: M,
        name: &str,
        options: &TableOptions,
    ) -> Result<Self, KvError<M::Error>>
    where
        M: Roots,
    {
        loop {
            if let Some(addr) = memory.root(name).map_err(KvError::Memory)? {
                return Self::open(memory, addr);
            }
            let begun = begin(&memory, options)?;
            match memory.set_root(name, None, Some(begun.addr)) {
                Ok(root) if root.changed => return Self::open(memory, begun.addr),
                // Another client set the root first.
                Ok(_) => memory.free(begun.addr).map_err(KvError::Memory)?,
                Err(CasError::Failed(error)) => {
                    // The caller gets the first error.
                    let _ = memory.free(begun.addr);
                    return Err(KvError::Memory(error));
                }
                // The root may have been set. The next client that opens it will see.
                Err(CasError::GivenUp(error)) => return Err(KvError::Memory(error)),
                Err(CasError::Indeterminate) => return Err(KvError::OutcomeUnknown),
            }
        }
    }

    /// Opens the table whose address is in the word at `place`, or creates an empty one if the word
    /// is 0. Concurrent calls all get the same table. A kill during the call leaks nothing: the
    /// next client continues with what exists. Before the table is destroyed the caller must clear
    /// the word.
    ///
    /// ```
    /// use rackpool_kv::{GlobalAddr, KvError, Memory, TableOptions, Table};
    ///
    /// /// The table of a record whose second word is kept for it, and 0 at first.
    /// fn names<M: Memory>(pool: M, record: GlobalAddr) -> Result<Table<M>, KvError<M::Error>> {
    ///     let place = GlobalAddr::from_raw(record.raw() + 8);
    ///     Table::open_or_create_at(pool, place, &TableOptions::default())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Table::open_or_create`].
    pub fn open_or_create_at(
        memory: M,
        place: GlobalAddr,
        options: &TableOptions,
    ) -> Result<Self, KvError<M::Error>> {
        loop {
            let addr = GlobalAddr::from_raw(read_word(&memory, place)?);
            if addr.is_null() {
                place_header(&memory, place, options)?;
                continue;
            }
            // The owner word must be cleared before the magic number takes its place.
            match read_word(&memory, addr)? {
                TableHeader::MAGIC => return Self::open(memory, addr),
                0 => drop(swap_word(&memory, addr, 0, TableHeader::MAGIC)?),
                owner => clear_owner(&memory, addr, owner)?,
            }
        }
    }

    /// Publishes the first segment into the directory, unless it is there, and completes the
    /// header.
    fn place_first_segment(&self) -> Result<(), KvError<M::Error>> {
        let TableState { memory, layout, .. } = &*self.shared;
        if read_word(memory, layout.entry_addr(0))? == 0 {
            let (mut handle, all) = (self.handle(), KeyHash::from_raw(0));
            let taken = handle.take_segment()?;
            let first = handle.make_segment(taken, SegmentRef::NONE, 0, all, &[])?;
            // If another client was first, the segment returns to the spare segments.
            handle.publish_segment(all, SegmentRef::NONE, first)?;
        }
        advance(memory, layout, CreationStage::HasDirectory)
    }

    /// Frees the memory of a table whose creation failed. Errors are ignored.
    fn take_back(&self) {
        let TableState { memory, layout, .. } = &*self.shared;
        let mut first = [0; 8];
        let segment = memory.read(layout.entry_addr(0), &mut first).map(|()| first);
        let segment = SegmentRef::from_raw(segment.map_or(0, u64::from_le_bytes));
        let mut addrs = vec![layout.directory, layout.addr];
        if !segment.is_none() {
            addrs.push(segment.addr());
        }
        if let Ok(blocks) = self.handle().spare_segments() {
            for (_, place) in blocks.iter().flat_map(SpareSegments::places) {
                if let Some(SparePlace::Segment(addr)) = place {
                    addrs.push(addr);
                }
            }
        }
        for addr in addrs {
            let _ = memory.free(addr);
        }
    }
}

/// Validates the options; returns a layout without address and directory.
fn layout_of<M: Memory>(
    memory: &M,
    options: &TableOptions,
) -> Result<TableLayout, KvError<M::Error>> {
    let page_bytes = memory.page_bytes();
    let max_depth = options.max_depth;
    if max_depth > TableOptions::MAX_DEPTH || TableHeader::directory_bytes(max_depth) > page_bytes {
        return Err(KvError::Option {
            name: "max_depth",
            value: max_depth.into(),
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
    Ok(TableLayout { addr: GlobalAddr::NULL, directory: GlobalAddr::NULL, max_depth, shape })
}

/// The header of a table in [`CreationStage::Begun`].
fn begun_header(layout: &TableLayout) -> [u8; TableHeader::BYTES] {
    let mut bytes = [0; TableHeader::BYTES];
    bytes[..TableHeader::FIXED].copy_from_slice(&TableHeader::encode(layout, CreationStage::Begun));
    bytes
}

/// Allocates and writes the header of a table in [`CreationStage::Begun`].
fn begin<M: Memory>(memory: &M, options: &TableOptions) -> Result<TableLayout, KvError<M::Error>> {
    let layout = layout_of(memory, options)?;
    let addr = memory.allocate(TableHeader::BYTES as u64).map_err(KvError::Memory)?;
    if let Err(error) = memory.write(addr, &begun_header(&layout)) {
        let _ = memory.free(addr);
        return Err(KvError::Memory(error));
    }
    Ok(TableLayout { addr, ..layout })
}

/// Publishes a header in [`CreationStage::Begun`] into the word at `place`, unless another client
/// did.
fn place_header<M: Memory>(
    memory: &M,
    place: GlobalAddr,
    options: &TableOptions,
) -> Result<(), KvError<M::Error>> {
    let layout = layout_of(memory, options)?;
    let reservation = memory.reserve(TableHeader::BYTES as u64).map_err(KvError::Memory)?;
    publish_first(memory, reservation, place, &mut begun_header(&layout))
}

/// Publishes a reservation with these contents into the word at `place` if that is 0. The first
/// word of the contents is overwritten by the owner word.
fn publish_first<M: Memory>(
    memory: &M,
    mut reservation: M::Reservation,
    place: GlobalAddr,
    contents: &mut [u8],
) -> Result<(), KvError<M::Error>> {
    contents[..8].copy_from_slice(&reservation.token().to_le_bytes());
    let link = PublishCas {
        addr: place,
        expected: 0,
        new: reservation.addr().raw(),
        mask: u64::MAX,
        replaced: None,
        mode: PublishMode::Plain,
    };
    let written = memory.write(reservation.addr(), contents).map_err(KvError::Memory);
    let published = written.and_then(|()| publish_once(memory, &mut reservation, &link));
    // If another client was first, this frees the reservation. If it fails, the daemon frees it.
    let _ = memory.finish(reservation);
    published.map(drop)
}

/// Gives a table its directory, unless it has one; returns the layout with it.
fn place_directory<M: Memory>(
    memory: &M,
    begun: TableLayout,
) -> Result<TableLayout, KvError<M::Error>> {
    let at = TableHeader::directory_at(begun.addr);
    if read_word(memory, at)? == 0 {
        let bytes = TableHeader::directory_bytes(begun.max_depth);
        let reservation = memory.reserve(bytes.max(LEAST_RESERVATION)).map_err(KvError::Memory)?;
        // The directory is small beside the table, and written once.
        let mut entries = vec![0; usize::try_from(bytes).unwrap_or_default()];
        publish_first(memory, reservation, at, &mut entries)?;
    }
    let layout = TableLayout { directory: GlobalAddr::from_raw(read_word(memory, at)?), ..begun };
    // The first entry is also the directory's owner word. While the stage is `Begun` nothing but a
    // token can be in it. So the header is read after the entry.
    let owner = read_word(memory, layout.directory)?;
    let stage = read_header(memory, layout.addr)?.stage;
    if stage == CreationStage::Begun {
        if owner != 0 {
            clear_owner(memory, layout.directory, owner)?;
        }
        advance(memory, &layout, CreationStage::Begun)?;
    }
    Ok(layout)
}

/// The least size of a reservation in bytes: a cache line.
const LEAST_RESERVATION: u64 = 64;

/// Advances the header from stage `from` to the next, unless another client did.
fn advance<M: Memory>(
    memory: &M,
    layout: &TableLayout,
    from: CreationStage,
) -> Result<(), KvError<M::Error>> {
    let at = TableHeader::check_at(layout.addr);
    let [from, to] = [from, from.next()].map(|stage| TableHeader::check(layout, stage));
    while swap_word(memory, at, from, to)? == CasOutcome::Unknown {}
    Ok(())
}

/// Reads the header of a table.
pub(crate) fn read_header<M: Memory>(
    memory: &M,
    addr: GlobalAddr,
) -> Result<DecodedHeader, KvError<M::Error>> {
    let read = || {
        let mut header = [0; TableHeader::FIXED];
        memory.read(addr, &mut header).map_err(KvError::Memory)?;
        TableHeader::decode(addr, &header)
    };
    match read() {
        // The words of the header may be read before and after the directory was set. It is set
        // only once, so a second read is consistent.
        Err(KvError::Corrupt { .. }) => read(),
        decoded => decoded,
    }
}
