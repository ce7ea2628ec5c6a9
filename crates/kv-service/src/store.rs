//! What a thread works on: its own handles of the tables.

use std::sync::Arc;

use rackpool_client::Pool;
use rackpool_kv::ordered::{MapId, OrderedMaps};
use rackpool_kv::sorted_set::SortedSet;
use rackpool_kv::{Change, Committer, Entry, Form, Handle, Kind, Version, now_ms};

use crate::failure::{DAMAGED, Failure, WRONG_TYPE};
use crate::values::{self, SORTED_SET};
use crate::watches::Watches;

/// One thread's access to the data.
#[derive(Debug)]
pub struct Store {
    /// The table of all keys.
    pub keys: Handle<Arc<Pool>>,
    /// The maps of large collections.
    pub maps: OrderedMaps<Arc<Pool>>,
    /// Who wants to know of changes.
    pub watches: Arc<Watches>,
    /// Makes the changes of transactions.
    committer: Committer,
    /// Maps that no key names once the transaction is committed.
    left: Vec<MapId>,
}

impl Store {
    /// Access through a handle of the table of keys and one of the table of nodes, which keeps the
    /// records of its transactions in the other.
    #[must_use]
    pub fn new(keys: Handle<Arc<Pool>>, nodes: Handle<Arc<Pool>>, watches: Arc<Watches>) -> Self {
        let committer = Committer::new(rand::random(), 0);
        Self { keys, maps: OrderedMaps::new(nodes), watches, committer, left: Vec::new() }
    }

    /// Whether a transaction has begun.
    #[must_use]
    pub fn is_in_transaction(&self) -> bool {
        self.keys.has_begun()
    }

    /// Begins a transaction: what is done from now on is seen by nobody else until it is committed.
    pub fn begin(&mut self) {
        self.left.clear();
        self.keys.begin();
        self.maps.handle_mut().begin();
    }

    /// Begins one that takes what it reads into its hands, so that others can't change it all the
    /// time.
    pub fn insist(&mut self) -> Result<(), Failure> {
        self.left.clear();
        let Self { keys, maps, committer, .. } = self;
        Ok(committer.insist(&mut [keys, maps.handle_mut()])?)
    }

    /// Ends a transaction and makes its changes at one moment among all instances, at which all
    /// that it has read was so; says whether it did, or another change came between.
    pub fn commit(&mut self) -> Result<bool, Failure> {
        let changed: Vec<Vec<u8>> = self.keys.changed_keys().map(<[u8]>::to_vec).collect();
        let Self { keys, maps, committer, .. } = self;
        let done = committer.commit(&mut [keys, maps.handle_mut()])?;
        if done {
            changed.iter().for_each(|key| self.watches.note(key));
            for map in std::mem::take(&mut self.left) {
                // What this does not destroy is swept up later.
                let _ = self.maps.map(map).destroy();
            }
        }
        Ok(done)
    }

    /// Ends a transaction without its changes; says whether all that it has read was so at one
    /// moment.
    pub fn roll_back(&mut self) -> Result<bool, Failure> {
        self.keys.forget_changes();
        self.maps.handle_mut().forget_changes();
        let Self { keys, maps, committer, .. } = self;
        Ok(committer.commit(&mut [keys, maps.handle_mut()])?)
    }

    /// A key was changed: its watchers are told, in a transaction when it is committed.
    #[inline]
    fn note(&self, key: &[u8]) {
        if !self.keys.has_begun() {
            self.watches.note(key);
        }
    }

    /// Destroys a map that no key names any more. In a transaction it is destroyed afterwards,
    /// unless that has looked at the elements: then nobody may add another one meanwhile.
    fn leave(&mut self, map: MapId) -> Result<(), Failure> {
        if !self.keys.has_begun() {
            // The change is made. What this does not destroy is swept up later.
            let _ = self.maps.map(map).destroy();
        } else if self.maps.has_read(map) {
            self.maps.map(map).destroy()?;
        } else {
            self.left.push(map);
        }
        Ok(())
    }

    /// Does something with the value of a key of this kind.
    #[inline]
    pub fn with_value<R>(
        &mut self,
        key: &[u8],
        kind: Kind,
        work: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Failure> {
        let large = match self.keys.read(key)? {
            None => return Ok(work(None)),
            Some(entry) if entry.form.kind == kind => return Ok(work(Some(entry.value))),
            Some(entry) => values::large_map(entry),
        };
        match large {
            Some((kind, id)) if self.is_empty(kind, id)? => Ok(work(None)),
            _ => Err(WRONG_TYPE),
        }
    }

    /// Kind and expiry of a key; `None` if it is absent.
    pub fn form(&mut self, key: &[u8]) -> Result<Option<Form>, Failure> {
        let Some(entry) = self.keys.read(key)? else { return Ok(None) };
        let form = entry.form;
        let Some((kind, id)) = values::large_map(entry) else { return Ok(Some(form)) };
        Ok((!self.is_empty(kind, id)?).then_some(form))
    }

    /// Whether the map of a large collection has nothing in it, or is gone: as absent.
    pub fn is_empty(&mut self, kind: Kind, id: MapId) -> Result<bool, Failure> {
        let map = self.maps.map(id);
        // A sorted set may have more in its map than members: what a killed change has left.
        let found = if kind == SORTED_SET.large {
            SortedSet::new(map).is_empty()
        } else {
            let mut map = map;
            map.first().map(|first| first.is_none())
        };
        match found {
            Ok(is_empty) => Ok(is_empty),
            Err(error) => {
                let failure = Failure::from(error);
                if failure.is_gone() { Ok(true) } else { Err(failure) }
            }
        }
    }

    /// Stores a value in the place of whatever is there. A map that was there is swept up later.
    #[inline]
    pub fn put(&mut self, key: &[u8], form: Form, value: &[u8]) -> Result<(), Failure> {
        if self.keys.has_begun() {
            return self.change_entry(key, |_, made| {
                made.extend_from_slice(value);
                Ok((Change::Put(form), ()))
            });
        }
        self.keys.put_entry(key, form, value)?;
        self.watches.note(key);
        Ok(())
    }

    /// Deletes a key; says whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let (mut was_there, mut large, mut map) = (false, None, None);
        let deleted = self.keys.modify(key, |entry, _| {
            was_there = entry.is_some();
            large = entry.and_then(values::large_map);
            map = entry.and_then(|entry| values::map_of(entry.form.kind, entry.value));
            Change::Delete
        });
        match deleted.map_err(Failure::from) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // What is there can't be read, but it can go.
            Err(failure) if failure.is_damage() => was_there = self.keys.delete(key)?,
            Err(failure) => return Err(failure),
        }
        self.note(key);
        if self.keys.has_begun() {
            return self.delete_map_of(was_there, large, map);
        }
        // Nobody else takes this name away. What the map had tells whether it was a key. It is
        // done: no other thread can do it again because this one has looked at too much.
        self.maps.limit_leaves(None);
        let is_empty = large.is_some_and(|(kind, id)| {
            kind == SORTED_SET.large && matches!(self.is_empty(kind, id), Ok(true))
        });
        let entries = map.map(|id| self.maps.map(id).destroy());
        let had_none = is_empty || matches!(entries, Some(Ok(0)));
        Ok(was_there && !(large.is_some() && had_none))
    }

    /// In a transaction that has just deleted a key: what becomes of the map that it named, and
    /// whether the key counted.
    fn delete_map_of(
        &mut self,
        was_there: bool,
        large: Option<(Kind, MapId)>,
        map: Option<MapId>,
    ) -> Result<bool, Failure> {
        let is_known = map.is_some_and(|map| self.maps.has_read(map));
        let is_empty = match large {
            Some((kind, id)) => self.is_empty(kind, id)?,
            None => false,
        };
        if let Some(map) = map {
            if is_known || is_empty {
                // An element that is added meanwhile would have counted.
                self.maps.map(map).destroy()?;
            } else {
                self.left.push(map);
            }
        }
        Ok(was_there && !is_empty)
    }

    /// Deletes a key as long as it names this map, which was found to be empty.
    pub fn drop_map(&mut self, key: &[u8], map: (Kind, MapId)) -> Result<(), Failure> {
        self.change_entry(key, |entry, _| {
            let is_named = entry.and_then(values::large_map) == Some(map);
            Ok((if is_named { Change::Delete } else { Change::Keep }, ()))
        })
    }

    /// Deletes all keys that are there throughout.
    pub fn clear(&mut self) -> Result<(), Failure> {
        const STRIDE: usize = 256;
        let (mut cursor, mut found) = (0, Vec::new());
        loop {
            found.clear();
            cursor = self.keys.scan(cursor, STRIDE, |key, _| found.push(key.to_vec()))?;
            for key in &found {
                self.delete(key)?;
            }
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Changes an entry in one step, as [`Handle::modify`] does; what `decide` gave with its last
    /// decision. If that is a failure, nothing changes. A map that the entry does not name any more
    /// is destroyed. A large collection that is empty is no entry to `decide`.
    pub fn change<R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> Result<(Change, R), Failure>,
    ) -> Result<R, Failure> {
        let mut known: Option<((Kind, MapId), bool)> = None;
        loop {
            let step = self.change_entry(key, |entry, made| {
                let entry = match (entry.and_then(values::large_map), known) {
                    (None, _) => entry,
                    (Some(map), Some((seen, is_empty))) if map == seen => {
                        entry.filter(|_| !is_empty)
                    }
                    (Some(map), _) => return Ok((Change::Keep, Err(map))),
                };
                decide(entry, made).map(|(change, result)| (change, Ok(result)))
            })?;
            match step {
                Ok(result) => return Ok(result),
                Err(map) => known = Some((map, self.is_empty(map.0, map.1)?)),
            }
        }
    }

    /// The same, of what the entry is whether it counts or not.
    pub fn change_entry<R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> Result<(Change, R), Failure>,
    ) -> Result<R, Failure> {
        let (mut given, mut left) = (None, None);
        let changed = self.keys.modify(key, |entry, made| {
            let old = entry.and_then(|entry| values::map_of(entry.form.kind, entry.value));
            match decide(entry, made) {
                Ok((change, result)) => {
                    let new = match change {
                        Change::Put(form) => values::map_of(form.kind, made),
                        Change::Keep | Change::Delete => None,
                    };
                    left = old.filter(|old| new != Some(*old));
                    given = Some(Ok(result));
                    change
                }
                Err(failure) => {
                    given = Some(Err(failure));
                    Change::Keep
                }
            }
        })?;
        if changed {
            self.note(key);
        }
        if let Some(map) = left.filter(|_| changed) {
            self.leave(map)?;
        }
        given.unwrap_or(Err(DAMAGED))
    }
}

/// What the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// Keys that are there.
    pub keys: u64,
    /// Those of them that expire.
    pub expiring: u64,
    /// How long these stay, on average.
    pub mean_ttl_ms: u64,
}

impl Store {
    /// Counts the keys that are there: not those whose time is over, nor large collections that
    /// have become empty. It costs a read for each key.
    pub fn keyspace(&mut self) -> Result<Keyspace, Failure> {
        let (mut keys, mut expiring, mut left_ms, mut large) = (0, 0, 0, Vec::new());
        let now = now_ms();
        let mut count = |expires_ms: u64| {
            keys += 1;
            if expires_ms != 0 {
                expiring += 1;
                left_ms += u128::from(expires_ms.saturating_sub(now));
            }
        };
        self.keys.survey(values::names_map, |entry| {
            let expires_ms = entry.form.expires_ms;
            if expires_ms != 0 && expires_ms <= now {
                return;
            }
            match values::large_map(entry) {
                Some(map) => large.push((map, expires_ms)),
                None => count(expires_ms),
            }
        })?;
        for ((kind, id), expires_ms) in large {
            if !self.is_empty(kind, id)? {
                count(expires_ms);
            }
        }
        let mean = left_ms.checked_div(u128::from(expiring)).unwrap_or(0);
        Ok(Keyspace { keys, expiring, mean_ttl_ms: u64::try_from(mean).unwrap_or(u64::MAX) })
    }
}

/// What a watched key was: as long as it is the same, nothing has changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    version: Option<Version>,
    /// Of the map of a large collection.
    content: Option<u64>,
    /// Changes by this instance.
    changes: u64,
}

impl Store {
    /// What a watched key is now.
    pub fn seen(&mut self, key: &[u8]) -> Result<Seen, Failure> {
        loop {
            let version = self.keys.version(key)?;
            let map = match self.keys.read(key)? {
                Some(entry) if values::is_large(entry.form.kind) => {
                    values::map_of(entry.form.kind, entry.value)
                }
                _ => None,
            };
            let content = match map.map(|id| self.maps.map(id).fingerprint()).transpose() {
                Ok(content) => content,
                Err(error) => match Failure::from(error) {
                    failure if failure.is_gone() => None,
                    failure => return Err(failure),
                },
            };
            // Of one and the same entry.
            if self.keys.version(key)? == version {
                return Ok(Seen { version, content, changes: self.watches.changes(key) });
            }
        }
    }
}

/// The value of an entry if it is of this kind.
#[inline]
pub fn value_of(entry: Option<Entry<'_>>, kind: Kind) -> Result<Option<&[u8]>, Failure> {
    match entry {
        None => Ok(None),
        Some(entry) if entry.form.kind == kind => Ok(Some(entry.value)),
        Some(_) => Err(WRONG_TYPE),
    }
}
