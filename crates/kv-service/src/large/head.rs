use rackpool_client::{Extent, GlobalAddr};

use super::Nodes;
use crate::values::StringId;

/// The length of the keys of heads and markers in the node table. Keys of nodes are longer.
const KEY: usize = 1 + StringId::BYTES;

/// The key of a string's head in the node table.
pub(super) fn head_key(id: StringId) -> [u8; KEY] {
    key(b's', id)
}

/// The key of the marker that the string has until a key names it.
pub(super) fn marker_key(id: StringId) -> [u8; KEY] {
    key(b'm', id)
}

fn key(kind: u8, id: StringId) -> [u8; KEY] {
    let mut key = [kind; KEY];
    key[1..].copy_from_slice(&id.to_bytes());
    key
}

/// A key of the node table that belongs to a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StringKey {
    Head(StringId),
    Marker(StringId),
}

impl StringKey {
    pub(super) fn parse(key: &[u8]) -> Option<Self> {
        let (kind, id) = key.split_first()?;
        let id = StringId::from_bytes(id.try_into().ok()?);
        match kind {
            b's' => Some(Self::Head(id)),
            b'm' => Some(Self::Marker(id)),
            _ => None,
        }
    }
}

/// The value of the entry that begins a string's head, all numbers little-endian.
///
/// ```text
/// 0      8     16        20      24
/// +------+-----+---------+-------+-------+
/// | size | len | extents | zero  | owner |
/// +------+-----+---------+-------+-------+
/// ```
///
/// `size` is that of the head and its extents together, `len` that of the string. `owner` is the
/// key that names the string. Behind the entry, at the next multiple of 8, there is a word for each
/// extent: the page of its address (40 bits) and its pages (24 bits).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) size: u64,
    pub(super) len: u64,
    pub(super) extents: u32,
    pub(super) owner: Vec<u8>,
}

impl Head {
    const FIXED: usize = 24;
    const PAGE_BITS: u32 = 24;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(Self::FIXED + self.owner.len());
        value.extend_from_slice(&self.size.to_le_bytes());
        value.extend_from_slice(&self.len.to_le_bytes());
        value.extend_from_slice(&self.extents.to_le_bytes());
        value.extend_from_slice(&[0; 4]);
        value.extend_from_slice(&self.owner);
        value
    }

    /// `None` for bytes that no release writes.
    pub(super) fn decode(value: &[u8]) -> Option<Self> {
        let (fixed, owner) = value.split_first_chunk::<{ Self::FIXED }>()?;
        let word = |at: usize| fixed[at..].first_chunk().map(|word| u64::from_le_bytes(*word));
        let extents = u32::try_from(word(16)?).ok()?;
        Some(Self { size: word(0)?, len: word(8)?, extents, owner: owner.to_vec() })
    }

    /// The offset of the words of the extents in the head of a string of a key with `key_len`
    /// bytes.
    pub(super) const fn words_at(key_len: usize) -> u64 {
        (Nodes::entry_bytes(KEY, Self::FIXED + key_len) as u64).next_multiple_of(8)
    }

    /// The word of an extent; `None` if it has none.
    pub(super) fn encode_extent(extent: &Extent, page_bytes: u64) -> Option<u64> {
        let (page, pages) = (extent.addr.raw() / page_bytes, extent.bytes / page_bytes);
        let fits = pages >> Self::PAGE_BITS == 0 && page >> (64 - Self::PAGE_BITS) == 0;
        fits.then_some(page << Self::PAGE_BITS | pages)
    }

    /// The extent of a word, which another program has written.
    pub(super) fn decode_extent(word: u64, page_bytes: u64) -> Option<Extent> {
        let pages = word & ((1 << Self::PAGE_BITS) - 1);
        let addr = GlobalAddr::from_raw((word >> Self::PAGE_BITS).checked_mul(page_bytes)?);
        Some(Extent { addr, bytes: pages.checked_mul(page_bytes)? })
    }
}

/// The address `offset` bytes behind another one. Addresses are less than 2^62.
pub(super) const fn at(addr: GlobalAddr, offset: u64) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw().saturating_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_comes_back_as_it_went() {
        let head = Head { size: 1 << 40, len: 7, extents: 300, owner: b"key".to_vec() };
        let value = head.encode();
        assert_eq!(Head::decode(&value), Some(head));
        assert_eq!(Head::decode(&value[..23]), None);
        assert_eq!(Head::decode(&[0xff; 24]), None, "no release writes such a number of extents");
        assert_eq!(Head::words_at(3), 80);
    }

    #[test]
    fn an_extent_comes_back_as_it_went() {
        let extent = Extent { addr: GlobalAddr::from_raw(7 << 19), bytes: 3 << 19 };
        let word = Head::encode_extent(&extent, 1 << 19).unwrap();
        assert_eq!(Head::decode_extent(word, 1 << 19), Some(extent));
        assert_eq!(Head::decode_extent(u64::MAX, 1 << 30), None);
        let long = Extent { bytes: 1 << 43, ..extent };
        assert_eq!(Head::encode_extent(&long, 1 << 19), None);
    }

    #[test]
    fn keys_of_strings_are_told_apart_from_others() {
        let id = StringId::random();
        assert_eq!(StringKey::parse(&head_key(id)), Some(StringKey::Head(id)));
        assert_eq!(StringKey::parse(&marker_key(id)), Some(StringKey::Marker(id)));
        for other in [&b""[..], &[b's'; 16], &[b's'; 18], &[b'x'; 17]] {
            assert_eq!(StringKey::parse(other), None);
        }
    }
}
