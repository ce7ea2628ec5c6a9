use rackpool_client::GlobalAddr;
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::{SegmentShape, word_at};
use crate::error::KvError;
use crate::segment::Layout;
use crate::shelf::ShelfBlock;

/// The table header: what [`Table::addr`](crate::Table::addr) points to.
///
/// ```text
///  0       8         12          13             14   16          24      32     64      576
/// +-------+---------+-----------+--------------+----+-----------+-------+------+-------+
/// | magic | version | max depth | segment bits | 0  | directory | check |  0   | shelf |
/// +-------+---------+-----------+--------------+----+-----------+-------+------+-------+
/// ```
///
/// `check` is XXH3-64 over the 24 bytes before it. Only the shelf's first block changes.
pub(crate) struct TableHeader;

/// Whether a table begins with these bytes.
///
/// ```
/// assert!(rackpool_kv::begins_table(b"rackp-kv"));
/// ```
#[must_use]
pub const fn begins_table(first: &[u8; 8]) -> bool {
    u64::from_le_bytes(*first) == TableHeader::MAGIC
}

impl TableHeader {
    pub(crate) const BYTES: usize = Self::FIXED + ShelfBlock::BYTES;
    /// Before the shelf.
    pub(crate) const FIXED: usize = 64;
    const MAGIC: u64 = u64::from_le_bytes(*b"rackp-kv");
    const VERSION: u32 = 6;

    /// The shelf's first block.
    pub(crate) const fn shelf_addr(table: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(table.raw() + Self::FIXED as u64)
    }

    pub(crate) fn encode(
        directory: GlobalAddr,
        max_depth: u8,
        segment_bits: u8,
    ) -> [u8; Self::FIXED] {
        let mut bytes = [0; Self::FIXED];
        bytes[..8].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&Self::VERSION.to_le_bytes());
        bytes[12] = max_depth;
        bytes[13] = segment_bits;
        bytes[16..24].copy_from_slice(&directory.raw().to_le_bytes());
        let check = xxh3_64(&bytes[..24]);
        bytes[24..32].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    pub(crate) fn decode<E>(
        addr: GlobalAddr,
        bytes: &[u8; Self::FIXED],
    ) -> Result<Layout, KvError<E>> {
        if word_at(bytes, 0) != Self::MAGIC {
            return Err(KvError::NotATable { addr });
        }
        let [_, _, _, _, _, _, _, _, v0, v1, v2, v3, max_depth, segment_bits, ..] = *bytes;
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if found != Self::VERSION {
            return Err(KvError::Version { addr, found, supported: Self::VERSION });
        }
        let damaged = KvError::Corrupt { what: "table header", addr };
        if word_at(bytes, 3) != xxh3_64(&bytes[..24]) || max_depth > crate::Options::MAX_DEPTH {
            return Err(damaged);
        }
        let directory = GlobalAddr::from_raw(word_at(bytes, 2));
        let shape = SegmentShape::new(segment_bits).ok_or(damaged)?;
        Ok(Layout { addr, directory, max_depth, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDR: GlobalAddr = GlobalAddr::from_raw(4096);

    fn decode(bytes: &[u8; TableHeader::FIXED]) -> Result<Layout, KvError<std::io::Error>> {
        TableHeader::decode(ADDR, bytes)
    }

    #[test]
    fn comes_back_as_it_went() {
        let bytes = TableHeader::encode(GlobalAddr::from_raw(8192), 12, 15);
        let layout = decode(&bytes).unwrap();
        assert_eq!((layout.max_depth, layout.shape.bytes()), (12, 32768));
        assert_eq!(layout.entry_addr(2).raw(), 8208);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let good = TableHeader::encode(GlobalAddr::from_raw(8192), 12, 15);
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
