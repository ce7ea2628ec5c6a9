use rackpool_client::GlobalAddr;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::KvError;
use crate::layout::bucket::{SegmentShape, word_at};
use crate::layout::segment::TableLayout;
use crate::layout::spare_block::SpareSegments;

/// The table header: what [`Table::addr`](crate::Table::addr) points to.
///
/// ```text
///  0       8         12          13             14   16          24      32     64      576
/// +-------+---------+-----------+--------------+----+-----------+-------+------+-------+
/// | magic | version | max depth | segment bits | 0  | directory | check |  0   | spare_segments |
/// +-------+---------+-----------+--------------+----+-----------+-------+------+-------+
/// ```
///
/// `check` is XXH3-64 over the 24 bytes before it, or, while the table is created, the value of an
/// earlier [`CreationStage`]. In a complete table only the first spare-segment block changes.
pub(crate) struct TableHeader;

/// The stage of a table's creation, encoded in `check`. A kill leaves the stage unchanged; the next
/// client that opens the table continues from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreationStage {
    /// There is no directory, or its owner word is not yet cleared. `check` is computed with a
    /// directory address of 0. Left when a client clears the directory's owner word.
    Begun,
    /// There is a directory. Its first entry is 0 or the first segment. `check` is the complement
    /// of a complete table's. Left when a client has seen the first segment.
    HasDirectory,
    /// The first entry of the directory is a segment. The final stage.
    Complete,
}

/// What the header of a table says.
pub(crate) struct DecodedHeader {
    pub(crate) layout: TableLayout,
    /// How far the creation of the table has come.
    pub(crate) stage: CreationStage,
}

impl CreationStage {
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Begun => Self::HasDirectory,
            Self::HasDirectory | Self::Complete => Self::Complete,
        }
    }

    pub(crate) fn has_directory(self) -> bool {
        self != Self::Begun
    }

    pub(crate) fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

/// Whether `first` are the first bytes of a table.
///
/// ```
/// assert!(rackpool_kv::begins_table(b"rackp-kv"));
/// ```
#[must_use]
pub const fn begins_table(first: &[u8; 8]) -> bool {
    u64::from_le_bytes(*first) == TableHeader::MAGIC
}

impl TableHeader {
    pub(crate) const BYTES: usize = Self::FIXED + SpareSegments::BYTES;
    /// The length of the part before the first spare-segment block, in bytes.
    pub(crate) const FIXED: usize = 64;
    pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rackp-kv");
    /// The magic number of a table without entries that is being removed.
    pub(crate) const REMOVED: u64 = u64::from_le_bytes(*b"rackp-kx");
    const VERSION: u32 = 6;
    const CHECKED: usize = 24;
    const DIRECTORY: std::ops::Range<usize> = 16..24;

    /// The address of the word with the directory's address.
    pub(crate) const fn directory_at(table: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(table.raw() + Self::DIRECTORY.start as u64)
    }

    /// The address of the check word, which encodes the creation stage.
    pub(crate) const fn check_at(table: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(table.raw() + Self::CHECKED as u64)
    }

    /// The address of the first spare-segment block.
    pub(crate) const fn spare_segments_addr(table: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(table.raw() + Self::FIXED as u64)
    }

    /// The size of a directory in bytes.
    pub(crate) const fn directory_bytes(max_depth: u8) -> u64 {
        8 << max_depth
    }

    pub(crate) fn encode(layout: &TableLayout, stage: CreationStage) -> [u8; Self::FIXED] {
        let mut bytes = Self::fields(layout);
        bytes[Self::CHECKED..32].copy_from_slice(&Self::check(layout, stage).to_le_bytes());
        bytes
    }

    /// The check word of this layout at this stage.
    pub(crate) fn check(layout: &TableLayout, stage: CreationStage) -> u64 {
        Self::check_of(&Self::fields(layout), stage)
    }

    fn fields(layout: &TableLayout) -> [u8; Self::FIXED] {
        let mut bytes = [0; Self::FIXED];
        bytes[..8].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&Self::VERSION.to_le_bytes());
        bytes[12] = layout.max_depth;
        bytes[13] = layout.shape.bits();
        bytes[Self::DIRECTORY].copy_from_slice(&layout.directory.raw().to_le_bytes());
        bytes
    }

    fn check_of(bytes: &[u8; Self::FIXED], stage: CreationStage) -> u64 {
        let mut checked = *bytes;
        if stage == CreationStage::Begun {
            checked[Self::DIRECTORY].fill(0);
        }
        let check = xxh3_64(&checked[..Self::CHECKED]);
        if stage == CreationStage::HasDirectory { !check } else { check }
    }

    pub(crate) fn decode<E>(
        addr: GlobalAddr,
        bytes: &[u8; Self::FIXED],
    ) -> Result<DecodedHeader, KvError<E>> {
        if word_at(bytes, 0) != Self::MAGIC {
            return Err(KvError::NotATable { addr });
        }
        let (layout, check) = (Self::decode_fields(addr, bytes)?, word_at(bytes, 3));
        // Without a directory, `Begun` and `Complete` have the same check.
        let stages = [CreationStage::Begun, CreationStage::HasDirectory, CreationStage::Complete];
        let mut stages = stages
            .into_iter()
            .filter(|stage| *stage == CreationStage::Begun || !layout.directory.is_null());
        match stages.find(|stage| Self::check_of(bytes, *stage) == check) {
            Some(stage) => Ok(DecodedHeader { layout, stage }),
            None => Err(KvError::Corrupt { what: "table header", addr }),
        }
    }

    /// As [`decode`](Self::decode), of a table that is being removed: its directory may be gone.
    pub(crate) fn decode_removed<E>(
        addr: GlobalAddr,
        bytes: &[u8; Self::FIXED],
    ) -> Result<DecodedHeader, KvError<E>> {
        let mut open = *bytes;
        open[..8].copy_from_slice(&Self::MAGIC.to_le_bytes());
        let layout = Self::decode_fields(addr, bytes)?;
        let is_begun = Self::check_of(&open, CreationStage::Begun) == word_at(bytes, 3);
        let stage = if is_begun { CreationStage::Begun } else { CreationStage::Complete };
        Ok(DecodedHeader { layout, stage })
    }

    fn decode_fields<E>(
        addr: GlobalAddr,
        bytes: &[u8; Self::FIXED],
    ) -> Result<TableLayout, KvError<E>> {
        let [_, _, _, _, _, _, _, _, v0, v1, v2, v3, max_depth, segment_bits, ..] = *bytes;
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if found != Self::VERSION {
            return Err(KvError::Version { addr, found, supported: Self::VERSION });
        }
        let directory = GlobalAddr::from_raw(word_at(bytes, 2));
        let shape = SegmentShape::new(segment_bits);
        let Some(shape) = shape.filter(|_| max_depth <= crate::TableOptions::MAX_DEPTH) else {
            return Err(KvError::Corrupt { what: "table header", addr });
        };
        Ok(TableLayout { addr, directory, max_depth, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: GlobalAddr = GlobalAddr::from_raw(4096);

    fn decode(bytes: &[u8; TableHeader::FIXED]) -> Result<DecodedHeader, KvError<std::io::Error>> {
        TableHeader::decode(ADDR, bytes)
    }

    fn layout(directory: u64) -> TableLayout {
        let shape = SegmentShape::new(15).unwrap();
        TableLayout { addr: ADDR, directory: GlobalAddr::from_raw(directory), max_depth: 12, shape }
    }

    #[test]
    fn comes_back_as_it_went() {
        for stage in [CreationStage::Begun, CreationStage::HasDirectory, CreationStage::Complete] {
            let DecodedHeader { layout, stage: found } =
                decode(&TableHeader::encode(&layout(8192), stage)).unwrap();
            assert_eq!((layout.max_depth, layout.shape.bytes(), found), (12, 32768, stage));
            assert_eq!(layout.entry_addr(2).raw(), 8208);
        }
        let DecodedHeader { stage: found, .. } =
            decode(&TableHeader::encode(&layout(0), CreationStage::Complete)).unwrap();
        assert_eq!(found, CreationStage::Begun);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let good = TableHeader::encode(&layout(8192), CreationStage::Complete);
        assert!(matches!(decode(&[0; 64]), Err(KvError::NotATable { .. })));
        let mut other = good;
        other[8] = 1;
        assert!(matches!(decode(&other), Err(KvError::Version { found: 1, .. })));
        for at in 12..32 {
            let mut damaged = good;
            damaged[at] ^= 1;
            assert!(matches!(decode(&damaged), Err(KvError::Corrupt { .. })), "byte {at}");
        }
    }
}
