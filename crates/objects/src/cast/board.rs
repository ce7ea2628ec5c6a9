//! The board: the table of the pool in which programs of different racks exchange records.

use std::collections::BTreeSet;
use std::sync::Arc;

use bincode::{Decode, Encode};
use rackpool_client::{Pool, RackId};
use rackpool_kv::{Handle, Table, TableOptions, now_ms};
use rackpool_wire::CodecError;

use super::records::{AgentRecord, Alive, CastNumber, Inbox};
use crate::error::StoreError;

/// The root of the pool that names the board.
const ROOT: &str = ".casts";
/// An agent whose record is older than this, in milliseconds, has ended. It writes a record each
/// second; the rest is for clocks of hosts that differ, and for busy hosts.
const AGENT_AGE_MS: u64 = 15_000;
/// The records of a cast without a sign of life for this time, in milliseconds, are removed.
const CAST_AGE_MS: u64 = 60_000;

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Agent(RackId),
    Inbox(RackId),
    Cast(CastNumber),
    Place(CastNumber, RackId),
    Message { cast: CastNumber, from: RackId, to: RackId },
    Alive(CastNumber, RackId),
}

impl Key {
    fn to_bytes(self) -> Vec<u8> {
        let (kind, cast, racks): (u8, _, &[RackId]) = match &self {
            Self::Agent(rack) => (b'a', None, &[*rack]),
            Self::Inbox(rack) => (b'i', None, &[*rack]),
            Self::Cast(cast) => (b'd', Some(cast), &[]),
            Self::Place(cast, rack) => (b'p', Some(cast), &[*rack]),
            Self::Message { cast, from, to } => (b'm', Some(cast), &[*from, *to]),
            Self::Alive(cast, rack) => (b't', Some(cast), &[*rack]),
        };
        let mut bytes = vec![kind];
        bytes.extend(cast.into_iter().flat_map(|cast| cast.0.to_le_bytes()));
        bytes.extend(racks.iter().flat_map(|rack| rack.0.to_le_bytes()));
        bytes
    }

    /// The cast that a key belongs to.
    fn cast_in(key: &[u8]) -> Option<CastNumber> {
        match key {
            [b'd' | b'p' | b'm' | b't', rest @ ..] => {
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

/// A handle of the board. Cheap to make; each thread has its own.
#[derive(Debug)]
pub(super) struct Board {
    table: Handle<Arc<Pool>>,
    value: Vec<u8>,
}

impl Board {
    /// Opens the board of a pool, which is created if there is none.
    pub(super) fn open(pool: &Arc<Pool>) -> Result<Self, StoreError> {
        let options = TableOptions::for_pages(pool.page_bytes());
        let table = Table::open_or_create(Arc::clone(pool), ROOT, &options)?;
        Ok(Self { table: table.handle(), value: Vec::new() })
    }

    pub(super) fn read<T: Decode<()>>(&mut self, key: Key) -> Result<Found<T>, StoreError> {
        let is_there = self.table.get(&key.to_bytes(), &mut self.value)?;
        Ok(is_there.then(|| rackpool_wire::decode(&self.value)))
    }

    pub(super) fn write<T: Encode>(&mut self, key: Key, record: &T) -> Result<(), StoreError> {
        self.table.put(&key.to_bytes(), &rackpool_wire::encode(record)?)?;
        Ok(())
    }

    pub(super) fn remove(&mut self, key: Key) -> Result<(), StoreError> {
        self.table.delete(&key.to_bytes())?;
        Ok(())
    }

    /// Asks an agent to join a cast.
    pub(super) fn invite(&mut self, rack: RackId, cast: CastNumber) -> Result<(), StoreError> {
        let key = Key::Inbox(rack).to_bytes();
        loop {
            let is_there = self.table.get(&key, &mut self.value)?;
            let found = is_there.then(|| self.value.clone());
            let decoded = found.as_deref().map(rackpool_wire::decode::<Inbox>);
            let mut inbox = decoded.and_then(Result::ok).unwrap_or_default();
            inbox.casts.push(cast);
            let new = rackpool_wire::encode(&inbox)?;
            if self.table.compare_and_put(&key, found.as_deref(), &new)? {
                return Ok(());
            }
        }
    }

    /// Takes up to `most` of the casts that an agent is to join.
    pub(super) fn take_invitations(
        &mut self,
        rack: RackId,
        most: usize,
    ) -> Result<Vec<CastNumber>, StoreError> {
        let key = Key::Inbox(rack).to_bytes();
        if !self.table.get(&key, &mut self.value)? {
            return Ok(Vec::new());
        }
        let found = self.value.clone();
        let mut casts = rackpool_wire::decode::<Inbox>(&found).unwrap_or_default().casts;
        let rest = casts.split_off(casts.len().min(most));
        if casts.is_empty() {
            return Ok(casts);
        }
        let rest = rackpool_wire::encode(&Inbox { casts: rest })?;
        let is_taken = self.table.compare_and_put(&key, Some(&found), &rest)?;
        Ok(if is_taken { casts } else { Vec::new() })
    }

    /// The racks that agents serve.
    pub(super) fn agents(&mut self) -> Result<BTreeSet<RackId>, StoreError> {
        let (mut racks, now) = (BTreeSet::new(), now_ms());
        self.table.for_each(|key, value| {
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

    /// Removes the records of casts that show no sign of life any more.
    pub(super) fn sweep(&mut self) -> Result<(), StoreError> {
        let (mut keys, mut alive) = (Vec::new(), BTreeSet::new());
        self.table.for_each(|key, _| {
            keys.extend(Key::cast_in(key).map(|cast| (cast, key.to_vec())));
        })?;
        // Read afterwards: a sign of life is the first record of a cast.
        let now = now_ms();
        self.table.for_each(|key, value| {
            let at_ms = rackpool_wire::decode(value).map_or(0, |Alive { at_ms }| at_ms);
            if key.starts_with(b"t") && now.saturating_sub(at_ms) < CAST_AGE_MS {
                alive.extend(Key::cast_in(key));
            }
        })?;
        for (_, key) in keys.iter().filter(|(cast, _)| !alive.contains(cast)) {
            self.table.delete(key)?;
        }
        Ok(())
    }
}

fn is_young(record: AgentRecord, now: u64) -> bool {
    now.saturating_sub(record.seen_ms) < AGENT_AGE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_name_their_cast() {
        let (cast, rack) = (CastNumber(0x0102), RackId(7));
        let of_cast = [
            Key::Cast(cast),
            Key::Place(cast, rack),
            Key::Message { cast, from: rack, to: RackId(8) },
            Key::Message { cast, from: RackId(8), to: rack },
            Key::Alive(cast, rack),
        ];
        let others = [Key::Agent(rack), Key::Inbox(rack)];
        let keys: Vec<_> = of_cast.iter().chain(&others).map(|key| key.to_bytes()).collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert!(of_cast.iter().all(|key| Key::cast_in(&key.to_bytes()) == Some(cast)));
        assert!(others.iter().all(|key| Key::cast_in(&key.to_bytes()).is_none()));
        assert_eq!(Key::agent_in(&others[0].to_bytes()), Some(rack));
        assert_eq!(Key::agent_in(&others[1].to_bytes()), None);
    }
}
