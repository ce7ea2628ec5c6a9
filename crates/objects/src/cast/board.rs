//! Boards: tables of the pool in which programs of different racks exchange records. Each rack has
//! one. Its programs create it, so it lies in the memory of the rack, and a look that finds no
//! record reads no other rack. A record lies in the memory of the rack that wrote it. Neither moves
//! to another rack.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bincode::{Decode, Encode};
use rackpool_client::{AccessError, Pool, RackId};
use rackpool_kv::{Handle, KvError, PoolError, Table, TableOptions, now_ms};
use rackpool_wire::CodecError;

use super::options::CastFailure;
use super::records::{AgentRecord, Alive, CastNumber, Inbox, Request};
use super::unmoved::UnmovedMemory;
use crate::error::StoreError;

/// The root of the pool that names a rack's board begins with this; the rack's number follows.
const ROOT: &str = ".casts-";
/// An agent whose record is older than this, in milliseconds, has ended. It writes a record each
/// second; the rest is for clocks of hosts that differ, and for busy hosts.
const AGENT_AGE_MS: u64 = 15_000;
/// The records of a cast without a heartbeat for this time, in milliseconds, are removed.
const CAST_AGE_MS: u64 = 60_000;

/// The key of a record, and the rack whose board has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Agent(RackId),
    /// The inbox of this number of a rack's agent.
    Inbox(RackId, u64),
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
    /// The rack whose board has the record.
    const fn rack(self) -> RackId {
        match self {
            Self::Agent(rack)
            | Self::Inbox(rack, _)
            | Self::Cast { root: rack, .. }
            | Self::Place(_, rack)
            | Self::Message { to: rack, .. }
            | Self::Outcome { root: rack, .. }
            | Self::Alive(_, rack) => rack,
        }
    }

    fn to_bytes(self) -> Vec<u8> {
        let (kind, number, rack) = match self {
            Self::Agent(_) => (b'a', None, None),
            Self::Inbox(_, number) => (b'i', Some(number), None),
            Self::Cast { cast, .. } => (b'd', Some(cast.0), None),
            Self::Place(cast, _) => (b'p', Some(cast.0), None),
            Self::Message { cast, from, .. } => (b'm', Some(cast.0), Some(from)),
            Self::Outcome { cast, of, .. } => (b'o', Some(cast.0), Some(of)),
            Self::Alive(cast, _) => (b't', Some(cast.0), None),
        };
        let mut bytes = vec![kind];
        bytes.extend(number.into_iter().flat_map(u64::to_le_bytes));
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
}

/// A record, or why its bytes are none.
type Found<T> = Option<Result<T, CodecError>>;

/// The boards of a pool, opened when they are first used. Each thread has its own handles.
#[derive(Debug)]
pub(super) struct Boards {
    pool: Arc<Pool>,
    tables: Arc<Mutex<BTreeMap<RackId, Table<UnmovedMemory>>>>,
    handles: BTreeMap<RackId, Handle<UnmovedMemory>>,
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
    /// Opens the board of the own rack. It is created if there is none, or if its memory was lost.
    pub(super) fn open(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let (name, options) = (root_of(pool.rack()), TableOptions::for_pages(pool.page_bytes()));
        let own = loop {
            match Table::open_or_create(UnmovedMemory(Arc::clone(pool)), &name, &options) {
                Err(KvError::Memory(PoolError::Access(AccessError::PageLost(_)))) => {
                    if let Some(lost) = pool.root(&name)? {
                        pool.set_root(&name, Some(lost), None)?;
                    }
                }
                opened => break opened?,
            }
        };
        Ok(Self {
            pool: Arc::clone(pool),
            tables: Arc::new(Mutex::new(BTreeMap::from([(pool.rack(), own)]))),
            handles: BTreeMap::new(),
            value: Vec::new(),
        })
    }

    /// The boards of other racks, to read from.
    pub(super) fn of_others(pool: &Arc<Pool>) -> Self {
        let (pool, tables) = (Arc::clone(pool), Arc::default());
        Self { pool, tables, handles: BTreeMap::new(), value: Vec::new() }
    }

    /// Opens the board of a rack, so that no later step has to ask the metadata server for it.
    ///
    /// # Errors
    /// [`CastFailure::NoAgent`] if the rack has none.
    pub(super) fn open_of(&mut self, rack: RackId) -> Result<(), StoreError> {
        self.board(rack).map(drop)
    }

    fn board(
        &mut self,
        rack: RackId,
    ) -> Result<(&mut Handle<UnmovedMemory>, &mut Vec<u8>), StoreError> {
        let handle = match self.handles.entry(rack) {
            Entry::Occupied(handle) => handle.into_mut(),
            Entry::Vacant(vacant) => {
                let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
                let table = match tables.entry(rack) {
                    Entry::Occupied(table) => table.into_mut(),
                    Entry::Vacant(vacant) => {
                        let root = self.pool.root(&root_of(rack))?;
                        let addr = root.ok_or(StoreError::Cast(CastFailure::NoAgent))?;
                        vacant.insert(Table::open(UnmovedMemory(Arc::clone(&self.pool)), addr)?)
                    }
                };
                vacant.insert(table.handle())
            }
        };
        Ok((handle, &mut self.value))
    }

    pub(super) fn read<T: Decode<()>>(&mut self, key: Key) -> Result<Found<T>, StoreError> {
        let (board, value) = self.board(key.rack())?;
        let is_there = board.get(&key.to_bytes(), value)?;
        Ok(is_there.then(|| rackpool_wire::decode(value)))
    }

    pub(super) fn write<T: Encode>(&mut self, key: Key, record: &T) -> Result<(), StoreError> {
        let (board, _) = self.board(key.rack())?;
        board.put(&key.to_bytes(), &rackpool_wire::encode(record)?)?;
        Ok(())
    }

    /// Reads a record and empties it, unless another one takes its place meanwhile. It is not
    /// removed: the next one would take another slot, and the table would be made anew when its
    /// slots are used up. That needs the records of all racks, also of one that was killed.
    pub(super) fn take<T: Decode<()>>(&mut self, key: Key) -> Result<Found<T>, StoreError> {
        let (board, value) = self.board(key.rack())?;
        let bytes = key.to_bytes();
        if !board.get(&bytes, value)? || value.is_empty() {
            return Ok(None);
        }
        board.compare_and_put(&bytes, Some(value), &[])?;
        Ok(Some(rackpool_wire::decode(value)))
    }

    pub(super) fn remove(&mut self, key: Key) -> Result<(), StoreError> {
        let (board, _) = self.board(key.rack())?;
        board.delete(&key.to_bytes())?;
        Ok(())
    }

    /// Asks the agent that has this inbox to do something.
    pub(super) fn ask(&mut self, inbox: Key, request: &Request) -> Result<(), StoreError> {
        let (board, value) = self.board(inbox.rack())?;
        let key = inbox.to_bytes();
        loop {
            let is_there = board.get(&key, value)?;
            let found = is_there.then(|| value.clone());
            let decoded = found.as_deref().map(rackpool_wire::decode::<Inbox>);
            let mut inbox = decoded.and_then(Result::ok).unwrap_or_default();
            inbox.requests.push(request.clone());
            let new = rackpool_wire::encode(&inbox)?;
            if board.compare_and_put(&key, found.as_deref(), &new)? {
                return Ok(());
            }
        }
    }

    /// Takes up to `most` of the requests in an inbox of the own rack.
    pub(super) fn take_requests(
        &mut self,
        inbox: Key,
        most: usize,
    ) -> Result<Vec<Request>, StoreError> {
        let (board, value) = self.board(inbox.rack())?;
        let key = inbox.to_bytes();
        if most == 0 || !board.get(&key, value)? {
            return Ok(Vec::new());
        }
        let mut taken = rackpool_wire::decode::<Inbox>(value).unwrap_or_default().requests;
        if taken.is_empty() {
            return Ok(taken);
        }
        // An empty inbox stays, as an emptied record does.
        let rest = Inbox { requests: taken.split_off(taken.len().min(most)) };
        let is_taken = board.compare_and_put(&key, Some(value), &rackpool_wire::encode(&rest)?)?;
        Ok(if is_taken { taken } else { Vec::new() })
    }

    /// The racks that agents serve.
    pub(super) fn agents(&mut self) -> Result<BTreeSet<RackId>, StoreError> {
        let alive = self.pool.rack_status()?.other_racks;
        let mut racks = BTreeSet::new();
        for rack in alive.into_iter().chain([self.pool.rack()]) {
            if self.inbox_of(rack)?.is_ok() {
                racks.insert(rack);
            }
        }
        Ok(racks)
    }

    /// The records of the agents of other racks that have memory for objects of this one.
    pub(super) fn lenders(&mut self) -> Result<Vec<(RackId, AgentRecord)>, StoreError> {
        let (alive, now) = (self.pool.rack_status()?.other_racks, now_ms());
        Ok(alive
            .into_iter()
            .filter_map(|rack| {
                let record = self.read::<AgentRecord>(Key::Agent(rack)).ok()??.ok()?;
                let is_alive = now.saturating_sub(record.seen_ms) < AGENT_AGE_MS;
                (is_alive && record.lends_bytes > 0).then_some((rack, record))
            })
            .collect())
    }

    /// The inbox that the record of an agent names, however old the record is.
    pub(super) fn inbox_left(&mut self, rack: RackId) -> Option<Key> {
        let record = self.read::<AgentRecord>(Key::Agent(rack)).ok()??.ok()?;
        Some(Key::Inbox(rack, record.inbox))
    }

    /// The inbox of the agent that serves a rack, or why the rack can't take part.
    pub(super) fn inbox_of(
        &mut self,
        rack: RackId,
    ) -> Result<Result<Key, CastFailure>, StoreError> {
        Ok(self.agent_of(rack)?.map(|record| Key::Inbox(rack, record.inbox)))
    }

    /// The record of the agent that serves a rack, or why the rack can't take part.
    pub(super) fn agent_of(
        &mut self,
        rack: RackId,
    ) -> Result<Result<AgentRecord, CastFailure>, StoreError> {
        let now = now_ms();
        Ok(match self.read::<AgentRecord>(Key::Agent(rack)) {
            Ok(Some(Ok(record))) if now.saturating_sub(record.seen_ms) < AGENT_AGE_MS => Ok(record),
            Ok(Some(Err(error))) => Err(CastFailure::OtherRelease(error.to_string())),
            Ok(Some(Ok(_)) | None) | Err(StoreError::Cast(CastFailure::NoAgent)) => {
                Err(CastFailure::NoAgent)
            }
            Err(error) if is_of_another_rack(&error) => {
                Err(CastFailure::Refused(error.to_string()))
            }
            Err(error) => return Err(error),
        })
    }

    /// Removes the records of casts without a new heartbeat from the own rack's board.
    /// If a record lies in a rack that is away, some stay until a later sweep.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        match self.sweep_all() {
            Err(error) if is_of_another_rack(&error) => Ok(()),
            swept => swept,
        }
    }

    fn sweep_all(&mut self) -> Result<(), StoreError> {
        let (board, _) = self.board(self.pool.rack())?;
        let (mut keys, mut alive) = (Vec::new(), BTreeSet::new());
        board.for_each(|key, _| {
            keys.extend(Key::cast_in(key).map(|cast| (cast, key.to_vec())));
        })?;
        // Read afterwards: a heartbeat is the first record of a cast that the own rack writes.
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

fn root_of(rack: RackId) -> String {
    format!("{ROOT}{}", rack.0)
}

/// Returns true if an access to a board failed because another rack is away or has lost its memory:
/// the one that has the board, or the one that wrote the record, in whose memory the record lies.
pub(super) const fn is_of_another_rack(error: &StoreError) -> bool {
    let StoreError::Table(error) = error else { return false };
    match error {
        KvError::OutcomeUnknown => true,
        KvError::Memory(PoolError::Access(error)) => matches!(
            error,
            AccessError::RackUnavailable(_) | AccessError::PageLost(_) | AccessError::PageBusy(..)
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_board_differ_and_name_their_cast() {
        let (cast, own, other) = (CastNumber(0x0102), RackId(7), RackId(8));
        let inbox = Key::Inbox(own, 0x0102);
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
            of_cast.into_iter().chain([Key::Agent(own), inbox]).map(Key::to_bytes).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert!(of_cast.iter().all(|key| key.rack() == own));
        assert!(of_cast.iter().all(|key| Key::cast_in(&key.to_bytes()) == Some(cast)));
        assert!([Key::Agent(own), inbox].iter().all(|key| Key::cast_in(&key.to_bytes()).is_none()));
    }
}
