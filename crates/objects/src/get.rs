//! Get: from this rack's memory, or after a transfer from another rack.

use std::sync::Arc;

use rackpool_client::{Extent, GlobalAddr, Pin, PinnedBytes, Pool};
use rackpool_kv::now_ms;

use crate::checksum::Checksum;
use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::keys::Keys;
use crate::replicas::Registered;
use crate::store::{Handles, PlacedHead, Store};
use crate::unsealed::FixedMemory;
use crate::view::View;

/// The time of an object's last use is stored anew if it is older than this, in milliseconds.
const LAST_USE_MS: u64 = 1000;
/// After this time, in milliseconds, an unregistered replica is what a killed program left.
const ABANDONED_MS: u64 = 1000;
/// The longest read of a transfer in bytes, after which the next part of the object is read.
const LONGEST_READ: usize = 4 << 20;

/// Where a get looks for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The object table.
    Objects,
    /// The replica table of this rack.
    Replicas,
}

impl Store {
    /// The object of this id as a slice of this rack's memory; `None` if there is no sealed object
    /// of this id. An object that is in this rack is not copied. An object of another rack is
    /// brought into this one, where later gets of all programs find it.
    ///
    /// ```no_run
    /// # use rackpool_objects::{Store, StoreError};
    /// fn sum(store: &Store) -> Result<Option<u64>, StoreError> {
    ///     let view = store.get(b"samples")?;
    ///     Ok(view.map(|samples| samples.iter().map(|sample| u64::from(*sample)).sum()))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::IdLength`], [`StoreError::Damaged`] if bytes that came from another rack have
    /// the wrong checksum, or that of the pool: the own rack has no room for the object, the
    /// program has too many pins, or the object's rack does not answer.
    pub fn get(&self, id: &[u8]) -> Result<Option<View>, StoreError> {
        let keys = Keys::of(id)?;
        let layout = HeadLayout::of(id.len());
        let oldest = self.oldest_alive()?;
        loop {
            if let Some(view) = self.get_here(&keys, layout, Source::Replicas)? {
                return Ok((view.created_ms() >= oldest).then_some(view));
            }
            let found = self.with(|handles| handles.find(keys.object()))?;
            let Some(found) = found.filter(|found| found.head.created_ms >= oldest) else {
                return Ok(None);
            };
            let got = match self.pool().is_local(found.place.addr) {
                Ok(true) => self.get_here(&keys, layout, Source::Objects)?,
                // Another program may have brought it already.
                Ok(false) if self.open_replica_table()? => None,
                Ok(false) => self.bring(&keys, layout, &found)?,
                Err(error) if self.is_linked(&keys, &found)? => return Err(error.into()),
                Err(_) => None,
            };
            if got.is_some() {
                return Ok(got);
            }
        }
    }

    /// As [`get`](Self::get), of an object whose bytes have a known layout.
    ///
    /// # Errors
    /// [`StoreError::LayoutTag`] if the object was created with another tag; else as
    /// [`get`](Self::get).
    pub fn get_as(&self, id: &[u8], layout_tag: u64) -> Result<Option<View>, StoreError> {
        match self.get(id)? {
            Some(view) if view.layout_tag() != layout_tag => {
                Err(StoreError::LayoutTag { expected: layout_tag, found: view.layout_tag() })
            }
            got => Ok(got),
        }
    }

    /// Whether there is a sealed object of this id.
    ///
    /// # Errors
    /// [`StoreError::IdLength`], or that of the pool.
    pub fn contains(&self, id: &[u8]) -> Result<bool, StoreError> {
        let keys = Keys::of(id)?;
        let oldest = self.oldest_alive()?;
        let found = self.with(|handles| handles.find(keys.object()))?;
        Ok(found.is_some_and(|found| found.head.created_ms >= oldest))
    }

    /// Whether the object table still leads to this head.
    fn is_linked(&self, keys: &Keys, found: &PlacedHead) -> Result<bool, StoreError> {
        self.with(|handles| Ok(handles.find(keys.object())? == Some(*found)))
    }

    /// Pins the object that a table of this rack leads to. `None` if there is none, if it is not
    /// ready, or if the object has changed meanwhile.
    fn get_here(
        &self,
        keys: &Keys,
        layout: HeadLayout,
        source: Source,
    ) -> Result<Option<View>, StoreError> {
        let pinned = self.with(|handles| {
            let Some(found) = handles.find_in(source, keys)? else { return Ok(None) };
            let pin = match Pin::new(Arc::clone(self.pool()), found.place.addr) {
                Ok(pin) => pin,
                Err(error) if handles.find_in(source, keys)? == Some(found) => {
                    return Err(error.into());
                }
                // It was deleted meanwhile, and its page is used for something else.
                Err(_) => return Ok(None),
            };
            // The pin counts if the table still leads to the object: it was not freed before.
            let is_linked = handles.find_in(source, keys)? == Some(found);
            Ok(is_linked.then_some((pin, found.head)))
        })?;
        let Some((pin, head)) = pinned else { return Ok(None) };
        let mut words = [0; 16];
        self.pool().read(at(pin.addr(), layout.last_use()), &mut words)?;
        let [last_use, ready] = two_words(words);
        if source == Source::Replicas && ready != 1 {
            return Ok(None);
        }
        let now = now_ms();
        if now.saturating_sub(last_use) > LAST_USE_MS {
            self.pool().write(at(pin.addr(), layout.last_use()), &now.to_le_bytes())?;
        }
        Ok(Some(View::new(self.map(pin, &head, layout)?, head)))
    }

    /// Maps a pinned object for reading.
    fn map(
        &self,
        pin: Pin<Arc<Pool>>,
        head: &Head,
        layout: HeadLayout,
    ) -> Result<PinnedBytes<Arc<Pool>>, StoreError> {
        if head.extents == 0 {
            let end = layout.body().saturating_add(head.len());
            return Ok(pin.map_head(layout.body()..end)?);
        }
        let extents = self.read_extents(pin.addr(), head, layout)?;
        Ok(pin.map_extents(&extents, head.len())?)
    }

    /// Reads the list of extents of a head.
    fn read_extents(
        &self,
        addr: GlobalAddr,
        head: &Head,
        layout: HeadLayout,
    ) -> Result<Vec<Extent>, StoreError> {
        let page_bytes = self.pool().page_bytes();
        if u64::from(head.extents) * 8 > page_bytes {
            return Err(StoreError::Damaged { addr });
        }
        let mut list = vec![0; head.extents as usize * 8];
        self.pool().read(at(addr, layout.body()), &mut list)?;
        let words = list.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        let extents = words.map(|word| HeadLayout::decode_extent(word, page_bytes));
        extents.collect::<Option<_>>().ok_or(StoreError::Damaged { addr })
    }

    /// Brings an object of another rack into this one and makes it a replica. `None` if the object
    /// has changed meanwhile.
    fn bring(
        &self,
        keys: &Keys,
        layout: HeadLayout,
        found: &PlacedHead,
    ) -> Result<Option<View>, StoreError> {
        let memory = self.allocate(layout, found.head.len(), false)?;
        let mut bytes = memory.map_mut()?;
        let transferred = self.transfer(found, layout, &mut bytes);
        // Bytes that were read while the object was in the store are its bytes.
        if !self.is_linked(keys, found)? {
            return Ok(None);
        }
        transferred?;
        if Checksum::of(&bytes) != found.head.checksum {
            return Err(StoreError::Damaged { addr: found.place.addr });
        }
        drop(bytes);
        memory.write_words(now_ms())?;
        let head = Head {
            rack: self.pool().rack(),
            extents: u32::try_from(memory.extents.len()).unwrap_or(u32::MAX),
            ..found.head
        };
        let view = View::new(memory.map()?, head);
        // The view keeps the memory, whether it becomes a replica or not.
        self.with(|handles| self.publish(handles, keys, layout, found, &head, memory))?;
        Ok(Some(view))
    }

    /// Opens the replica table of this rack; returns false if it was open already.
    fn open_replica_table(&self) -> Result<bool, StoreError> {
        let is_open = self.with(|handles| Ok(handles.replicas.is_some()))?;
        if !is_open {
            self.replica_table(self.pool().rack())?;
        }
        Ok(!is_open)
    }

    /// Reads the bytes of an object of another rack, which may be freed meanwhile.
    fn transfer(
        &self,
        found: &PlacedHead,
        layout: HeadLayout,
        bytes: &mut [u8],
    ) -> Result<(), StoreError> {
        let (addr, head) = (found.place.addr, &found.head);
        let extents = if head.extents == 0 {
            vec![Extent { addr: at(addr, layout.body()), bytes: head.len() }]
        } else {
            self.read_extents(addr, head, layout)?
        };
        let mut rest = bytes;
        for extent in extents {
            let len = usize::try_from(extent.bytes).unwrap_or(usize::MAX).min(rest.len());
            let (mut part, after) = rest.split_at_mut(len);
            let mut from = extent.addr;
            while !part.is_empty() {
                let len = part.len().min(LONGEST_READ);
                let (into, after) = part.split_at_mut(len);
                self.pool().read(from, into)?;
                (from, part) = (at(from, len as u64), after);
            }
            rest = after;
        }
        if rest.is_empty() { Ok(()) } else { Err(StoreError::Damaged { addr }) }
    }

    /// Makes memory with the bytes of an object a replica, unless there is one, or a delete has
    /// begun. Frees the memory in these cases.
    ///
    /// The registration comes first, so that a delete finds the replica even if this program is
    /// killed. If a delete has looked for the replica before it was there, the registration is
    /// closed or gone afterwards.
    fn publish(
        &self,
        handles: &mut Handles,
        keys: &Keys,
        layout: HeadLayout,
        object: &PlacedHead,
        head: &Head,
        memory: FixedMemory,
    ) -> Result<(), StoreError> {
        let rack = self.pool().rack();
        let Registered::As(_) = handles.register(keys, &object.place, rack)? else {
            return Ok(());
        };
        let Some(replicas) = &mut handles.replicas else { return Ok(()) };
        let (addr, reservation) = (memory.addr(), memory.reserve()?);
        if !replicas.insert_reserved(keys.object(), &head.encode(), reservation)? {
            return self.remove_abandoned(handles, keys);
        }
        if handles.is_open(keys, &object.place)? {
            self.pool().write(at(addr, layout.ready()), &1_u64.to_le_bytes())?;
            return Ok(());
        }
        match handles.find_replica(keys.object())? {
            Some(own) if own.place.addr == addr => handles.remove_replica(keys, &own),
            _ => Ok(()),
        }
    }

    /// Removes the replica of this rack if it is not registered, because the program that made it
    /// was killed.
    pub(crate) fn remove_abandoned(
        &self,
        handles: &mut Handles,
        keys: &Keys,
    ) -> Result<(), StoreError> {
        let Some(found) = handles.find_replica(keys.object())? else { return Ok(()) };
        let (layout, mut words) = (HeadLayout::of(keys.id_len()), [0; 16]);
        self.pool().read(at(found.place.addr, layout.last_use()), &mut words)?;
        // If the replica was removed meanwhile, these are other words, and nothing is removed here.
        let [made, ready] = two_words(words);
        if ready == 0 && now_ms().saturating_sub(made) > ABANDONED_MS {
            handles.remove_replica(keys, &found)?;
        }
        Ok(())
    }
}

impl Handles {
    fn find_in(&mut self, source: Source, keys: &Keys) -> Result<Option<PlacedHead>, StoreError> {
        match source {
            Source::Objects => self.find(keys.object()),
            Source::Replicas => self.find_replica(keys.object()),
        }
    }

    fn remove_replica(&mut self, keys: &Keys, found: &PlacedHead) -> Result<(), StoreError> {
        if let Some(replicas) = &mut self.replicas {
            replicas.delete_placed(keys.object(), &found.place)?;
        }
        Ok(())
    }
}

/// The address `offset` bytes behind another one. Addresses are less than 2^62.
const fn at(addr: GlobalAddr, offset: u64) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw().saturating_add(offset))
}

fn two_words(bytes: [u8; 16]) -> [u64; 2] {
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    [word(0), word(8)]
}
