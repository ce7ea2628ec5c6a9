use std::ops::Range;

use rackpool_client::GlobalAddr;
use xxhash_rust::xxh3::xxh3_64;

use crate::hash::KeyHash;

/// An entry's bytes in the pool; but for the two words before `hash` they never change.
///
/// ```text
///  0       8       12      16      24           28         30      32
/// +-------+-------+-------+-------+------------+----------+-------+-----+-------+
/// | owner | check | pins  | hash  | value len  | key len  |   0   | key | value |
/// +-------+-------+-------+-------+------------+----------+-------+-----+-------+
/// ```
///
/// `owner` is 0, kept for the client library. `check` is the low half of XXH3-64 over everything
/// from `hash` on. `pins` settles who frees an unlinked object that clients still hold.
pub(crate) struct Object;

/// Where key and value are in an object's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) hash: KeyHash,
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
}

impl Object {
    pub(crate) const HEADER: usize = 32;
    const CHECKED: usize = 16;

    /// The word that holds `check` (low half) and `pins` (high half).
    pub(crate) const fn pins_addr(object: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(object.raw() + 8)
    }

    pub(crate) const fn hash_addr(object: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(object.raw() + 16)
    }

    /// Header, key and value together, in bytes; `None` for lengths that no object has.
    pub(crate) fn bytes_for(key: &[u8], value: &[u8]) -> Option<usize> {
        u16::try_from(key.len()).ok().filter(|len| *len > 0)?;
        u32::try_from(value.len()).ok()?;
        Some(Self::HEADER + key.len() + value.len())
    }

    /// Writes the object into `bytes`, replacing what it holds. The lengths must be ones that
    /// [`bytes_for`](Self::bytes_for) accepts.
    #[expect(clippy::cast_possible_truncation, reason = "the caller checked the lengths")]
    pub(crate) fn encode(bytes: &mut Vec<u8>, hash: KeyHash, key: &[u8], value: &[u8]) {
        bytes.clear();
        bytes.extend_from_slice(&[0; Self::CHECKED]);
        bytes.extend_from_slice(&hash.raw().to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        let check = Self::check(&bytes[Self::CHECKED..]);
        bytes[8..12].copy_from_slice(&check.to_le_bytes());
    }

    /// The whole object's length in bytes, as its header says.
    #[inline]
    pub(crate) fn len_in(header: &[u8]) -> Option<usize> {
        let header = header.first_chunk::<{ Self::HEADER }>()?;
        let (key, value) = Self::lens(header);
        Some(Self::HEADER + key + value)
    }

    /// The parts of the object that `bytes` starts with, or `None` when it is none.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<Parts> {
        let header = bytes.first_chunk::<{ Self::HEADER }>()?;
        let (key_len, value_len) = Self::lens(header);
        let key_end = Self::HEADER + key_len;
        let end = key_end + value_len;
        if key_len == 0 || end > bytes.len() {
            return None;
        }
        let [_, _, _, _, _, _, _, _, c0, c1, c2, c3, ..] = *header;
        if Self::check(&bytes[Self::CHECKED..end]) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return None;
        }
        let hash = KeyHash::from_raw(crate::bucket::word_at(header, 2));
        Some(Parts { hash, key: Self::HEADER..key_end, value: key_end..end })
    }

    #[inline]
    fn lens(header: &[u8; Self::HEADER]) -> (usize, usize) {
        let [.., v0, v1, v2, v3, k0, k1, _, _] = *header;
        let value = u32::from_le_bytes([v0, v1, v2, v3]);
        (usize::from(u16::from_le_bytes([k0, k1])), value as usize)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
    fn check(bytes: &[u8]) -> u32 {
        xxh3_64(bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went() {
        let mut bytes = Vec::new();
        let hash = KeyHash::of(b"key");
        Object::encode(&mut bytes, hash, b"key", b"value");
        bytes.resize(64, 0xdd);
        assert_eq!(Object::len_in(&bytes), Some(40));
        let parts = Object::decode(&bytes).unwrap();
        assert_eq!((&bytes[parts.key], &bytes[parts.value]), (&b"key"[..], &b"value"[..]));
        assert_eq!(parts.hash, hash);
    }

    #[test]
    fn any_flipped_byte_is_noticed() {
        let mut bytes = Vec::new();
        Object::encode(&mut bytes, KeyHash::of(b"key"), b"key", b"value");
        for at in (8..12).chain(16..bytes.len()) {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert_eq!(Object::decode(&other), None, "byte {at}");
        }
        assert_eq!(Object::decode(&bytes[..39]), None);
        assert_eq!(Object::decode(&[0xdd; 64]), None);
    }

    #[test]
    fn lengths_are_limited() {
        assert_eq!(Object::bytes_for(b"", b""), None);
        assert_eq!(Object::bytes_for(&[0; 65535], b""), Some(65567));
        assert_eq!(Object::bytes_for(&[0; 65536], b""), None);
    }
}
