//! The record of a transaction: its state, and the keys of its write set.
//!
//! ```text
//! key     0 0xff 't' 'x' 0 | 4 owner u64 | 12 slot u16
//! value   0 state u8 | 1 flags u8 | 2 zero | 8 number u64
//!        16 for each key: table u8, length u16, bytes
//! flags   1: the keys are not listed, 2: others wait longer for it
//! ```

use crate::locks::id::{TableKey, TransactionId};

/// The state of a transaction. After a crash of the owner, any other client that needs a key aborts
/// a *Pending* or *Checking* transaction after the lock wait; recovery deletes the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitState {
    /// The owner is locking its write set; the keys have their old values. Left for *Checking*, for
    /// *Committed* (no read set), or for *Aborted* by any client.
    Pending,
    /// The owner has locked its write set and validates its read set. If the transaction commits,
    /// it takes effect at the beginning of this state. Left for *Committed*, or for *Aborted* by
    /// any client.
    Checking,
    /// The keys have their new values. Left when the owner begins its next transaction, or recovery
    /// deletes the record.
    Committed,
    /// The keys keep their old values. Left as *Committed* is.
    Aborted,
}

impl CommitState {
    const ALL: [Self; 4] = [Self::Pending, Self::Checking, Self::Committed, Self::Aborted];

    const fn to_byte(self) -> u8 {
        match self {
            Self::Pending => 1,
            Self::Checking => 2,
            Self::Committed => 3,
            Self::Aborted => 4,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_byte() == byte)
    }

    /// Whether the state is the last one of its transaction.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Committed | Self::Aborted)
    }
}

const PREFIX: [u8; 4] = [0xff, b't', b'x', 0];
const KEY_BYTES: usize = 14;
const HEADER: usize = 16;
const UNLISTED: u8 = 1;
const INSISTENT: u8 = 2;

/// The bytes of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    pub(crate) bytes: Vec<u8>,
}

impl CommitRecord {
    /// The key of the record of a transaction.
    pub(crate) fn key(id: TransactionId) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        key[..4].copy_from_slice(&PREFIX);
        key[4..12].copy_from_slice(&id.owner.to_le_bytes());
        key[12..].copy_from_slice(&id.slot.to_le_bytes());
        key
    }

    /// The id of the transaction with this number whose record has this key; `None` if the key is
    /// not that of a record.
    pub(crate) fn id_of(key: &[u8], number: u64) -> Option<TransactionId> {
        let [p0, p1, p2, p3, o0, o1, o2, o3, o4, o5, o6, o7, s0, s1] = *key.as_array()?;
        let owner = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let id = TransactionId { owner, slot: u16::from_le_bytes([s0, s1]), number };
        ([p0, p1, p2, p3] == PREFIX).then_some(id)
    }

    /// The record of a pending transaction. If the keys need more than `max` bytes, they are not
    /// listed.
    pub(crate) fn new<'a>(
        number: u64,
        keys: impl Iterator<Item = (usize, &'a [u8])>,
        max: usize,
    ) -> Self {
        let mut bytes = vec![CommitState::Pending.to_byte(), 0, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&number.to_le_bytes());
        for (table, key) in keys {
            let (Ok(table), Ok(len)) = (u8::try_from(table), u16::try_from(key.len())) else {
                continue;
            };
            if bytes.len() + key.len() + 3 > max {
                bytes.truncate(HEADER);
                bytes[1] = UNLISTED;
                break;
            }
            bytes.push(table);
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(key);
        }
        Self { bytes }
    }

    /// The record of a pending transaction that locks what it reads. Others wait longer for it.
    pub(crate) fn insistent(number: u64) -> Self {
        let mut record = Self::new(number, std::iter::empty(), HEADER);
        record.bytes[1] = UNLISTED | INSISTENT;
        record
    }

    /// Whether others wait longer for the transaction.
    pub(crate) fn is_insistent(&self) -> bool {
        self.bytes.get(1).is_some_and(|flags| flags & INSISTENT != 0)
    }

    /// The same record in another state.
    pub(crate) fn in_state(&self, state: CommitState) -> Self {
        let mut other = self.clone();
        if let Some(first) = other.bytes.first_mut() {
            *first = state.to_byte();
        }
        other
    }

    /// State and number; `None` if the bytes are no record.
    pub(crate) fn head(&self) -> Option<(CommitState, u64)> {
        let [state, _, _, _, _, _, _, _, number @ ..] = *self.bytes.first_chunk::<HEADER>()?;
        Some((CommitState::from_byte(state)?, u64::from_le_bytes(number)))
    }

    /// The state of the transaction `id`; `None` if the record belongs to another transaction.
    pub(crate) fn state_of(&self, id: TransactionId) -> Option<CommitState> {
        self.head().filter(|(_, number)| *number == id.number).map(|(state, _)| state)
    }

    /// The keys, up to the first undecodable one; `None` if they
    /// are not listed.
    pub(crate) fn keys(&self) -> Option<Vec<TableKey>> {
        if self.bytes.get(1).is_none_or(|flags| flags & UNLISTED != 0) {
            return None;
        }
        let mut keys = Vec::new();
        let mut rest = self.bytes.get(HEADER..).unwrap_or_default();
        while let Some(([table, l0, l1], after)) = rest.split_first_chunk::<3>() {
            let len = u16::from_le_bytes([*l0, *l1]);
            let Some((key, next)) = after.split_at_checked(len.into()) else { break };
            keys.push(TableKey { table: usize::from(*table), key: key.to_vec() });
            rest = next;
        }
        Some(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went() {
        let keys = [(0, &b"first"[..]), (1, b"second")];
        let record = CommitRecord::new(9, keys.into_iter(), 100);
        assert_eq!(record.head(), Some((CommitState::Pending, 9)));
        let listed = [(0, b"first".to_vec()), (1, b"second".to_vec())];
        let listed = listed.map(|(table, key)| TableKey { table, key });
        assert_eq!(record.keys().as_deref(), Some(&listed[..]));
        let id = |number| TransactionId { owner: 1, slot: 5, number };
        for state in CommitState::ALL {
            let now = record.in_state(state);
            assert_eq!((now.head(), now.keys()), (Some((state, 9)), record.keys()));
            assert_eq!((now.state_of(id(9)), now.state_of(id(8))), (Some(state), None));
        }
        assert_eq!(CommitRecord::id_of(&CommitRecord::key(id(9)), 9), Some(id(9)));
        assert_eq!(CommitRecord::id_of(b"another key...", 9), None);
    }

    #[test]
    fn too_many_keys_are_not_listed() {
        let record = CommitRecord::new(9, [(0, &b"first"[..]), (1, b"second")].into_iter(), 25);
        assert_eq!((record.head(), record.keys()), (Some((CommitState::Pending, 9)), None));
        assert!(!record.is_insistent() && CommitRecord::insistent(9).is_insistent());
        let record = CommitRecord::insistent(9).in_state(CommitState::Committed);
        assert_eq!((record.head(), record.keys()), (Some((CommitState::Committed, 9)), None));
    }

    #[test]
    fn damaged_bytes_are_no_record_and_give_no_keys_behind_the_damage() {
        assert_eq!(CommitRecord { bytes: vec![9; 16] }.head(), None);
        assert_eq!(CommitRecord { bytes: vec![1; 15] }.head(), None);
        assert_eq!(CommitRecord { bytes: Vec::new() }.keys(), None);
        let mut record =
            CommitRecord::new(1, [(0, &b"first"[..]), (0, b"second")].into_iter(), 100);
        record.bytes.truncate(27);
        assert_eq!(record.keys(), Some(vec![TableKey { table: 0, key: b"first".to_vec() }]));
    }
}
