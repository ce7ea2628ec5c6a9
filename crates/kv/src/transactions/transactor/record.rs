//! The record of a transaction: its state and its keys.
//!
//! ```text
//! key     0 0xff | 1 't' | 2 owner u64 | 10 slot u16
//! value   0 state u8 | 1 zero | 4 keys u32 | 8 number u64 | 16 for each key: length u16, bytes
//! ```

use crate::locks::id::TransactionId;

/// Keys that begin with this byte are those of records.
pub(super) const RESERVED: u8 = 0xff;

/// The state of a transaction. If its owner is killed, the first writer that needs one of its keys
/// aborts a *Pending* one and resolves the lock; recovery deletes the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransactorState {
    /// Undecided: its keys have their old values. Left for *Committed* by the owner, or for
    /// *Aborted* by any client.
    Pending,
    /// The keys have their new values. Left when the owner begins its next transaction.
    Committed,
    /// The keys keep their old values. Left when the owner begins its next transaction.
    Aborted,
}

impl TransactorState {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Pending => 1,
            Self::Committed => 2,
            Self::Aborted => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Pending),
            2 => Some(Self::Committed),
            3 => Some(Self::Aborted),
            _ => None,
        }
    }
}

const HEADER: usize = 16;

/// The bytes of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TransactorRecord {
    pub(super) bytes: Vec<u8>,
}

impl TransactorRecord {
    /// The key of the record of a transaction.
    pub(super) fn key(owner: u64, slot: u16) -> [u8; 12] {
        let [a, b, c, d, e, f, g, h] = owner.to_le_bytes();
        let [s, t] = slot.to_le_bytes();
        [RESERVED, b't', a, b, c, d, e, f, g, h, s, t]
    }

    /// Makes this the record of a new pending transaction.
    pub(super) fn begin<'a>(&mut self, number: u64, keys: impl Iterator<Item = &'a [u8]>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[TransactorState::Pending.to_byte(), 0, 0, 0, 0, 0, 0, 0]);
        self.bytes.extend_from_slice(&number.to_le_bytes());
        let mut count = 0_u32;
        for key in keys {
            // The table accepts no longer keys.
            let len = u16::try_from(key.len()).unwrap_or_default();
            self.bytes.extend_from_slice(&len.to_le_bytes());
            self.bytes.extend_from_slice(&key[..usize::from(len)]);
            count += 1;
        }
        self.bytes[4..8].copy_from_slice(&count.to_le_bytes());
    }

    /// The same record in another state.
    pub(super) fn in_state(&self, state: TransactorState) -> Self {
        let mut other = self.clone();
        if let Some(first) = other.bytes.first_mut() {
            *first = state.to_byte();
        }
        other
    }

    /// State and number; `None` if the bytes are no record.
    pub(super) fn head(&self) -> Option<(TransactorState, u64)> {
        let header = self.bytes.first_chunk::<HEADER>()?;
        let [state, _, _, _, _, _, _, _, number @ ..] = *header;
        Some((TransactorState::from_byte(state)?, u64::from_le_bytes(number)))
    }

    /// The state of the transaction `id`; `None` if the record belongs to another transaction.
    pub(super) fn state_of(&self, id: TransactionId) -> Option<TransactorState> {
        self.head().filter(|(_, number)| *number == id.number).map(|(state, _)| state)
    }

    /// The keys, up to the first undecodable one.
    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut rest = self.bytes.get(HEADER..).unwrap_or_default();
        while let Some((len, after)) = rest.split_first_chunk::<2>() {
            let Some((key, next)) = after.split_at_checked(u16::from_le_bytes(*len).into()) else {
                break;
            };
            keys.push(key.to_vec());
            rest = next;
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went() {
        let mut record = TransactorRecord::default();
        record.begin(9, [&b"first"[..], b"second"].into_iter());
        assert_eq!(record.head(), Some((TransactorState::Pending, 9)));
        assert_eq!(record.keys(), [b"first".to_vec(), b"second".to_vec()]);
        let committed = record.in_state(TransactorState::Committed);
        assert_eq!(committed.head(), Some((TransactorState::Committed, 9)));
        let id = |number| TransactionId { owner: 1, slot: 0, number };
        assert_eq!(
            (committed.state_of(id(9)), committed.state_of(id(8))),
            (Some(TransactorState::Committed), None)
        );
    }

    #[test]
    fn damaged_bytes_are_no_record_and_give_no_keys_behind_the_damage() {
        assert_eq!(TransactorRecord { bytes: vec![9; 16] }.head(), None);
        assert_eq!(TransactorRecord { bytes: vec![1; 15] }.head(), None);
        let mut record = TransactorRecord::default();
        record.begin(1, [&b"first"[..], b"second"].into_iter());
        record.bytes.truncate(25);
        assert_eq!(record.keys(), [b"first".to_vec()]);
    }
}
