//! The rack metadata: the state of the frames that must survive the daemon. The daemon maps it
//! read-write; clients map it read-only.

use rackpool_model::{FrameId, MAX_RACKS, PageSize, RackId, SizeClass};
use rackpool_sync::atomic::{AtomicU64, Ordering};

use crate::extent_owner::ExtentOwner;
use crate::mapping::{Mapping, OutsideMapping, PopulateError, Shared};
use crate::published::PublishedCopy;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};

/// Largest number of objects in one exchange between racks.
pub const PEER_BATCH: usize = 32;
/// Number of swap records: the most swaps that a rack can have in progress.
pub const SWAP_RECORDS: usize = 8;
/// Number of 64-bit words of a swap record.
pub const SWAP_WORDS: usize = 8;

/// What the page in a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// The page is not in use.
    Unused,
    /// A slab: objects of one size class.
    Slab(SizeClass),
    /// A fixed slab: objects of one size class that keep their place. The page neither moves nor is
    /// shared.
    Fixed(SizeClass),
    /// Page `index` of an object that takes `pages` whole pages.
    Run {
        /// Index of the page in the object, from 0.
        index: u32,
        /// Number of pages of the object.
        pages: u32,
    },
}

/// The slab header of a frame.
///
/// ```text
///   0  kind (8 bits), class (8), run pages (24), run index (24)
///   8  bitmap of objects in use, for classes of at most 64 objects a page;
///      of the first page of a run: the owner, for an extent
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct SlabHeader {
    kind: AtomicU64,
    second: AtomicU64,
}

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for SlabHeader {}

/// One side of the exactly-once exchange with another rack; see `docs/design/rack-memory.md`.
#[derive(Debug)]
#[repr(C)]
pub struct PeerLog {
    /// Number of the last exchange begun.
    pub sequence: AtomicU64,
    /// Progress of that exchange.
    pub state: AtomicU64,
    /// Kind of that exchange: 1 allocates, 2 frees.
    pub kind: AtomicU64,
    /// Size in bytes of each object to allocate.
    pub bytes: AtomicU64,
    /// Number of valid entries in `addrs`.
    pub count: AtomicU64,
    /// Id of the requesting rack's memory, low half first.
    pub memory: [AtomicU64; 2],
    reserved: AtomicU64,
    /// Addresses of the objects.
    pub addrs: [AtomicU64; PEER_BATCH],
}

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for PeerLog {}

/// The record of a rack's exchanges with one other rack.
#[derive(Debug)]
#[repr(C)]
pub struct PeerRecord {
    /// Exchanges that this rack requested.
    pub asked: PeerLog,
    /// Exchanges that the other rack requested.
    pub served: PeerLog,
}

// SAFETY: `repr(C)`, nothing but shared types.
unsafe impl Shared for PeerRecord {}

/// A swap in progress; docs/design/swap.md describes the layout. The record is unused if its first
/// word is 0.
#[derive(Debug)]
#[repr(C)]
pub struct SwapRecord {
    /// The words of the record. The first one is stored last.
    pub words: [AtomicU64; SWAP_WORDS],
}

// SAFETY: `repr(C)`, nothing but atomic integers.
unsafe impl Shared for SwapRecord {}

/// The offsets in the metadata file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataLayout {
    page_size: PageSize,
    frames: u32,
}

/// The metadata file, mapped by the daemon.
#[derive(Debug)]
pub struct RackMetadata {
    memory: Mapping,
    layout: MetadataLayout,
}

impl PageUse {
    const SLAB: u64 = 1;
    const RUN: u64 = 2;
    const FIXED: u64 = 3;
    const RUN_MASK: u64 = (1 << 24) - 1;
    /// Number of pages of the largest object.
    pub const MAX_RUN: u32 = (1 << 24) - 1;

    /// Encodes the use as a header word.
    #[must_use]
    pub fn to_raw(self) -> u64 {
        match self {
            Self::Unused => 0,
            Self::Slab(class) => Self::SLAB | (u64::from(class.index()) << 8),
            Self::Fixed(class) => Self::FIXED | (u64::from(class.index()) << 8),
            Self::Run { index, pages } => {
                Self::RUN | (u64::from(pages) << 16) | (u64::from(index) << 40)
            }
        }
    }

    /// Decodes a header word. Words that this release does not write decode as unused.
    #[must_use]
    pub fn from_raw(raw: u64, page: PageSize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "masked to fewer bits")]
        let (kind, class, pages, index) = (
            raw & 0xff,
            (raw >> 8) as u8,
            ((raw >> 16) & Self::RUN_MASK) as u32,
            (raw >> 40) as u32,
        );
        match kind {
            Self::SLAB => SizeClass::from_index(class, page).map_or(Self::Unused, Self::Slab),
            Self::FIXED => SizeClass::from_index(class, page).map_or(Self::Unused, Self::Fixed),
            Self::RUN if index < pages => Self::Run { index, pages },
            _ => Self::Unused,
        }
    }

    /// Returns the size class of the page's objects; `None` for a page of a run or not in use.
    #[must_use]
    pub const fn class(self) -> Option<SizeClass> {
        match self {
            Self::Slab(class) | Self::Fixed(class) => Some(class),
            Self::Run { .. } | Self::Unused => None,
        }
    }

    /// Bytes from the start of this page to the end of the memory that can be accessed through it:
    /// the end of the page, or of the run.
    #[must_use]
    pub fn span_bytes(self, page: PageSize) -> u64 {
        match self {
            Self::Unused => 0,
            Self::Slab(_) | Self::Fixed(_) => page.bytes(),
            Self::Run { index, pages } => u64::from(pages - index) * page.bytes(),
        }
    }
}

impl SlabHeader {
    /// The raw word that encodes the use of the page.
    pub fn kind(&self) -> u64 {
        self.kind.load(Ordering::Acquire)
    }

    /// Stores the use of the page.
    pub fn set_kind(&self, usage: PageUse) {
        self.kind.store(usage.to_raw(), Ordering::Release);
    }

    /// The owner of the run whose first page this is; `None` for a run that is no extent. Of other
    /// pages the word is a bitmap.
    #[must_use]
    pub fn owner(&self) -> Option<ExtentOwner> {
        ExtentOwner::from_raw(self.second.load(Ordering::Acquire))
    }

    /// Stores the owner of the run whose first page this will be.
    pub fn set_owner(&self, owner: Option<ExtentOwner>) {
        self.second.store(owner.map_or(0, ExtentOwner::to_raw), Ordering::Release);
    }
}

/// The bit of an object in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataBit {
    /// The offset of the bitmap word.
    pub word: u64,
    /// The bit in that word.
    pub mask: u64,
}

impl MetadataLayout {
    /// The layout for a rack of `frames` frames.
    #[must_use]
    pub const fn new(page_size: PageSize, frames: u32) -> Self {
        Self { page_size, frames }
    }

    /// The pool's page size.
    #[must_use]
    pub const fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Frames in the rack.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    const fn page_aligned(bytes: u64) -> u64 {
        bytes.next_multiple_of(4096)
    }

    /// Offset of a frame's page word.
    #[inline]
    #[must_use]
    pub const fn word(&self, frame: FrameId) -> u64 {
        SUPERBLOCK_BYTES + frame.0 as u64 * 8
    }

    /// Offset of a frame's slab header.
    #[inline]
    #[must_use]
    pub const fn header(&self, frame: FrameId) -> u64 {
        SUPERBLOCK_BYTES + Self::page_aligned(self.frames as u64 * 8) + frame.0 as u64 * 16
    }

    const fn peers(&self) -> u64 {
        SUPERBLOCK_BYTES
            + Self::page_aligned(self.frames as u64 * 8)
            + Self::page_aligned(self.frames as u64 * 16)
    }

    const fn swaps(&self) -> u64 {
        self.peers() + Self::page_aligned(MAX_RACKS as u64 * size_of::<PeerRecord>() as u64)
    }

    /// Offset of a frame's published copy; those of consecutive frames are contiguous.
    #[inline]
    #[must_use]
    pub const fn published(&self, frame: FrameId) -> u64 {
        let copies =
            self.swaps() + Self::page_aligned((SWAP_RECORDS * size_of::<SwapRecord>()) as u64);
        copies + frame.0 as u64 * size_of::<PublishedCopy>() as u64
    }

    const fn bitmaps(&self) -> u64 {
        self.published(FrameId(0)) + Self::page_aligned(self.frames as u64 * 16)
    }

    /// Returns true if the bits of a class are in the bitmap area. The bits of other classes are in
    /// the frame's slab header.
    #[inline]
    #[must_use]
    pub const fn has_bitmap(&self, class: SizeClass) -> bool {
        class.objects_per_page(self.page_size) > 64
    }

    /// Offset of a frame's bitmap; those of consecutive frames are contiguous.
    #[inline]
    #[must_use]
    pub const fn bitmap(&self, frame: FrameId) -> u64 {
        self.bitmaps() + frame.0 as u64 * self.bitmap_bytes()
    }

    /// Bytes of the bitmap of a frame: one bit for each object of the smallest class.
    #[must_use]
    pub const fn bitmap_bytes(&self) -> u64 {
        let bytes = self.page_size.bytes() >> (SizeClass::MIN_BITS + 3);
        if bytes < 8 { 8 } else { bytes }
    }

    /// Bytes of the whole file. The file is sparse: only bitmaps in use take memory.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bitmaps() + Self::page_aligned(self.bitmap_bytes() * self.frames as u64)
    }

    /// Fixed metadata bytes per frame: page word, slab header and published copy.
    pub const BYTES_PER_FRAME: u32 = 8 + 16 + 16;

    /// The bit of object `index` of a frame with objects of `class`.
    #[inline]
    #[must_use]
    pub const fn bit(&self, frame: FrameId, class: SizeClass, index: u32) -> MetadataBit {
        let mask = 1 << (index % 64);
        if !self.has_bitmap(class) {
            return MetadataBit { word: self.header(frame) + 8, mask };
        }
        let word = index as u64 / 64;
        MetadataBit { word: self.bitmap(frame) + word * 8, mask }
    }
}

impl RackMetadata {
    /// Lays the metadata over a mapping. Fails if the mapping is too short.
    pub fn new(memory: Mapping, layout: MetadataLayout) -> Result<Self, OutsideMapping> {
        memory.view_slice::<AtomicU64>(0, 1)?;
        if memory.len() < layout.bytes() {
            return Err(OutsideMapping { offset: 0, len: layout.bytes(), mapped: memory.len() });
        }
        Ok(Self { memory, layout })
    }

    /// The offsets in the file.
    #[must_use]
    pub const fn layout(&self) -> &MetadataLayout {
        &self.layout
    }

    /// Frames in the rack.
    #[must_use]
    pub const fn frames(&self) -> u32 {
        self.layout.frames
    }

    /// The superblock.
    pub fn superblock(&self) -> Result<&Superblock, OutsideMapping> {
        self.memory.view(0)
    }

    /// A frame's page word.
    #[inline]
    pub fn word(&self, frame: FrameId) -> Result<&AtomicU64, OutsideMapping> {
        self.in_range(frame)?;
        self.memory.view(self.layout.word(frame))
    }

    /// A frame's slab header.
    #[inline]
    pub fn header(&self, frame: FrameId) -> Result<&SlabHeader, OutsideMapping> {
        self.in_range(frame)?;
        self.memory.view(self.layout.header(frame))
    }

    /// The bitmap words of a frame with objects of `class`.
    pub fn bitmap(&self, frame: FrameId, class: SizeClass) -> Result<&[AtomicU64], OutsideMapping> {
        self.in_range(frame)?;
        let objects = class.objects_per_page(self.layout.page_size);
        let first = self.layout.bit(frame, class, 0);
        self.memory.view_slice(first.word, objects.div_ceil(64) as usize)
    }

    /// Allocates memory for the metadata of a frame, for any class.
    pub fn reserve(&self, frame: FrameId) -> Result<(), PopulateError> {
        self.in_range(frame)?;
        self.memory.populate_part(self.layout.header(frame), size_of::<SlabHeader>() as u64)?;
        self.memory
            .populate_part(self.layout.published(frame), size_of::<PublishedCopy>() as u64)?;
        self.memory.populate_part(self.layout.bitmap(frame), self.layout.bitmap_bytes())
    }

    /// The record of the exchanges with another rack.
    pub fn peer(&self, rack: RackId) -> Result<&PeerRecord, OutsideMapping> {
        let size = size_of::<PeerRecord>() as u64;
        let offset = self.layout.peers() + u64::from(rack.0) * size;
        if rack.0 >= MAX_RACKS {
            return Err(OutsideMapping { offset, len: size, mapped: self.memory.len() });
        }
        self.memory.view(offset)
    }

    /// The published copy of a frame.
    pub fn published(&self, frame: FrameId) -> Result<&PublishedCopy, OutsideMapping> {
        self.in_range(frame)?;
        self.memory.view(self.layout.published(frame))
    }

    /// The records of swaps in progress.
    pub fn swaps(&self) -> Result<&[SwapRecord], OutsideMapping> {
        self.memory.view_slice(self.layout.swaps(), SWAP_RECORDS)
    }

    const fn in_range(&self, frame: FrameId) -> Result<(), OutsideMapping> {
        if frame.0 < self.layout.frames {
            return Ok(());
        }
        let offset = self.layout.word(frame);
        Err(OutsideMapping { offset, len: 8, mapped: self.memory.len() })
    }
}

/// The offsets of docs/design/rack-memory.md and swap.md.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<SlabHeader>() == 16);
    assert!(offset_of!(SlabHeader, kind) == 0 && offset_of!(SlabHeader, second) == 8);
    assert!(size_of::<PeerLog>() == 320 && size_of::<PeerRecord>() == 640);
    assert!(offset_of!(PeerRecord, asked) == 0 && offset_of!(PeerRecord, served) == 320);
    assert!(offset_of!(PeerLog, sequence) == 0 && offset_of!(PeerLog, state) == 8);
    assert!(offset_of!(PeerLog, kind) == 16 && offset_of!(PeerLog, bytes) == 24);
    assert!(offset_of!(PeerLog, count) == 32 && offset_of!(PeerLog, memory) == 40);
    assert!(offset_of!(PeerLog, reserved) == 56 && offset_of!(PeerLog, addrs) == 64);
    assert!(size_of::<SwapRecord>() == 64 && size_of::<PublishedCopy>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_uses_survive_their_word() {
        let page = PageSize::DEFAULT;
        for index in 0..SizeClass::count(page) {
            let class = SizeClass::from_index(index, page).unwrap();
            for usage in [PageUse::Slab(class), PageUse::Fixed(class)] {
                assert_eq!(PageUse::from_raw(usage.to_raw(), page), usage);
                assert_eq!((usage.class(), usage.span_bytes(page)), (Some(class), 2 << 20));
            }
        }
        let run = PageUse::Run { index: PageUse::MAX_RUN - 1, pages: PageUse::MAX_RUN };
        assert_eq!(PageUse::from_raw(run.to_raw(), page), run);
        assert_eq!(PageUse::from_raw(u64::MAX, page), PageUse::Unused);
        assert_eq!(PageUse::Run { index: 1, pages: 3 }.span_bytes(page), 4 << 20);
    }

    #[test]
    fn areas_do_not_overlap_and_small_classes_keep_their_bits_inline() {
        let page = PageSize::DEFAULT;
        let layout = MetadataLayout::new(page, 1000);
        let last = FrameId(999);
        assert!(layout.word(last) + 8 <= layout.header(FrameId(0)));
        assert!(layout.header(last) + 16 <= layout.peers());
        assert!(layout.peers() + 640 * 256 <= layout.swaps());
        assert!(layout.swaps() + 512 <= layout.published(FrameId(0)));
        assert!(layout.published(last) + 16 <= layout.bitmaps());
        let tiny = SizeClass::for_bytes(16, page).unwrap();
        let big = SizeClass::for_bytes(64 << 10, page).unwrap();
        assert!(layout.bit(FrameId(0), tiny, 0).word >= layout.bitmaps());
        assert_eq!(
            layout.bit(last, tiny, 131_071).word + 8,
            layout.bitmaps() + layout.bitmap_bytes() * 1000
        );
        let word = layout.header(FrameId(5)) + 8;
        assert_eq!(layout.bit(FrameId(5), big, 31), MetadataBit { word, mask: 1 << 31 });
    }

    /// The numbers and offsets of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        let layout = MetadataLayout::new(PageSize::DEFAULT, 512);
        let first = FrameId(0);
        assert_eq!((layout.word(first), layout.word(FrameId(1))), (4096, 4104));
        assert_eq!((layout.header(first), layout.header(FrameId(1))), (8192, 8208));
        assert_eq!((layout.peers(), layout.swaps()), (16_384, 180_224));
        assert_eq!((layout.published(first), layout.published(FrameId(1))), (184_320, 184_336));
        assert_eq!((layout.bitmap(first), layout.bitmap(FrameId(1))), (192_512, 208_896));
        assert_eq!(layout.bytes(), 8_581_120);
        let run = PageUse::Run { index: 3, pages: 5 };
        assert_eq!(run.to_raw(), 3 << 40 | 5 << 16 | 2);
        let class = SizeClass::from_index(7, PageSize::DEFAULT).unwrap();
        assert_eq!(PageUse::Slab(class).to_raw(), 7 << 8 | 1);
        assert_eq!(PageUse::Fixed(class).to_raw(), 7 << 8 | 3);
    }
}
