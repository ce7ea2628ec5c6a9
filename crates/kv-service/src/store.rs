//! A thread's handles of the tables, and operations on keys.

use std::sync::Arc;

use rackpool_client::Pool;
use rackpool_kv::ordered::{MapId, OrderedMaps};
use rackpool_kv::sorted_set::SortedSet;
use rackpool_kv::{Committer, Entry, EntryChange, Form, Handle, ValueKind, Version, now_ms};

use crate::collections::LargeMaps;
use crate::failure::{DAMAGED, Failure, WRONG_TYPE};
use crate::large::{self, LargeStrings, LargeValue, Nodes};
use crate::memory_limit::MemoryLimit;
use crate::values::{self, LARGE_STRING, LargeMap, LargeString, Named, SORTED_SET};
use crate::watches::Watches;

/// One thread's access to the data.
#[derive(Debug)]
pub struct Store {
    /// The table of keys.
    pub keys: Handle<Arc<Pool>>,
    /// The node table: the maps of large collections, and large strings.
    pub maps: LargeMaps,
    /// What large strings need.
    pub strings: Arc<LargeStrings>,
    /// The watched keys of this instance.
    pub watches: Arc<Watches>,
    /// Commits transactions over both tables.
    committer: Committer,
    /// What no key names once the current transaction is committed; destroyed then.
    left: Vec<Named>,
    /// Large strings that keys name once the current transaction is committed.
    stored: Vec<Arc<LargeValue>>,
    /// Growth of the tables that is not settled yet, in bytes.
    growth: i64,
}

impl Store {
    /// Access through a handle of the table of keys and one of the node table, which must be opened
    /// with the table of keys as its [`with_records`](rackpool_kv::Table::with_records) table.
    #[must_use]
    pub fn new(
        keys: Handle<Arc<Pool>>,
        nodes: Handle<Arc<Pool>>,
        strings: Arc<LargeStrings>,
        watches: Arc<Watches>,
    ) -> Self {
        let committer = Committer::new(rand::random(), 0);
        Self {
            keys,
            maps: OrderedMaps::new(nodes),
            strings,
            watches,
            committer,
            left: Vec::new(),
            stored: Vec::new(),
            growth: 0,
        }
    }

    /// Whether a transaction is in progress.
    #[must_use]
    pub fn is_in_transaction(&self) -> bool {
        self.keys.has_begun()
    }

    /// Begins a transaction. No other client sees its changes before the commit.
    pub fn begin(&mut self) {
        self.left.clear();
        self.stored.clear();
        self.keys.begin();
        self.maps.handle_mut().begin();
    }

    /// Begins an insistent transaction: it locks each entry that it reads, so that other clients
    /// cannot change it before the commit.
    pub fn insist(&mut self) -> Result<(), Failure> {
        self.left.clear();
        self.stored.clear();
        let Self { keys, maps, committer, .. } = self;
        Ok(committer.insist(&mut [keys, maps.handle_mut()])?)
    }

    /// Ends a transaction. If nothing that it read has changed, applies its changes at one point in
    /// time among all instances, and returns true.
    pub fn commit(&mut self) -> Result<bool, Failure> {
        let changed: Vec<Vec<u8>> = self.keys.changed_keys().map(<[u8]>::to_vec).collect();
        let Self { keys, maps, committer, .. } = self;
        let done = committer.commit(&mut [keys, maps.handle_mut()]).map_err(Failure::from);
        if matches!(done, Ok(true)) || done.as_ref().is_err_and(Failure::is_unknown) {
            // If the outcome is unknown, the sweep looks at the names.
            self.stored.drain(..).for_each(|value| value.set_named());
        }
        self.stored.clear();
        let done = done?;
        if done {
            changed.iter().for_each(|key| self.watches.note(key));
            std::mem::take(&mut self.left).into_iter().for_each(|named| self.destroy(named));
        }
        Ok(done)
    }

    /// Destroys what no key names any more. If this fails, the sweep destroys it.
    pub(crate) fn destroy(&mut self, named: Named) {
        let _ = match named {
            Named::Map(map) => self.maps.map(map).destroy().map(drop).map_err(Failure::from),
            Named::String(id) => large::free(self.nodes(), id).map(drop),
        };
    }

    /// Notes that the current transaction names a large string.
    pub(crate) fn note_stored(&mut self, value: &Arc<LargeValue>) {
        self.stored.push(Arc::clone(value));
    }

    /// The handle of the node table.
    pub(crate) fn nodes(&mut self) -> &mut Nodes {
        self.maps.handle_mut()
    }

    /// Ends a transaction without applying its changes. Returns whether all that it read was
    /// current at one point in time.
    pub fn roll_back(&mut self) -> Result<bool, Failure> {
        self.stored.clear();
        self.keys.forget_changes();
        self.maps.handle_mut().forget_changes();
        let Self { keys, maps, committer, .. } = self;
        Ok(committer.commit(&mut [keys, maps.handle_mut()])?)
    }

    /// Notes a change of a key for its watchers. In a transaction, the commit does that.
    #[inline]
    fn note(&self, key: &[u8]) {
        if !self.keys.has_begun() {
            self.watches.note(key);
        }
    }

    /// Destroys a map or a string that its key no longer names. In a transaction, it is destroyed
    /// after the commit; but a map whose elements the transaction has read, as part of the
    /// transaction, so that an element added meanwhile makes it fail.
    fn leave(&mut self, named: Named) -> Result<(), Failure> {
        match named {
            _ if !self.keys.has_begun() => self.destroy(named),
            Named::Map(map) if self.maps.has_read(map) => drop(self.maps.map(map).destroy()?),
            named => self.left.push(named),
        }
        Ok(())
    }

    /// Calls `work` with the value of a key, or with `None` if the key is absent. An error if the
    /// value is of another kind.
    #[inline]
    pub fn with_value<R>(
        &mut self,
        key: &[u8],
        kind: ValueKind,
        work: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Failure> {
        let large = match self.keys.read(key)? {
            None => return Ok(work(None)),
            Some(entry) if entry.form.kind == kind => return Ok(work(Some(entry.value))),
            Some(entry) if entry.form.kind == LARGE_STRING && kind == ValueKind::STRING => {
                return Err(Failure::LargeString);
            }
            Some(entry) => values::large_map(entry),
        };
        match large {
            Some(map) if self.is_empty(map)? => Ok(work(None)),
            _ => Err(WRONG_TYPE),
        }
    }

    /// The kind and expiry of a key; `None` if it is absent.
    pub fn form(&mut self, key: &[u8]) -> Result<Option<Form>, Failure> {
        let Some(entry) = self.keys.read(key)? else { return Ok(None) };
        let form = entry.form;
        let Some(map) = values::large_map(entry) else { return Ok(Some(form)) };
        Ok((!self.is_empty(map)?).then_some(form))
    }

    /// Whether the map of a large collection has no elements or is destroyed. The key then counts
    /// as absent.
    pub fn is_empty(&mut self, LargeMap { kind, id }: LargeMap) -> Result<bool, Failure> {
        let map = self.maps.map(id);
        // A killed change may have left order entries, which are not members, in the map.
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

    /// Stores a value, replacing any other. The sweep destroys the map of a replaced collection.
    /// [`Failure::LargeString`] if the value is too long for an entry.
    #[inline]
    pub fn put(&mut self, key: &[u8], form: Form, value: &[u8]) -> Result<(), Failure> {
        if !self.strings.is_ordinary(key, value.len()) {
            return Err(Failure::LargeString);
        }
        if self.keys.has_begun() {
            return self.change_entry(key, |_, made| {
                made.extend_from_slice(value);
                Ok((EntryChange::Put(form), ()))
            });
        }
        self.keys.put_entry(key, form, value)?;
        self.watches.note(key);
        if let Some(old) = self.keys.replaced().and_then(LargeString::of) {
            self.destroy(Named::String(old.id));
        }
        Ok(())
    }

    /// Deletes a key; returns whether it was present.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let (mut was_there, mut large, mut map, mut string) = (false, None, None, None);
        let deleted = self.keys.modify(key, |entry, _| {
            was_there = entry.is_some();
            string = entry.and_then(LargeString::of);
            large = entry.and_then(values::large_map);
            map = entry.and_then(|entry| values::map_of(entry.form.kind, entry.value));
            EntryChange::Delete
        });
        match deleted.map_err(Failure::from) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            // The entry cannot be decoded. It can still be deleted.
            Err(failure) if failure.is_damage() => was_there = self.keys.delete(key)?,
            Err(failure) => return Err(failure),
        }
        self.note(key);
        if let Some(string) = string {
            self.leave(Named::String(string.id))?;
            return Ok(was_there);
        }
        if self.keys.has_begun() {
            return self.delete_map_of(was_there, large, map);
        }
        // Only this client removed the name, and the content of the destroyed map tells whether the
        // key counted. The deletion is made, so the command must not move to another thread because
        // of the leaf limit.
        self.maps.limit_leaves(None);
        let is_empty = large.is_some_and(|large: LargeMap| {
            large.kind == SORTED_SET.large && matches!(self.is_empty(large), Ok(true))
        });
        let entries = map.map(|id| self.maps.map(id).destroy());
        let had_none = is_empty || matches!(entries, Some(Ok(0)));
        Ok(was_there && !(large.is_some() && had_none))
    }

    /// Handles the map of a key that a transaction has just deleted. Returns whether the key
    /// counted as present.
    fn delete_map_of(
        &mut self,
        was_there: bool,
        large: Option<LargeMap>,
        map: Option<MapId>,
    ) -> Result<bool, Failure> {
        let is_known = map.is_some_and(|map| self.maps.has_read(map));
        let is_empty = match large {
            Some(large) => self.is_empty(large)?,
            None => false,
        };
        if let Some(map) = map {
            if is_known || is_empty {
                // An element that is added meanwhile would count, so the commit must fail then.
                self.maps.map(map).destroy()?;
            } else {
                self.left.push(Named::Map(map));
            }
        }
        Ok(was_there && !is_empty)
    }

    /// Deletes a key if it still names this map, which was found to be empty.
    pub fn drop_map(&mut self, key: &[u8], map: LargeMap) -> Result<(), Failure> {
        self.change_entry(key, |entry, _| {
            let is_named = entry.and_then(values::large_map) == Some(map);
            Ok((if is_named { EntryChange::Delete } else { EntryChange::Keep }, ()))
        })
    }

    /// Deletes all keys. Keys that are stored meanwhile are deleted or stay.
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

    /// Deletes a key if `is_wanted` returns true for its form, or for `None` if it has expired.
    /// Returns whether the deleted key was present; `None` if nothing was deleted. To be called
    /// outside of transactions.
    pub fn evict(
        &mut self,
        key: &[u8],
        is_wanted: impl Fn(Option<Form>) -> bool,
    ) -> Result<Option<bool>, Failure> {
        // The whole map of a collection is destroyed, as by `DEL`.
        self.maps.limit_leaves(None);
        let (mut was_present, mut named) = (false, None);
        let deleted = self.keys.modify(key, |entry, _| {
            was_present = entry.is_some();
            named = entry.and_then(|entry| values::named(entry.form.kind, entry.value));
            let is_wanted = is_wanted(entry.map(|entry| entry.form));
            if is_wanted { EntryChange::Delete } else { EntryChange::Keep }
        })?;
        if !deleted {
            return Ok(None);
        }
        self.note(key);
        if let Some(named) = named {
            self.leave(named)?;
        }
        Ok(Some(was_present))
    }

    /// Tells the limit by how much this thread's changes made the tables grow, if that is much or
    /// if `all` is set.
    #[inline]
    pub fn settle(&mut self, memory: &MemoryLimit, all: bool) {
        let more = self.keys.take_growth() + self.maps.handle_mut().take_growth();
        self.growth = memory.settle(self.growth.saturating_add(more), all);
    }

    /// Changes an entry atomically, as [`Handle::modify`] does; returns the result of the last call
    /// of `decide`. If that is a failure, nothing changes. What the entry no longer names is
    /// destroyed. `decide` sees an empty large collection as `None`.
    pub fn change<R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> Result<(EntryChange, R), Failure>,
    ) -> Result<R, Failure> {
        let mut known: Option<(LargeMap, bool)> = None;
        loop {
            let step = self.change_entry(key, |entry, made| {
                let entry = match (entry.and_then(values::large_map), known) {
                    (None, _) => entry,
                    (Some(map), Some((seen, is_empty))) if map == seen => {
                        entry.filter(|_| !is_empty)
                    }
                    (Some(map), _) => return Ok((EntryChange::Keep, Err(map))),
                };
                decide(entry, made).map(|(change, result)| (change, Ok(result)))
            })?;
            match step {
                Ok(result) => return Ok(result),
                Err(map) => known = Some((map, self.is_empty(map)?)),
            }
        }
    }

    /// As [`change`](Self::change), but `decide` sees an empty large collection as it is.
    pub fn change_entry<R>(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> Result<(EntryChange, R), Failure>,
    ) -> Result<R, Failure> {
        let (mut given, mut left) = (None, None);
        let changed = self.keys.modify(key, |entry, made| {
            let old = entry.and_then(|entry| values::named(entry.form.kind, entry.value));
            match decide(entry, made) {
                Ok((change, result)) => {
                    let new = match change {
                        EntryChange::Put(form) => values::named(form.kind, made),
                        EntryChange::Keep | EntryChange::Delete => None,
                    };
                    left = old.filter(|old| new != Some(*old));
                    given = Some(Ok(result));
                    change
                }
                Err(failure) => {
                    given = Some(Err(failure));
                    EntryChange::Keep
                }
            }
        })?;
        if changed {
            self.note(key);
        }
        if let Some(named) = left.filter(|_| changed) {
            self.leave(named)?;
        }
        given.unwrap_or(Err(DAMAGED))
    }
}

/// The number of keys, for `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyspace {
    /// Keys that are present.
    pub keys: u64,
    /// Those of them with an expiry.
    pub expiring: u64,
    /// The mean time until these expire, in milliseconds.
    pub mean_ttl_ms: u64,
}

impl Store {
    /// Counts the keys, without expired ones and empty large collections. It costs a read for each
    /// key.
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
        for (map, expires_ms) in large {
            if !self.is_empty(map)? {
                count(expires_ms);
            }
        }
        let mean = left_ms.checked_div(u128::from(expiring)).unwrap_or(0);
        Ok(Keyspace { keys, expiring, mean_ttl_ms: u64::try_from(mean).unwrap_or(u64::MAX) })
    }
}

/// The state of a watched key. While it is equal, nothing has changed the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedState {
    version: Option<Version>,
    /// The fingerprint of the map of a large collection.
    content: Option<u64>,
    /// The number of changes by this instance.
    changes: u64,
}

impl Store {
    /// The current state of a watched key.
    pub fn seen(&mut self, key: &[u8]) -> Result<WatchedState, Failure> {
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
            // Repeat if the entry was replaced in between.
            if self.keys.version(key)? == version {
                return Ok(WatchedState { version, content, changes: self.watches.changes(key) });
            }
        }
    }
}

/// The value of an entry; an error if it is of another kind.
#[inline]
pub fn value_of(entry: Option<Entry<'_>>, kind: ValueKind) -> Result<Option<&[u8]>, Failure> {
    match entry {
        None => Ok(None),
        Some(entry) if entry.form.kind == kind => Ok(Some(entry.value)),
        Some(entry) if entry.form.kind == LARGE_STRING && kind == ValueKind::STRING => {
            Err(Failure::LargeString)
        }
        Some(_) => Err(WRONG_TYPE),
    }
}
