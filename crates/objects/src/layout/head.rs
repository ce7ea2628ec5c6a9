use std::num::NonZeroU64;

use rackpool_client::{Extent, GlobalAddr, RackId};

use crate::layout::keys::LONGEST_ID;

/// The number of a file with the bytes of an object.
pub(crate) type FileNumber = NonZeroU64;

/// What the entry of an object says, which begins the object's *head*.
///
/// ```text
///        0     8      16         24        32         36     40     48
///       +-----+------+----------+---------+----------+------+------+
/// value | len | tag  | checksum | created | metadata | rest | file |
///       +-----+------+----------+---------+----------+------+------+
/// ```
///
/// `len` is the length of the bytes, `metadata` that of the metadata, which follow the bytes
/// directly. `created` is a time in milliseconds since 1970. `rest` has the rack in its upper 10
/// bits and the number of extents in its lower 22. `file` is there only if the bytes are in a file
/// of the rack instead of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) bytes: u64,
    pub(crate) metadata: u32,
    pub(crate) layout_tag: u64,
    pub(crate) checksum: u64,
    pub(crate) created_ms: u64,
    /// The rack of this head.
    pub(crate) rack: RackId,
    /// The number of extents; 0 if the bytes are in the head. That of a spilled object is what it
    /// had before.
    pub(crate) extents: u32,
    /// The file with the bytes of a spilled object.
    pub(crate) file: Option<FileNumber>,
}

impl Head {
    /// The length of the value in bytes, of an object whose bytes are in memory.
    pub(crate) const VALUE: usize = 40;
    /// The same for a spilled object.
    pub(crate) const STUB: usize = 48;
    const EXTENT_BITS: u32 = 22;

    /// The value of an object whose bytes are in memory.
    pub(crate) fn encode(&self) -> [u8; Self::VALUE] {
        let mut value = [0; Self::VALUE];
        let rest = u32::from(self.rack.0) << Self::EXTENT_BITS | self.extents;
        let words = [self.bytes, self.layout_tag, self.checksum, self.created_ms];
        for (into, word) in value.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        value[32..36].copy_from_slice(&self.metadata.to_le_bytes());
        value[36..].copy_from_slice(&rest.to_le_bytes());
        value
    }

    /// The value of a spilled object.
    pub(crate) fn encode_stub(&self, file: FileNumber) -> [u8; Self::STUB] {
        let mut value = [0; Self::STUB];
        value[..Self::VALUE].copy_from_slice(&self.encode());
        value[Self::VALUE..].copy_from_slice(&file.get().to_le_bytes());
        value
    }

    /// `None` for bytes that no release writes.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let file = match value.len() {
            Self::VALUE => None,
            Self::STUB => Some(FileNumber::new(u64::from_le_bytes(*value.last_chunk()?))?),
            _ => return None,
        };
        let word = |at: usize| {
            value
                .get(at..at + 8)
                .and_then(<[u8]>::first_chunk)
                .map(|word| u64::from_le_bytes(*word))
        };
        let last = word(32)?;
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of a word")]
        let (metadata, rest) = (last as u32, (last >> 32) as u32);
        let head = Self {
            bytes: word(0)?,
            layout_tag: word(8)?,
            checksum: word(16)?,
            created_ms: word(24)?,
            metadata,
            rack: RackId(u16::try_from(rest >> Self::EXTENT_BITS).ok()?),
            extents: rest & ((1 << Self::EXTENT_BITS) - 1),
            file,
        };
        head.bytes.checked_add(u64::from(metadata)).map(|_| head)
    }

    /// Whether the bytes are in a file of the rack.
    pub(crate) const fn is_spilled(&self) -> bool {
        self.file.is_some()
    }

    /// The memory of the head and its extents in bytes.
    pub(crate) const fn memory(&self, layout: HeadLayout, page_bytes: u64) -> u64 {
        if self.is_spilled() { 0 } else { layout.memory_for(self.len(), page_bytes) }
    }

    /// The number of pieces of memory that the bytes lie in.
    pub(crate) fn pieces(&self) -> u32 {
        if self.is_spilled() { 0 } else { self.extents.max(1) }
    }

    /// The length of bytes and metadata together.
    pub(crate) const fn len(&self) -> u64 {
        self.bytes + self.metadata as u64
    }
}

/// Where the parts of a head lie behind its entry, as offsets from its address.
///
/// ```text
/// +-------+----------+---------+------------------------------------------+
/// | entry | last use | filling | bytes and metadata, or a word per extent |
/// +-------+----------+---------+------------------------------------------+
///         next multiple of 8  next multiple of 64
/// ```
///
/// `last use` is a time in milliseconds since 1970. `filling` is a [`Filling`] in the head of a
/// replica; in that of an object, the number of a file of the rack that has the same bytes, or 0.
/// The word of an extent has the page of its address in the upper 40 bits and its number of pages
/// in the lower 24.
///
/// [`Filling`]: crate::layout::filling::Filling
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLayout {
    entry: u64,
}

impl HeadLayout {
    const PAGE_BITS: u32 = 24;

    /// The layout of the head of an id of `id_len` bytes.
    pub(crate) const fn of(id_len: usize) -> Self {
        const ENTRY: usize = 32;
        Self { entry: (ENTRY + 1 + id_len + Head::VALUE) as u64 }
    }

    pub(crate) const fn last_use(self) -> u64 {
        self.entry.next_multiple_of(8)
    }

    pub(crate) const fn filling(self) -> u64 {
        self.last_use() + 8
    }

    /// Where the bytes or the words of the extents begin.
    pub(crate) const fn body(self) -> u64 {
        (self.filling() + 8).next_multiple_of(64)
    }

    /// The memory that an object of `len` bytes takes, with its metadata: its head and its pages.
    pub(crate) const fn memory_for(self, len: u64, page_bytes: u64) -> u64 {
        let in_head = self.body().saturating_add(len);
        if in_head <= page_bytes {
            return in_head.next_power_of_two();
        }
        let pages = len.div_ceil(page_bytes);
        let head = self.body().saturating_add(pages.saturating_mul(8));
        let head = if head < page_bytes { head.next_power_of_two() } else { page_bytes };
        head.saturating_add(pages.saturating_mul(page_bytes))
    }

    /// The longest that `body` can be.
    pub(crate) const LARGEST_BODY: u64 = Self::of(LONGEST_ID).body();

    /// The word of an extent; `None` if it has none.
    pub(crate) fn encode_extent(extent: &Extent, page_bytes: u64) -> Option<u64> {
        let pages = extent.bytes / page_bytes;
        let page = extent.addr.raw() / page_bytes;
        (pages >> Self::PAGE_BITS == 0 && page >> (64 - Self::PAGE_BITS) == 0)
            .then_some(page << Self::PAGE_BITS | pages)
    }

    /// The extent of a word, which another program has written.
    pub(crate) fn decode_extent(word: u64, page_bytes: u64) -> Option<Extent> {
        let pages = word & ((1 << Self::PAGE_BITS) - 1);
        let addr = GlobalAddr::from_raw((word >> Self::PAGE_BITS).checked_mul(page_bytes)?);
        Some(Extent { addr, bytes: pages.checked_mul(page_bytes)? })
    }
}

/// The address `offset` bytes behind another one. Addresses are less than 2^62.
pub(crate) const fn at(addr: GlobalAddr, offset: u64) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw().saturating_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_as_it_went() {
        let head = Head {
            bytes: 1 << 40,
            metadata: u32::MAX,
            layout_tag: 3,
            checksum: u64::MAX,
            created_ms: 5,
            rack: RackId(255),
            extents: (1 << 22) - 1,
            file: None,
        };
        assert_eq!(Head::decode(&head.encode()), Some(head));
        assert_eq!(Head::decode(&head.encode()[1..]), None);
        let file = FileNumber::new(7).unwrap();
        let stub = head.encode_stub(file);
        assert_eq!(Head::decode(&stub), Some(Head { file: Some(file), ..head }));
        assert_eq!(Head::decode(&[&head.encode()[..], &[0; 8]].concat()), None);
        let overflows = Head { bytes: u64::MAX, ..head };
        assert_eq!(Head::decode(&overflows.encode()), None);
    }

    #[test]
    fn an_extent_comes_back_as_it_went() {
        let extent = Extent { addr: GlobalAddr::from_raw(7 << 19), bytes: 3 << 19 };
        let word = HeadLayout::encode_extent(&extent, 1 << 19).unwrap();
        assert_eq!(HeadLayout::decode_extent(word, 1 << 19), Some(extent));
        assert_eq!(HeadLayout::decode_extent(u64::MAX, 1 << 30), None);
        let long = Extent { bytes: 1 << 43, ..extent };
        assert_eq!(HeadLayout::encode_extent(&long, 1 << 19), None);
    }

    #[test]
    fn the_parts_of_a_head_do_not_overlap() {
        for id_len in 1..=LONGEST_ID {
            let layout = HeadLayout::of(id_len);
            assert!(layout.last_use() >= layout.entry && layout.last_use().is_multiple_of(8));
            assert_eq!(layout.filling(), layout.last_use() + 8);
            assert!(layout.body() >= layout.filling() + 8 && layout.body().is_multiple_of(64));
        }
        // An object of 100 B with an id of 20 B takes 256 B.
        assert_eq!(HeadLayout::of(20).body(), 128);
    }
}
