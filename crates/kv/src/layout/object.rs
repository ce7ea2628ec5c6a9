use std::ops::Range;

use rackpool_client::GlobalAddr;
use xxhash_rust::xxh3::xxh3_64;

use crate::entry::{Form, ValueKind};
use crate::layout::bucket::word_at;
use crate::layout::condition::Condition;
use crate::layout::hash::KeyHash;
use crate::layout::slot::SlotWord;

/// The encoding of an entry in the pool. All of it but the owner word is immutable once linked.
///
/// ```text
///  0       8       12    16     24        28        30      31     32
/// +-------+-------+-----+------+---------+---------+-------+------+-----+--------+-------+-------+
/// | owner | check | lot | hash | val len | key len | flags | kind | key | expiry | value | cond. |
/// +-------+-------+-----+------+---------+---------+-------+------+-----+--------+-------+-------+
/// ```
///
/// `owner` is the reservation's token until the object is published, then 0. `check` is the low
/// half of XXH3-64 over all bytes from `hash` on. `lot` is random. `check` and `lot` together are
/// the object's *stamp*, which distinguishes it from other objects at the same address. With flag 1
/// the object ends with a [`Condition`], aligned to 8 bytes: the previous slot word (8 B) and a
/// stamp (8 B). With flag 2 it has an expiry (8 B), in milliseconds since 1970.
pub(crate) struct EntryObject;

/// Positions of key and value in an object's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectParts {
    pub(crate) hash: KeyHash,
    pub(crate) key: Range<usize>,
    pub(crate) value: Range<usize>,
    pub(crate) form: Form,
    /// Whether a condition follows the value.
    conditional: bool,
}

/// The lengths and flags in an object's header.
#[derive(Clone, Copy)]
struct Lens {
    key: usize,
    value: usize,
    condition: bool,
    expiry: bool,
}

impl Lens {
    const fn key_end(self) -> usize {
        EntryObject::HEADER + self.key
    }

    const fn value_begin(self) -> usize {
        self.key_end() + if self.expiry { EntryObject::EXPIRY } else { 0 }
    }

    const fn value_end(self) -> usize {
        self.value_begin() + self.value
    }

    const fn end(self) -> usize {
        if self.condition {
            self.value_end().next_multiple_of(8) + Condition::BYTES
        } else {
            self.value_end()
        }
    }
}

impl EntryObject {
    pub(crate) const HEADER: usize = 32;
    const CHECKED: usize = 16;
    pub(crate) const EXPIRY: usize = 8;
    const CONDITIONAL: u8 = 1;
    const EXPIRING: u8 = 2;
    const FLAGS: usize = 30;

    /// The address of the word with the stamp.
    pub(crate) const fn stamp_addr(object: GlobalAddr) -> GlobalAddr {
        GlobalAddr::from_raw(object.raw() + 8)
    }

    /// The stamp of the object that `bytes` starts with.
    pub(crate) fn stamp_in(bytes: &[u8]) -> u64 {
        word_at(bytes, 1)
    }

    /// Whether an object with this header has a condition.
    pub(crate) fn is_conditional(header: &[u8]) -> bool {
        header.get(Self::FLAGS).is_some_and(|flags| flags & Self::CONDITIONAL != 0)
    }

    /// The offset of the expiry in the object with this header; `Some(None)` if it has none. `None`
    /// if the owner word is set, or for memory that was never written.
    pub(crate) fn expiry_at(header: &[u8; Self::HEADER]) -> Option<Option<usize>> {
        let [.., key_low, key_high, flags, _] = *header;
        let key = usize::from(u16::from_le_bytes([key_low, key_high]));
        let is_settled = Self::owner_in(header) == 0 && Self::hash_in(header).raw() != 0;
        is_settled.then(|| (flags & Self::EXPIRING != 0).then_some(Self::HEADER + key))
    }

    /// The kind in a header.
    pub(crate) const fn kind_in(header: &[u8; Self::HEADER]) -> ValueKind {
        let [.., kind] = *header;
        ValueKind(kind)
    }

    /// The key's hash in a header.
    pub(crate) fn hash_in(head: &[u8]) -> KeyHash {
        KeyHash::from_raw(word_at(head, 2))
    }

    /// The owner word of the object that `bytes` starts with.
    #[inline]
    pub(crate) fn owner_in(bytes: &[u8]) -> u64 {
        bytes.first_chunk().map_or(0, |owner| u64::from_le_bytes(*owner))
    }

    /// The lot of the object that `bytes` starts with.
    #[inline]
    pub(crate) fn lot_in(bytes: &[u8]) -> u32 {
        let [_, _, _, _, lot @ ..] = Self::stamp_in(bytes).to_le_bytes();
        u32::from_le_bytes(lot)
    }

    /// Sets the owner word and the lot of the object that `bytes` starts with. The lot is the low
    /// half of the token unless one is given.
    pub(crate) fn set_token(bytes: &mut [u8], token: u64, lot: Option<u32>) {
        let token = token.to_le_bytes();
        bytes[..8].copy_from_slice(&token);
        match lot {
            Some(lot) => bytes[12..16].copy_from_slice(&lot.to_le_bytes()),
            None => bytes[12..16].copy_from_slice(&token[..4]),
        }
    }

    /// The length of header, key, expiry and value together, in bytes; `None` if key or value is
    /// too long. A condition adds up to 7 bytes and [`Condition::BYTES`].
    pub(crate) fn bytes_for(key: &[u8], form: Form, value: &[u8]) -> Option<usize> {
        u16::try_from(key.len()).ok()?;
        u32::try_from(value.len()).ok()?;
        let expiry = if form.expires_ms == 0 { 0 } else { Self::EXPIRY };
        Some(Self::HEADER + key.len() + expiry + value.len())
    }

    /// Writes the object into `bytes`, replacing the buffer's content. The caller must have checked
    /// the lengths with [`bytes_for`](Self::bytes_for).
    #[expect(clippy::cast_possible_truncation, reason = "the caller checked the lengths")]
    pub(crate) fn encode(
        bytes: &mut Vec<u8>,
        hash: KeyHash,
        key: &[u8],
        form: Form,
        value: &[u8],
        condition: Option<Condition>,
    ) {
        bytes.clear();
        bytes.extend_from_slice(&[0; Self::CHECKED]);
        bytes.extend_from_slice(&hash.raw().to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        let conditional = if condition.is_some() { Self::CONDITIONAL } else { 0 };
        let expiring = if form.expires_ms == 0 { 0 } else { Self::EXPIRING };
        bytes.extend_from_slice(&[conditional | expiring, form.kind.0]);
        bytes.extend_from_slice(key);
        if form.expires_ms != 0 {
            bytes.extend_from_slice(&form.expires_ms.to_le_bytes());
        }
        bytes.extend_from_slice(value);
        if let Some(Condition { word, stamp }) = condition {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend_from_slice(&word.raw().to_le_bytes());
            bytes.extend_from_slice(&stamp.to_le_bytes());
        }
        let check = Self::check(&bytes[Self::CHECKED..]);
        bytes[8..12].copy_from_slice(&check.to_le_bytes());
    }

    /// The length of the whole object in bytes, according to its header.
    #[inline]
    pub(crate) fn len_in(header: &[u8]) -> Option<usize> {
        let header = header.first_chunk::<{ Self::HEADER }>()?;
        Some(Self::lens(header).end())
    }

    /// The offset of the value in an object of kind [`ValueKind::EXTENDED`] with this header.
    pub(crate) fn extended_value_at(header: &[u8]) -> Option<usize> {
        let header = header.first_chunk::<{ Self::HEADER }>()?;
        let lens = Self::lens(header);
        let is_extended = Self::kind_in(header) == ValueKind::EXTENDED && lens.value >= 8;
        is_extended.then(|| lens.value_begin())
    }

    /// The bytes that the object, which `bytes` starts with, and its extents take together, if it
    /// is of kind [`ValueKind::EXTENDED`].
    pub(crate) fn extended_in(bytes: &[u8]) -> Option<u64> {
        let value = bytes.get(Self::extended_value_at(bytes)?..)?;
        value.first_chunk().map(|total| u64::from_le_bytes(*total))
    }

    /// The parts of the object that `bytes` starts with; `None` if its length or check is wrong.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<ObjectParts> {
        let header = bytes.first_chunk::<{ Self::HEADER }>()?;
        let lens = Self::lens(header);
        if lens.end() > bytes.len() {
            return None;
        }
        let [_, _, _, _, _, _, _, _, c0, c1, c2, c3, ..] = *header;
        if Self::check(&bytes[Self::CHECKED..lens.end()]) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return None;
        }
        Some(ObjectParts {
            hash: Self::hash_in(header),
            key: Self::HEADER..lens.key_end(),
            value: lens.value_begin()..lens.value_end(),
            form: Self::form_in(bytes, header, lens),
            conditional: lens.condition,
        })
    }

    #[inline]
    fn form_in(bytes: &[u8], header: &[u8; Self::HEADER], lens: Lens) -> Form {
        let [.., kind] = *header;
        let expiry = bytes.get(lens.key_end()..).and_then(<[u8]>::first_chunk);
        let expires_ms = match expiry {
            Some(expiry) if lens.expiry => u64::from_le_bytes(*expiry),
            _ => 0,
        };
        Form { kind: ValueKind(kind), expires_ms }
    }

    /// The condition of the object that `bytes` starts with and whose parts are `parts`.
    pub(crate) fn condition_in(bytes: &[u8], parts: &ObjectParts) -> Option<Condition> {
        let words = bytes.get(parts.value.end.next_multiple_of(8)..)?;
        let words = words.get(..Condition::BYTES).filter(|_| parts.conditional)?;
        Some(Condition { word: SlotWord::from_raw(word_at(words, 0)), stamp: word_at(words, 1) })
    }

    #[inline]
    fn lens(header: &[u8; Self::HEADER]) -> Lens {
        let [.., v0, v1, v2, v3, k0, k1, flags, _] = *header;
        Lens {
            key: usize::from(u16::from_le_bytes([k0, k1])),
            value: u32::from_le_bytes([v0, v1, v2, v3]) as usize,
            condition: flags & Self::CONDITIONAL != 0,
            expiry: flags & Self::EXPIRING != 0,
        }
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

    const EXPIRING: Form = Form { kind: ValueKind(9), expires_ms: 1 << 60 };

    #[test]
    fn comes_back_as_it_went() {
        let mut bytes = Vec::new();
        let hash = KeyHash::of(b"key");
        EntryObject::encode(&mut bytes, hash, b"key", Form::PLAIN, b"value", None);
        bytes.resize(64, 0xdd);
        assert_eq!(EntryObject::len_in(&bytes), Some(40));
        let parts = EntryObject::decode(&bytes).unwrap();
        assert_eq!((&bytes[parts.key], &bytes[parts.value]), (&b"key"[..], &b"value"[..]));
        assert_eq!(parts.hash, hash);
    }

    #[test]
    fn a_condition_comes_back_as_it_went() {
        let mut bytes = Vec::new();
        let condition = Condition { word: SlotWord::from_raw(1 << 50), stamp: 77 };
        EntryObject::encode(
            &mut bytes,
            KeyHash::of(b"k"),
            b"k",
            EXPIRING,
            b"value",
            Some(condition),
        );
        assert_eq!((EntryObject::len_in(&bytes), bytes.len()), (Some(64), 64));
        EntryObject::set_token(&mut bytes, 0x1234_5678_9abc_def0, None);
        assert_eq!(
            (EntryObject::owner_in(&bytes), EntryObject::stamp_in(&bytes) >> 32),
            (0x1234_5678_9abc_def0, 0x9abc_def0)
        );
        assert_eq!(EntryObject::lot_in(&bytes), 0x9abc_def0);
        bytes.resize(72, 0xdd);
        let parts = EntryObject::decode(&bytes).unwrap();
        assert_eq!(parts.form, EXPIRING);
        assert_eq!(EntryObject::condition_in(&bytes, &parts), Some(condition));
        assert_eq!((&bytes[parts.key], &bytes[parts.value]), (&b"k"[..], &b"value"[..]));
        assert_eq!(EntryObject::decode(&bytes[..63]), None);
    }

    #[test]
    fn any_flipped_byte_is_noticed() {
        let mut bytes = Vec::new();
        EntryObject::encode(&mut bytes, KeyHash::of(b"key"), b"key", Form::PLAIN, b"value", None);
        for at in (8..12).chain(16..bytes.len()) {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            assert_eq!(EntryObject::decode(&other), None, "byte {at}");
        }
        assert_eq!(EntryObject::decode(&bytes[..39]), None);
        assert_eq!(EntryObject::decode(&[0xdd; 64]), None);
        assert_eq!(EntryObject::decode(&[0; 64]), None);
        assert_eq!(EntryObject::expiry_at(&[0; EntryObject::HEADER]), None);
    }

    #[test]
    fn lengths_are_limited() {
        assert_eq!(EntryObject::bytes_for(b"", Form::PLAIN, b""), Some(32));
        assert_eq!(EntryObject::bytes_for(&[0; 65535], Form::PLAIN, b""), Some(65567));
        assert_eq!(EntryObject::bytes_for(&[0; 65536], Form::PLAIN, b""), None);
    }
}
