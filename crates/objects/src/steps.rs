//! The steps of the protocol, in the tables and the memory of the pool.

use std::sync::Arc;

use rackpool_client::{GlobalAddr, Pin, Pool, RackId};
use rackpool_kv::{EntryPlace, now_ms};

use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::protocol::{Replica, Source, Steps, Words};
use crate::store::{Handles, PlacedHead, Store};
use crate::unsealed::FixedMemory;

/// What a store has of one id.
pub(crate) struct Entries<'a> {
    store: &'a Store,
    handles: &'a mut Handles,
    keys: &'a Keys,
    layout: HeadLayout,
}

impl<'a> Entries<'a> {
    pub(crate) const fn new(store: &'a Store, handles: &'a mut Handles, keys: &'a Keys) -> Self {
        Self { store, handles, keys, layout: HeadLayout::of(keys.id_len()) }
    }
}

impl Steps for Entries<'_> {
    type Error = StoreError;
    type Pin = Pin<Arc<Pool>>;
    type Memory = FixedMemory;

    fn rack(&self) -> RackId {
        self.store.pool().rack()
    }

    fn is_local(&self, head: &PlacedHead) -> Result<bool, StoreError> {
        Ok(self.store.pool().is_local(head.place.addr)?)
    }

    fn find(&mut self, source: Source) -> Result<Option<PlacedHead>, StoreError> {
        match source {
            Source::Objects => self.handles.find(self.keys.object()),
            Source::Replicas => self.handles.find_replica(self.keys.object()),
        }
    }

    fn remove(&mut self, source: Source, place: &EntryPlace) -> Result<bool, StoreError> {
        let table = match source {
            Source::Objects => Some(&mut self.handles.objects),
            Source::Replicas => self.handles.replicas.as_mut(),
        };
        let Some(table) = table else { return Ok(false) };
        Ok(table.delete_placed(self.keys.object(), place)?)
    }

    fn open_replicas(&mut self) -> Result<bool, StoreError> {
        let was_open = self.handles.replicas.is_some();
        if !was_open {
            self.handles.replicas = Some(self.store.replica_table(self.rack())?);
        }
        Ok(!was_open)
    }

    fn insert_replica(&mut self, replica: Replica<FixedMemory>) -> Result<bool, StoreError> {
        let Some(table) = &mut self.handles.replicas else { return Ok(false) };
        let reservation = replica.memory.reserve()?;
        Ok(table.insert_reserved(self.keys.object(), &replica.head.encode(), reservation)?)
    }

    fn remove_replica_of(&mut self, rack: RackId) -> Result<(), StoreError> {
        self.store.replica_table(rack)?.delete(self.keys.object())?;
        Ok(())
    }

    fn registration(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.keys.registration();
        Ok(self.handles.value(key.object())?.map(<[u8]>::to_vec))
    }

    fn replace_registration(
        &mut self,
        found: Option<&[u8]>,
        new: &Registration,
    ) -> Result<bool, StoreError> {
        let key = self.keys.registration();
        Ok(self.handles.objects.compare_and_put(key.object(), found, &new.encode())?)
    }

    fn remove_registration(&mut self, found: &Registration) -> Result<(), StoreError> {
        let key = self.keys.registration();
        self.handles.objects.compare_and_delete(key.object(), &found.encode())?;
        Ok(())
    }

    fn pin(&mut self, addr: GlobalAddr) -> Result<Pin<Arc<Pool>>, StoreError> {
        Ok(Pin::new(Arc::clone(self.store.pool()), addr)?)
    }

    fn words(&mut self, addr: GlobalAddr) -> Result<Words, StoreError> {
        let mut words = [0; 16];
        self.store.pool().read(at(addr, self.layout.last_use()), &mut words)?;
        let word =
            |at: usize| words[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Ok(Words { idle_ms: now_ms().saturating_sub(word(0)), is_ready: word(8) == 1 })
    }

    fn set_used(&mut self, addr: GlobalAddr) -> Result<(), StoreError> {
        let at = at(addr, self.layout.last_use());
        Ok(self.store.pool().write(at, &now_ms().to_le_bytes())?)
    }

    fn set_ready(&mut self, addr: GlobalAddr) -> Result<(), StoreError> {
        Ok(self.store.pool().write(at(addr, self.layout.ready()), &1_u64.to_le_bytes())?)
    }

    fn copy(&mut self, object: &PlacedHead) -> Result<Replica<FixedMemory>, StoreError> {
        let pool = self.store.pool();
        let memory = self.store.allocate(self.layout, object.head.len(), false)?;
        let mut bytes = memory.map_mut()?;
        if self.store.transfer(object, self.layout, &mut bytes)? != object.head.checksum {
            return Err(StoreError::Damaged { addr: object.place.addr });
        }
        drop(bytes);
        memory.write_words(now_ms())?;
        let extents = u32::try_from(memory.extents.len()).unwrap_or(u32::MAX);
        let head = Head { rack: pool.rack(), extents, ..object.head };
        Ok(Replica { addr: memory.addr(), memory, head })
    }
}

/// The address `offset` bytes behind another one. Addresses are less than 2^62.
pub(crate) const fn at(addr: GlobalAddr, offset: u64) -> GlobalAddr {
    GlobalAddr::from_raw(addr.raw().saturating_add(offset))
}
