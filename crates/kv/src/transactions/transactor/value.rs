//! The stored bytes of a key in a table with transactions: a plain value or a lock.
//!
//! ```text
//! plain   0 tag 0 | 1 value
//! lock    0 tag 1 | 1 flags u8 | 2 slot u16 | 4 length of old u32 | 8 owner u64 | 16 number u64
//!        24 old, then new                          flags: 1 there is an old value, 2 a new one
//! ```
use crate::locks::id::TransactionId;

/// The lock of a transaction on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyLock<'a> {
    pub(super) id: TransactionId,
    /// The value unless the transaction commits; `None`: the key is absent.
    pub(super) old: Option<&'a [u8]>,
    /// The value once the transaction has committed; `None`: the key is absent.
    pub(super) new: Option<&'a [u8]>,
}

/// The decoded bytes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoredValue<'a> {
    Plain(&'a [u8]),
    Locked(KeyLock<'a>),
}

const PLAIN: u8 = 0;
const LOCKED: u8 = 1;
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const LOCK_HEADER: usize = 24;

/// Writes a plain value into `bytes`, replacing the buffer's content.
pub(super) fn encode_plain(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.clear();
    bytes.push(PLAIN);
    bytes.extend_from_slice(value);
}

impl KeyLock<'_> {
    /// Writes the lock into `bytes`, replacing the buffer's content; `None` if the old value is too
    /// long.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) -> Option<()> {
        let old = self.old.unwrap_or_default();
        let flag = |there: bool, flag| if there { flag } else { 0 };
        bytes.clear();
        bytes.push(LOCKED);
        bytes.push(flag(self.old.is_some(), HAS_OLD) | flag(self.new.is_some(), HAS_NEW));
        bytes.extend_from_slice(&self.id.slot.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(old.len()).ok()?.to_le_bytes());
        bytes.extend_from_slice(&self.id.owner.to_le_bytes());
        bytes.extend_from_slice(&self.id.number.to_le_bytes());
        bytes.extend_from_slice(old);
        bytes.extend_from_slice(self.new.unwrap_or_default());
        Some(())
    }
}

impl<'a> StoredValue<'a> {
    /// Decodes the stored bytes of a key; `None` if no transactor wrote them.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        match *bytes.first()? {
            PLAIN => Some(Self::Plain(&bytes[1..])),
            LOCKED => {
                let (header, values) = bytes.split_first_chunk::<LOCK_HEADER>()?;
                let [_, flags, s0, s1, l0, l1, l2, l3, words @ ..] = *header;
                let [o0, o1, o2, o3, o4, o5, o6, o7, number @ ..] = words;
                let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
                let (old, new) = values.split_at_checked(len)?;
                let has = |flag, value: &'a [u8]| (flags & flag != 0).then_some(value);
                Some(Self::Locked(KeyLock {
                    id: TransactionId {
                        owner: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
                        slot: u16::from_le_bytes([s0, s1]),
                        number: u64::from_le_bytes(number),
                    },
                    old: has(HAS_OLD, old),
                    new: has(HAS_NEW, new),
                }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went() {
        let mut bytes = Vec::new();
        encode_plain(&mut bytes, b"value");
        assert_eq!(StoredValue::decode(&bytes), Some(StoredValue::Plain(b"value")));
        let id = TransactionId { owner: 1 << 60, slot: 300, number: 7 };
        for (old, new) in [
            (None, Some(&b"new"[..])),
            (Some(&b"old"[..]), None),
            (Some(b""), Some(b"")),
            (Some(b"a"), Some(b"bc")),
        ] {
            let lock = KeyLock { id, old, new };
            lock.encode(&mut bytes).unwrap();
            assert_eq!(StoredValue::decode(&bytes), Some(StoredValue::Locked(lock)));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(StoredValue::decode(b""), None);
        assert_eq!(StoredValue::decode(&[2; 40]), None);
        assert_eq!(StoredValue::decode(&[1; 23]), None);
        // The old value's length exceeds the bytes.
        assert_eq!(StoredValue::decode(&[1; 40]), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_bytes_are_a_value_or_refused(
            first in 0..3_u8,
            rest in proptest::collection::vec(proptest::num::u8::ANY, 0..100),
        ) {
            let bytes = [&[first][..], &rest].concat();
            let _ = StoredValue::decode(&bytes);
            let record = super::super::record::TransactorRecord { bytes };
            let _ = (record.head(), record.keys());
        }
    }
}
