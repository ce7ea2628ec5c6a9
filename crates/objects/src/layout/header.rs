use rackpool_client::{GlobalAddr, RackId};

use crate::options::StoreOptions;

/// The header of a store, to which its root leads.
///
/// ```text
///  0       8         12  16        40  64             72   128
/// +-------+---------+---+---------+---+--------------+---+-----------------------+
/// | magic | version | 0 | options | 0 | object table | 0 | replica table of each |
/// |       |         |   |         |   |              |   | rack: 256 words       |
/// +-------+---------+---+---------+---+--------------+---+-----------------------+
/// ```
///
/// The options are three words: see [`StoreOptions::to_words`]. The tables are words that the hash
/// table keeps ([`open_or_create_at`](rackpool_kv::Table::open_or_create_at)).
pub(crate) struct StoreHeader;

impl StoreHeader {
    pub(crate) const BYTES: usize = 128 + 8 * RACKS as usize;
    pub(crate) const CHECKED: usize = 16;
    pub(crate) const VERSION: u32 = 2;
    const MAGIC: [u8; 8] = *b"rackp-ob";

    /// A header without tables.
    pub(crate) fn encode(options: &StoreOptions) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..12].copy_from_slice(&Self::VERSION.to_le_bytes());
        bytes[16..40].copy_from_slice(&options.to_bytes());
        bytes
    }

    /// Where the options are.
    pub(crate) const fn options_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 16)
    }

    /// The version of the store that begins with these bytes; `None` if they begin no store.
    pub(crate) fn version(bytes: &[u8; Self::CHECKED]) -> Option<u32> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, version @ .., _, _, _, _] = *bytes;
        ([m0, m1, m2, m3, m4, m5, m6, m7] == Self::MAGIC).then(|| u32::from_le_bytes(version))
    }

    /// The tables that a header names.
    pub(crate) fn tables(header: &[u8]) -> impl Iterator<Item = GlobalAddr> {
        let words = header.get(64..).unwrap_or_default().as_chunks().0.iter();
        words.map(|word| GlobalAddr::from_raw(u64::from_le_bytes(*word))).filter(|at| !at.is_null())
    }

    /// The word of the object table.
    pub(crate) const fn objects_at(header: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 64)
    }

    /// The word of a rack's replica table.
    pub(crate) const fn replicas_at(header: GlobalAddr, rack: RackId) -> GlobalAddr {
        GlobalAddr::from_raw(header.raw() + 128 + 8 * rack.0 as u64)
    }
}

/// Whether `first` are the first bytes of a store.
///
/// ```
/// assert!(rackpool_objects::begins_store(b"rackp-ob"));
/// ```
#[must_use]
pub fn begins_store(first: &[u8; 8]) -> bool {
    *first == StoreHeader::MAGIC
}

/// The most racks of a pool.
pub(crate) const RACKS: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_its_version() {
        let bytes = StoreHeader::encode(&StoreOptions::default());
        assert_eq!(bytes.len(), 2176);
        let mut first = [0; StoreHeader::CHECKED];
        first.copy_from_slice(&bytes[..StoreHeader::CHECKED]);
        assert_eq!(StoreHeader::version(&first), Some(2));
        assert_eq!(StoreHeader::tables(&bytes).count(), 0);
        first[0] = 0;
        assert_eq!(StoreHeader::version(&first), None);
    }
}
