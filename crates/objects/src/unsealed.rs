//! Objects between create and seal.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rackpool_client::{Extent, GlobalAddr, Pin, PinnedBytes, PinnedBytesMut, Pool, Reservation};
use rackpool_kv::now_ms;

use crate::checksum::Checksum;
use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::keys::Keys;
use crate::store::Store;
use crate::view::View;

/// From this length on (bytes) a put copies past the processor's caches: source and object together
/// would displace what else is there.
const PAST_CACHES: usize = 4 << 20;
/// What such a put copies, and then reads again for the checksum, at a time in bytes. It stays in a
/// core's second-level cache; less is copied more slowly.
const LONG_UNIT: usize = 4 * Checksum::BLOCK;

/// What an object has besides its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions<'a> {
    /// Bytes that describe the object, at most 2^32 - 1.
    pub metadata: &'a [u8],
    /// A number that names the layout of the bytes, for [`Store::get_as`]; 0 if nobody asks.
    pub layout_tag: u64,
    /// Whether the bytes must be consecutive in the rack's frames file, for programs that map the
    /// file as a whole.
    pub is_contiguous: bool,
}

/// An object that its creator writes in place. [`seal`](Self::seal) makes it visible. An object
/// that is dropped before is aborted: its memory is freed. If the program is killed, the pool takes
/// the memory back.
///
/// The contents are unspecified at first. Derefs to the bytes, without the metadata.
///
/// ```no_run
/// # use rackpool_objects::{CreateOptions, Store, StoreError};
/// fn produce(store: &Store) -> Result<(), StoreError> {
///     let mut object = store.create(b"squares", 1000, &CreateOptions::default())?;
///     for (at, byte) in object.iter_mut().enumerate() {
///         *byte = (at * at) as u8;
///     }
///     object.seal()?;
///     Ok(())
/// }
/// ```
#[derive(Debug)]
#[must_use = "an object that is dropped before it is sealed is freed"]
pub struct UnsealedObject {
    store: Store,
    pub(crate) keys: Keys,
    memory: FixedMemory,
    head: Head,
    /// `None` once the object is being sealed.
    bytes: Option<PinnedBytesMut<Arc<Pool>>>,
}

/// The memory of an object: its head and its extents. Freed when it is dropped, unless it was
/// published.
#[derive(Debug)]
pub(crate) struct FixedMemory {
    pool: Arc<Pool>,
    /// `None` once it belongs to a reservation.
    head: Option<GlobalAddr>,
    addr: GlobalAddr,
    pub(crate) layout: HeadLayout,
    /// The most extents; 0 if the bytes are in the head.
    pieces: u64,
    pub(crate) extents: Vec<Extent>,
    /// The length of the object in bytes.
    pub(crate) len: u64,
}

impl FixedMemory {
    /// Allocates the head of an object with `len` bytes and metadata, in the own rack. It has room
    /// for the bytes or for the words of the extents.
    pub(crate) fn head(
        pool: &Arc<Pool>,
        layout: HeadLayout,
        len: u64,
        is_contiguous: bool,
    ) -> Result<Self, StoreError> {
        let page_bytes = pool.page_bytes();
        // The head has a word for each extent and fits into a page.
        let most = (page_bytes - HeadLayout::LARGEST_BODY) / 8;
        let in_head = layout.body().checked_add(len).filter(|bytes| *bytes <= page_bytes);
        let pieces = len.div_ceil(page_bytes).min(if is_contiguous { 1 } else { most });
        let head = pool.alloc_fixed(in_head.unwrap_or(layout.body() + 8 * pieces))?;
        let pieces = if in_head.is_some() { 0 } else { pieces };
        let (pool, extents) = (Arc::clone(pool), Vec::new());
        Ok(Self { pool, head: Some(head), addr: head, layout, pieces, extents, len })
    }

    /// Allocates the extents that the bytes need. Those of an earlier call that has failed count.
    pub(crate) fn allocate_extents(&mut self) -> Result<(), StoreError> {
        if self.pieces > 0 {
            self.extents = self.pool.alloc_extents(self.addr, self.len)?;
        }
        if self.extents.len() as u64 > self.pieces {
            return Err(StoreError::Fragmented { bytes: self.len, most: self.pieces });
        }
        Ok(())
    }

    /// The number of extents.
    pub(crate) fn extents_len(&self) -> u32 {
        u32::try_from(self.extents.len()).unwrap_or(u32::MAX)
    }

    /// The address of the head.
    pub(crate) const fn addr(&self) -> GlobalAddr {
        self.addr
    }

    /// Maps the object's bytes if they are in the head, else none of them, for writing.
    pub(crate) fn map_head_mut(&self) -> Result<PinnedBytesMut<Arc<Pool>>, StoreError> {
        let pin = Pin::new(Arc::clone(&self.pool), self.addr)?;
        let (body, len) = (self.layout.body(), if self.pieces == 0 { self.len } else { 0 });
        Ok(pin.map_head_mut(body..body + len)?)
    }

    /// Maps all of the object's bytes instead of those in the head, for writing.
    pub(crate) fn map_extents_mut(
        &self,
        head: PinnedBytesMut<Arc<Pool>>,
    ) -> Result<PinnedBytesMut<Arc<Pool>>, StoreError> {
        Ok(if self.pieces == 0 { head } else { head.map_extents_mut(&self.extents, self.len)? })
    }

    /// Maps the object's bytes and metadata for writing.
    pub(crate) fn map_mut(&self) -> Result<PinnedBytesMut<Arc<Pool>>, StoreError> {
        self.map_extents_mut(self.map_head_mut()?)
    }

    /// Pins the object, which this program owns, and maps its bytes and metadata for reading.
    pub(crate) fn map(&self) -> Result<PinnedBytes<Arc<Pool>>, StoreError> {
        let pin = Pin::new(Arc::clone(&self.pool), self.addr())?;
        Ok(if self.extents.is_empty() {
            let body = self.layout.body();
            pin.map_head(body..body + self.len)?
        } else {
            pin.map_extents(&self.extents, self.len)?
        })
    }

    /// Writes what lies behind the entry: the words `last use` and `filling`, and those of the
    /// extents.
    pub(crate) fn write_words(&self, last_use_ms: u64, filling: u64) -> Result<(), StoreError> {
        let (addr, page_bytes) = (self.addr().raw(), self.pool.page_bytes());
        let words = [last_use_ms, filling].map(u64::to_le_bytes).concat();
        self.pool.write(GlobalAddr::from_raw(addr + self.layout.last_use()), &words)?;
        let mut list = Vec::with_capacity(8 * self.extents.len());
        for extent in &self.extents {
            let word = HeadLayout::encode_extent(extent, page_bytes);
            let word = word.ok_or(StoreError::Damaged { addr: extent.addr })?;
            list.extend_from_slice(&word.to_le_bytes());
        }
        if !list.is_empty() {
            self.pool.write(GlobalAddr::from_raw(addr + self.layout.body()), &list)?;
        }
        Ok(())
    }

    /// Gives the memory to a reservation, whose end decides about it.
    pub(crate) fn reserve(&mut self) -> Result<Reservation, StoreError> {
        let reservation = self.pool.reserve_owned(self.addr())?;
        self.head = None;
        Ok(reservation)
    }

    /// The same for memory that goes on being written through `bytes`, its mapping.
    pub(crate) fn reserve_written(
        &mut self,
        bytes: &PinnedBytesMut<Arc<Pool>>,
    ) -> Result<Reservation, StoreError> {
        let reservation = self.pool.reserve_written(bytes)?;
        self.head = None;
        Ok(reservation)
    }
}

impl Drop for FixedMemory {
    fn drop(&mut self) {
        if let Some(head) = self.head {
            // The daemon takes it back when the program ends if this fails.
            let _ = self.pool.free(head);
        }
    }
}

impl Store {
    /// Begins an object of `bytes` bytes in the own rack. The id has 1 to 64 bytes. Any number of
    /// programs can create objects of one id; the first one to seal it succeeds. The id of an
    /// object whose memory was lost is free.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if there is a sealed object of this id, [`StoreError::IdLength`],
    /// [`StoreError::TooLarge`], [`StoreError::StoreFull`], [`StoreError::Fragmented`], or that of
    /// the pool, such as a full rack.
    pub fn create(
        &self,
        id: &[u8],
        bytes: u64,
        options: &CreateOptions<'_>,
    ) -> Result<UnsealedObject, StoreError> {
        let keys = Keys::of(id)?;
        let oldest = self.oldest_alive()?;
        while let Some(object) =
            self.repairing(|| self.with(|handles| handles.find(keys.object())))?
        {
            if object.head.created_ms >= oldest {
                return Err(StoreError::Exists);
            }
            self.delete_version(&keys, &object)?;
        }
        let pool = &self.shared.pool;
        let max = pool.frames_bytes();
        let len = bytes.saturating_add(options.metadata.len() as u64);
        let metadata = u32::try_from(options.metadata.len());
        let (Ok(metadata), true) = (metadata, len <= max) else {
            return Err(StoreError::TooLarge { bytes: len, max });
        };
        let layout = HeadLayout::of(id.len());
        let memory = self.allocate(layout, len, options.is_contiguous)?;
        let head = Head {
            bytes,
            metadata,
            layout_tag: options.layout_tag,
            checksum: 0,
            created_ms: 0,
            rack: pool.rack(),
            extents: memory.extents_len(),
            file: None,
        };
        let mut mapped = memory.map_mut()?;
        // `bytes` is less than the length of the mapping.
        if let Some(into) = usize::try_from(bytes).ok().and_then(|at| mapped.get_mut(at..)) {
            into.copy_from_slice(options.metadata);
        }
        Ok(UnsealedObject { store: self.clone(), keys, memory, head, bytes: Some(mapped) })
    }

    /// Stores a copy of `bytes` as an object. The checksum is computed from what was just copied.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn put(
        &self,
        id: &[u8],
        bytes: &[u8],
        options: &CreateOptions<'_>,
    ) -> Result<(), StoreError> {
        let mut object = self.create(id, bytes.len() as u64, options)?;
        let mut checksum = Checksum::new();
        let is_long = bytes.len() >= PAST_CACHES;
        let unit = if is_long { LONG_UNIT } else { Checksum::BLOCK };
        let mut at = 0;
        for part in bytes.chunks(unit) {
            match &mut object.bytes {
                Some(into) if is_long => into.copy_past_caches(at, part)?,
                _ => object[at..at + part.len()].copy_from_slice(part),
            }
            checksum.update(part);
            at += part.len();
        }
        checksum.update(options.metadata);
        object.seal_with(checksum.finish()).map(drop)
    }
}

impl UnsealedObject {
    /// Makes the object visible to all programs, and returns it as a view. Nobody changes it
    /// afterwards. The view counts also if another program deletes the object at once.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if another program sealed an object of this id first, or that of the
    /// pool; the object is then freed. After [`KvError::OutcomeUnknown`] the object may be visible.
    ///
    /// [`KvError::OutcomeUnknown`]: rackpool_kv::KvError::OutcomeUnknown
    pub fn seal(self) -> Result<View, StoreError> {
        let checksum = Checksum::of(self.bytes.as_deref().unwrap_or_default());
        self.seal_with(checksum)
    }

    fn seal_with(self, checksum: u64) -> Result<View, StoreError> {
        let Self { store, keys, mut memory, mut head, bytes } = self;
        drop(bytes);
        store.check_in_use()?;
        (head.checksum, head.created_ms) = (checksum, now_ms());
        memory.write_words(head.created_ms, 0)?;
        // Pinned while this program owns it, so the pin counts.
        let view = View::new(memory.map()?, head);
        let reservation = memory.reserve()?;
        let is_first = store.with(|handles| {
            let objects = &mut handles.objects;
            Ok(objects.insert_reserved(keys.object(), &head.encode(), reservation)?)
        })?;
        if !is_first {
            return Err(StoreError::Exists);
        }
        store.shared.counters.seals.add(1);
        store.shared.counters.sealed_bytes.add(head.len());
        Ok(view)
    }

    /// The offset of the first byte in the rack's [frames file](Pool::frames_file), if the bytes
    /// are consecutive there.
    #[must_use]
    pub fn frames_offset(&self) -> Option<u64> {
        self.bytes.as_ref().and_then(PinnedBytesMut::frames_offset)
    }

    /// The metadata, which follow the bytes directly.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut [u8] {
        let at = self.split();
        self.bytes.as_deref_mut().map_or(&mut [], |bytes| &mut bytes[at..])
    }

    /// Where the bytes end and the metadata begin. The length fits, since the bytes are mapped.
    fn split(&self) -> usize {
        usize::try_from(self.head.bytes).unwrap_or(usize::MAX)
    }
}

impl Deref for UnsealedObject {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_deref().map_or(&[], |bytes| &bytes[..self.split()])
    }
}

impl DerefMut for UnsealedObject {
    fn deref_mut(&mut self) -> &mut [u8] {
        let at = self.split();
        self.bytes.as_deref_mut().map_or(&mut [], |bytes| &mut bytes[..at])
    }
}
