//! The value of an entry of kind [`ValueKind::LOCK`](crate::ValueKind), the lock of a transaction
//! on a key.
//!
//! ```text
//! lock    0 sides u8 | 1 zero | 2 slot u16 | 4 zero | 8 owner u64 | 16 number u64
//!        24 for each side: 0 kind u8 | 1 zero | 4 lot u32 | 8 expiry u64
//!                          16 length u32 | 20 zero | 24 value
//! sides   1: there is an old entry, 2: there is a new one, 4: the new one is the old one
//! ```

use std::ops::Range;

use crate::entry::{Form, ValueKind};
use crate::locks::id::TransactionId;

/// One of the two entries of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockSide<V> {
    pub(crate) form: Form,
    /// The lot of its object, which distinguishes versions.
    pub(crate) lot: u32,
    /// The value, or its position in the lock's bytes.
    pub(crate) value: V,
}

/// A decoded lock. Values are positions in its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryLock {
    pub(crate) id: TransactionId,
    old: Option<LockSide<Range<usize>>>,
    new: Option<LockSide<Range<usize>>>,
}

const HEADER: usize = 24;
const SIDE_HEADER: usize = 24;
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const IS_SAME: u8 = 4;

impl EntryLock {
    /// Writes a lock into `bytes`, replacing the buffer's content. `None` if a value is too long.
    pub(crate) fn encode(
        bytes: &mut Vec<u8>,
        id: TransactionId,
        old: Option<&LockSide<&[u8]>>,
        new: Option<&LockSide<&[u8]>>,
    ) -> Option<()> {
        let flag = |there: bool, flag| if there { flag } else { 0 };
        let is_same = old == new;
        let new = new.filter(|_| !is_same);
        let sides = flag(old.is_some(), HAS_OLD) | flag(new.is_some(), HAS_NEW);
        bytes.clear();
        bytes.extend_from_slice(&[sides | flag(is_same, IS_SAME), 0]);
        bytes.extend_from_slice(&id.slot.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&id.owner.to_le_bytes());
        bytes.extend_from_slice(&id.number.to_le_bytes());
        for side in [old, new].into_iter().flatten() {
            bytes.extend_from_slice(&[side.form.kind.0, 0, 0, 0]);
            bytes.extend_from_slice(&side.lot.to_le_bytes());
            bytes.extend_from_slice(&side.form.expires_ms.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(side.value.len()).ok()?.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(side.value);
        }
        Some(())
    }

    /// Decodes a lock; `None` if the bytes are not one.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let [sides, _, s0, s1, _, _, _, _, words @ ..] = *bytes.first_chunk::<HEADER>()?;
        let [o0, o1, o2, o3, o4, o5, o6, o7, number @ ..] = words;
        let mut at = HEADER;
        let mut side = |flag: u8| -> Option<Option<LockSide<Range<usize>>>> {
            if sides & flag == 0 {
                return Some(None);
            }
            let header = bytes.get(at..)?.first_chunk::<SIDE_HEADER>()?;
            let [kind, _, _, _, l0, l1, l2, l3, rest @ ..] = *header;
            let [e0, e1, e2, e3, e4, e5, e6, e7, n0, n1, n2, n3, ..] = rest;
            let kind = ValueKind(kind);
            let begin = at + SIDE_HEADER;
            let end = begin.checked_add(u32::from_le_bytes([n0, n1, n2, n3]) as usize)?;
            if end > bytes.len() || kind.is_reserved() {
                return None;
            }
            at = end;
            let expires_ms = u64::from_le_bytes([e0, e1, e2, e3, e4, e5, e6, e7]);
            let lot = u32::from_le_bytes([l0, l1, l2, l3]);
            Some(Some(LockSide { form: Form { kind, expires_ms }, lot, value: begin..end }))
        };
        let (old, new) = (side(HAS_OLD)?, side(HAS_NEW)?);
        let new = if sides & IS_SAME == 0 { new } else { old.clone() };
        let owner = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let slot = u16::from_le_bytes([s0, s1]);
        let id = TransactionId { owner, slot, number: u64::from_le_bytes(number) };
        Some(Self { id, old, new })
    }

    /// The entry that the lock stands for: the new one if its transaction committed, else the old
    /// one.
    pub(crate) fn side(self, committed: bool) -> Option<LockSide<Range<usize>>> {
        if committed { self.new } else { self.old }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransactionId = TransactionId { owner: 1 << 60, slot: 300, number: 7 };

    #[test]
    fn comes_back_as_it_went() {
        let form = Form { kind: ValueKind(9), expires_ms: 1 << 50 };
        let old = LockSide { form, lot: 77, value: &b"old"[..] };
        let new = LockSide { form: Form::PLAIN, lot: 78, value: &b""[..] };
        for (old, new) in [
            (None, None),
            (Some(&old), None),
            (None, Some(&new)),
            (Some(&old), Some(&new)),
            (Some(&new), Some(&old)),
            (Some(&old), Some(&old)),
        ] {
            let mut bytes = Vec::new();
            EntryLock::encode(&mut bytes, ID, old, new).unwrap();
            let lock = EntryLock::decode(&bytes).unwrap();
            assert_eq!(lock.id, ID);
            for (committed, side) in [(false, old), (true, new)] {
                let found = lock.clone().side(committed);
                let found = found.map(|side| LockSide {
                    form: side.form,
                    lot: side.lot,
                    value: &bytes[side.value],
                });
                assert_eq!(found.as_ref(), side);
            }
            assert_eq!(EntryLock::decode(&bytes[..bytes.len().min(23)]), None);
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(EntryLock::decode(b""), None);
        // A missing side, one that is longer than the bytes, and one of a reserved kind.
        assert_eq!(EntryLock::decode(&[1; 24]), None);
        assert_eq!(EntryLock::decode(&[1; 60]), None);
        let mut bytes = Vec::new();
        let form = Form { kind: ValueKind::LOCK, expires_ms: 0 };
        EntryLock::encode(&mut bytes, ID, Some(&LockSide { form, lot: 0, value: b"v" }), None)
            .unwrap();
        assert_eq!(EntryLock::decode(&bytes), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_bytes_are_a_lock_or_refused(
            sides in 0..8_u8,
            rest in proptest::collection::vec(proptest::num::u8::ANY, 0..120),
        ) {
            let bytes = [&[sides][..], &rest].concat();
            if let Some(lock) = EntryLock::decode(&bytes) {
                for committed in [false, true] {
                    let side = lock.clone().side(committed);
                    proptest::prop_assert!(side.is_none_or(|side| side.value.end <= bytes.len()));
                }
            }
            let record = crate::locks::commit_record::CommitRecord { bytes };
            let _ = (record.head(), record.keys());
        }
    }
}
