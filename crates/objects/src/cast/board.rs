//! Boards: tables of the pool in which programs of different racks exchange records. Each rack has
//! one, whose table its own programs create, so that they look for news in their own memory.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bincode::{Decode, Encode};
use rackpool_client::{Pool, RackId};
use rackpool_kv::{Handle, Table, TableOptions, now_ms};
use rackpool_wire::CodecError;

use super::records::{AgentRecord, Alive, CastNumber, Inbox, Invitation};
use crate::error::StoreError;

/// The root of the pool that names the table of agents. That of a rack's board has the rack's
/// number after it.
const ROOT: &str = ".casts";
/// An agent whose record is older than this, in milliseconds, has ended. It writes a record each
/// second; the rest is for clocks of hosts that differ, and for busy hosts.
const AGENT_AGE_MS: u64 = 15_000;
/// The records of a cast without a sign of life for this time, in milliseconds, are removed.
const CAST_AGE_MS: u64 = 60_000;

/// The key of a record, and the rack whose board has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// In the table of agents.
    Agent(RackId),
    Inbox(RackId),
    Cast {
        cast: CastNumber,
        root: RackId,
    },
    Place(CastNumber, RackId),
    Message {
        cast: CastNumber,
        from: RackId,
        to: RackId,
    },
    Outcome {
        cast: CastNumber,
        of: RackId,
        root: RackId,
    },
    Alive(CastNumber, RackId),
}

impl Key {
    /// The rack whose board has the record; `None` for the table of agents.
    const fn board(self) -> Option<RackId> {
        match self {
            Self::Agent(_) => None,
            Self::Inbox(rack)
            | Self::Cast { root: rack, .. }
            | Self::Place(_, rack)
            | Self::Message { to: rack, .. }
            | Self::Outcome { root: rack, .. }
            | Self::Alive(_, rack) => Some(rack),
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let (kind, cast, rack) = match self {
            Self::Agent(rack) => (b'a', None, Some(rack)),
            Self::Inbox(_) => (b'i', None, None),
            Self::Cast { cast, .. } => (b'd', Some(cast), None),
            Self::Place(cast, _) => (b'p', Some(cast), None),
            Self::Message { cast, from, .. } => (b'm', Some(cast), Some(from)),
            Self::Outcome { cast, of, .. } => (b'o', Some(cast), Some(of)),
            Self::Alive(cast, _) => (b't', Some(cast), None),
        };
        let mut bytes = vec![kind];
        bytes.extend(cast.into_iter().flat_map(|cast| cast.0.to_le_bytes()));
        bytes.extend(rack.into_iter().flat_map(|rack| rack.0.to_le_bytes()));
        bytes
    }

    /// The cast that a key belongs to.
    fn cast_in(key: &[u8]) -> Option<CastNumber> {
        match key {
            [b'd' | b'p' | b'm' | b'o' | b't', rest @ ..] => {
                rest.first_chunk().map(|number| CastNumber(u64::from_le_bytes(*number)))
            }
            _ => None,
        }
    }

    /// The rack of an agent's key.
    fn agent_in(key: &[u8]) -> Option<RackId> {
        match key {
            [b'a', low, high] => Some(RackId(u16::from_le_bytes([*low, *high]))),
            _ => None,
        }
    }
}

/// A record, or why its bytes are none.
type Found<T> = Option<Result<T, CodecError>>;

/// The tables that were opened: the boards of racks, and that of agents.
type Tables = BTreeMap<Option<RackId>, Table<Arc<Pool>>>;

/// The boards of a pool, opened when they are first used. Each thread has its own handles.
#[derive(Debug)]
pub(super) struct Boards {
    pool: Arc<Pool>,
    tables: Arc<Mutex<Tables>>,
    handles: BTreeMap<Option<RackId>, Handle<Arc<Pool>>>,
    value: Vec<u8>,
}

impl Clone for Boards {
    /// The same boards for another thread.
    fn clone(&self) -> Self {
        let (pool, tables) = (Arc::clone(&self.pool), Arc::clone(&self.tables));
        Self { pool, tables, handles: BTreeMap::new(), value: Vec::new() }
    }
}

impl Boards {
    /// Opens the board of the own rack, which is created if there is none.
    pub(super) fn open(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let mut boards = Self {
            pool: Arc::clone(pool),
            tables: Arc::default(),
            handles: BTreeMap::new(),
            value: Vec::new(),
        };
        boards.open_all([pool.rack()])?;
        Ok(boards)
    }

    /// Opens the boards of these racks, so that no later step has to ask for them.
    pub(super) fn open_all(
        &mut self,
        racks: impl IntoIterator<Item = RackId>,
    ) -> Result<(), StoreError> {
        racks.into_iter().try_for_each(|rack| self.board(Some(rack)).map(drop))
    }

    /// The board of a rack, or the table of agents.
    fn board(
        &mut self,
        rack: Option<RackId>,
    ) -> Result<(&mut Handle<Arc<Pool>>, &mut Vec<u8>), StoreError> {
        let handle = match self.handles.entry(rack) {
            Entry::Occupied(handle) => handle.into_mut(),
            Entry::Vacant(vacant) => {
                let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
                let table = match tables.entry(rack) {
                    Entry::Occupied(table) => table.into_mut(),
                    Entry::Vacant(vacant) => vacant.insert(open(&self.pool, rack)?),
                };
                vacant.insert(table.handle())
            }
        };
        Ok((handle, &mut self.value))
    }

    pub(super) fn read<T: Decode<()>>(&mut self, key: Key) -> Result<Found<T>, StoreError> {
        let (board, value) = self.board(key.board())?;
        let is_there = board.get(&key.to_bytes(), value)?;
        Ok(is_there.then(|| rackpool_wire::decode(value)))
    }

    pub(super) fn write<T: Encode>(&mut self, key: Key, record: &T) -> Result<(), StoreError> {
        let (board, _) = self.board(key.board())?;
        board.put(&key.to_bytes(), &rackpool_wire::encode(record)?)?;
        Ok(())
    }

    /// Reads a record and removes it, unless another one takes its place meanwhile. As long as
    /// there is none, a look takes only the memory of the table.
    pub(super) fn take<T: Decode<()>>(&mut self, key: Key) -> Result<Found<T>, StoreError> {
        let (board, value) = self.board(key.board())?;
        let bytes = key.to_bytes();
        if !board.get(&bytes, value)? {
            return Ok(None);
        }
        board.compare_and_delete(&bytes, value)?;
        Ok(Some(rackpool_wire::decode(value)))
    }

    pub(super) fn remove(&mut self, key: Key) -> Result<(), StoreError> {
        let (board, _) = self.board(key.board())?;
        board.delete(&key.to_bytes())?;
        Ok(())
    }

    /// Asks the agent of a rack to join a cast of this one.
    pub(super) fn invite(&mut self, rack: RackId, cast: CastNumber) -> Result<(), StoreError> {
        let (key, root) = (Key::Inbox(rack), self.pool.rack());
        let (board, value) = self.board(key.board())?;
        let key = key.to_bytes();
        loop {
            let is_there = board.get(&key, value)?;
            let found = is_there.then(|| value.clone());
            let decoded = found.as_deref().map(rackpool_wire::decode::<Inbox>);
            let mut inbox = decoded.and_then(Result::ok).unwrap_or_default();
            inbox.invitations.push(Invitation { cast, root });
            let new = rackpool_wire::encode(&inbox)?;
            if board.compare_and_put(&key, found.as_deref(), &new)? {
                return Ok(());
            }
        }
    }

    /// Takes up to `most` of the invitations to the own rack.
    pub(super) fn take_invitations(&mut self, most: usize) -> Result<Vec<Invitation>, StoreError> {
        let key = Key::Inbox(self.pool.rack());
        let (board, value) = self.board(key.board())?;
        let key = key.to_bytes();
        if most == 0 || !board.get(&key, value)? {
            return Ok(Vec::new());
        }
        let mut taken = rackpool_wire::decode::<Inbox>(value).unwrap_or_default().invitations;
        let rest = taken.split_off(taken.len().min(most));
        let is_taken = if rest.is_empty() {
            board.compare_and_delete(&key, value)?
        } else {
            let rest = rackpool_wire::encode(&Inbox { invitations: rest })?;
            board.compare_and_put(&key, Some(value), &rest)?
        };
        Ok(if is_taken { taken } else { Vec::new() })
    }

    /// The racks that agents serve.
    pub(super) fn agents(&mut self) -> Result<BTreeSet<RackId>, StoreError> {
        let (mut racks, now) = (BTreeSet::new(), now_ms());
        self.board(None)?.0.for_each(|key, value| {
            let record = rackpool_wire::decode::<AgentRecord>(value);
            let is_alive = record.is_ok_and(|record| is_young(record, now));
            racks.extend(Key::agent_in(key).filter(|_| is_alive));
        })?;
        Ok(racks)
    }

    /// Whether an agent serves a rack; the error if it is of another release.
    pub(super) fn has_agent(
        &mut self,
        rack: RackId,
    ) -> Result<Result<bool, CodecError>, StoreError> {
        let found = self.read::<AgentRecord>(Key::Agent(rack))?;
        let now = now_ms();
        Ok(found.transpose().map(|found| found.is_some_and(|record| is_young(record, now))))
    }

    /// Removes the records of casts that show no sign of life any more from the own rack's board.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        let own = self.pool.rack();
        let (board, _) = self.board(Some(own))?;
        let (mut keys, mut alive) = (Vec::new(), BTreeSet::new());
        board.for_each(|key, _| {
            keys.extend(Key::cast_in(key).map(|cast| (cast, key.to_vec())));
        })?;
        // Read afterwards: a sign of life is the first record of a cast that the own rack writes.
        // Messages that came before it are repeated.
        let now = now_ms();
        board.for_each(|key, value| {
            let at_ms = rackpool_wire::decode(value).map_or(0, |Alive { at_ms }| at_ms);
            if key.starts_with(b"t") && now.saturating_sub(at_ms) < CAST_AGE_MS {
                alive.extend(Key::cast_in(key));
            }
        })?;
        for (_, key) in keys.iter().filter(|(cast, _)| !alive.contains(cast)) {
            board.delete(key)?;
        }
        Ok(())
    }
}

/// Opens the board of a rack, or the table of agents; creates it if there is none.
fn open(pool: &Arc<Pool>, rack: Option<RackId>) -> Result<Table<Arc<Pool>>, StoreError> {
    let root = rack.map_or_else(|| ROOT.into(), |rack| format!("{ROOT}-{}", rack.0));
    let options = TableOptions::for_pages(pool.page_bytes());
    Ok(Table::open_or_create(Arc::clone(pool), &root, &options)?)
}

fn is_young(record: AgentRecord, now: u64) -> bool {
    now.saturating_sub(record.seen_ms) < AGENT_AGE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_board_differ_and_name_their_cast() {
        let (cast, own, other) = (CastNumber(0x0102), RackId(7), RackId(8));
        let of_cast = [
            Key::Cast { cast, root: own },
            Key::Place(cast, own),
            Key::Message { cast, from: own, to: own },
            Key::Message { cast, from: other, to: own },
            Key::Outcome { cast, of: own, root: own },
            Key::Outcome { cast, of: other, root: own },
            Key::Alive(cast, own),
        ];
        let keys: Vec<_> =
            of_cast.into_iter().chain([Key::Inbox(own)]).map(Key::to_bytes).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert!(of_cast.iter().all(|key| key.board() == Some(own)));
        assert!(of_cast.iter().all(|key| Key::cast_in(&key.to_bytes()) == Some(cast)));
        let others = [Key::Agent(own), Key::Inbox(own)].map(Key::to_bytes);
        assert!(others.iter().all(|key| Key::cast_in(key).is_none()));
        assert_eq!(others.map(|key| Key::agent_in(&key)), [Some(own), None]);
    }
}
