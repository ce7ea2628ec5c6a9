//! The steps of the protocol, in the tables and the memory of the pool.

use std::sync::Arc;
use std::time::Instant;

use rackpool_client::{GlobalAddr, Pin, PinnedBytesMut, Pool, RackId};
use rackpool_kv::{EntryPlace, Version, now_ms};

use crate::cast;
use crate::chain;
use crate::error::{StoreError, but_lost};
use crate::layout::filling::Filling;
use crate::layout::head::{FileNumber, Head, HeadLayout, at};
use crate::layout::keys::Keys;
use crate::layout::registration::Registration;
use crate::protocol::{Loaded, Replica, Saved, Source, Steps, Words};
use crate::spill::LockedFile;
use crate::store::{Handles, PlacedHead, Store};
use crate::transfer::{PoolTransfer, Progress};
use crate::unsealed::FixedMemory;
use crate::wait::Pauses;

/// What a store has of one id.
pub(crate) struct Entries<'a> {
    store: &'a Store,
    handles: &'a mut Handles,
    keys: &'a Keys,
    layout: HeadLayout,
    filler: Option<&'a mut dyn Fill>,
    /// Where the search that was successful last found something.
    found_in: Source,
    /// Whether an object was brought from another rack.
    has_copied: bool,
}

/// Brings the bytes of an object in another way than by reads of its rack or of a chain.
pub(crate) trait Fill {
    /// Fills the memory of a replica. Returns whether the bytes have the object's checksum.
    fn fill(&mut self, object: &PlacedHead, into: ReplicaMemory<'_>) -> Result<bool, StoreError>;
}

/// The memory of a replica that is to be filled.
pub(crate) struct ReplicaMemory<'a> {
    /// The address of its head.
    pub(crate) addr: GlobalAddr,
    /// The number of its extents.
    pub(crate) extents: u32,
    pub(crate) bytes: &'a mut PinnedBytesMut<Arc<Pool>>,
    /// Stores how many bytes are there, from the first one on. To be called at least every 500 ms:
    /// programs that wait see that the replica is not abandoned.
    pub(crate) grown: &'a mut dyn FnMut(u64),
}

/// The memory of a replica that is being filled.
#[derive(Debug)]
pub(crate) struct Filled {
    /// `None` after an error.
    bytes: Option<PinnedBytesMut<Arc<Pool>>>,
    /// Dropped last: memory that is being written is not freed.
    memory: FixedMemory,
}

impl<'a> Entries<'a> {
    pub(crate) const fn new(store: &'a Store, handles: &'a mut Handles, keys: &'a Keys) -> Self {
        let layout = HeadLayout::of(keys.id_len());
        let (filler, found_in) = (None, Source::Objects);
        Self { store, handles, keys, layout, filler, found_in, has_copied: false }
    }

    /// The same, with another way to bring bytes from other racks.
    pub(crate) fn with_filler(self, filler: Option<&'a mut (dyn Fill + '_)>) -> Self {
        Self { filler: filler.map(|filler| filler as &mut dyn Fill), ..self }
    }

    /// Counts a get that these steps were made for.
    pub(crate) fn count_get(&self, is_there: bool) {
        let counters = &self.store.shared.counters;
        let is_far = self.has_copied || self.found_in == Source::Replicas;
        let counter = match is_there {
            false => &counters.absent_gets,
            true if is_far => &counters.far_gets,
            true => &counters.local_gets,
        };
        counter.add(1);
    }
}

impl Steps for Entries<'_> {
    type Error = StoreError;
    type Pin = Pin<Arc<Pool>>;
    type Memory = Filled;
    type File = LockedFile;

    fn rack(&self) -> RackId {
        self.store.pool().rack()
    }

    fn is_local(&self, head: &PlacedHead) -> Result<bool, StoreError> {
        Ok(self.store.pool().is_in_own_part(head.place.addr)?)
    }

    fn find(&mut self, source: Source) -> Result<Option<PlacedHead>, StoreError> {
        let found = match source {
            Source::Objects => self.handles.find(self.keys.object()),
            Source::Replicas => self.handles.find_replica(self.keys.object()),
        }?;
        if found.is_some() {
            self.found_in = source;
        }
        Ok(found)
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
            self.handles.replicas = Some(self.store.own_replica_table()?);
        }
        Ok(!was_open)
    }

    fn allocate(&mut self, object: &PlacedHead) -> Result<Replica<Filled>, StoreError> {
        let memory = self.store.allocate_head(self.layout, object.head.len())?;
        memory.write_words(now_ms(), 0)?;
        let head = Head { rack: self.rack(), extents: 0, ..object.head };
        let (addr, bytes) = (memory.addr(), Some(memory.map_head_mut()?));
        Ok(Replica { memory: Filled { bytes, memory }, addr, head })
    }

    fn insert_replica(&mut self, replica: &mut Replica<Filled>) -> Result<bool, StoreError> {
        let Some(table) = &mut self.handles.replicas else { return Ok(false) };
        let Filled { bytes, memory } = &mut replica.memory;
        let Some(bytes) = bytes else { return Ok(false) };
        let reservation = memory.reserve_written(bytes)?;
        Ok(table.insert_reserved(self.keys.object(), &replica.head.encode(), reservation)?)
    }

    fn remove_replica_of(&mut self, rack: RackId) -> Result<(), StoreError> {
        let remove = || {
            if let Some(mut table) = self.store.replica_table_if_any(rack)? {
                table.delete(self.keys.object())?;
            }
            Ok(())
        };
        but_lost(remove())
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

    fn is_lost(error: &StoreError) -> bool {
        error.is_lost()
    }

    fn replace_lost_registration(&mut self, version: Version) -> Result<(), StoreError> {
        let key = self.keys.registration();
        let racks = self.store.racks_with_replicas()?.into_iter();
        let new = racks.fold(Registration::new(version).closed(), Registration::with);
        self.handles.objects.replace_unreadable(key.object(), &new.encode())?;
        Ok(())
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
        self.store.words_of(addr, self.layout)
    }

    fn set_used(&mut self, addr: GlobalAddr) -> Result<(), StoreError> {
        let at = at(addr, self.layout.last_use());
        Ok(self.store.pool().write(at, &now_ms().to_le_bytes())?)
    }

    fn set_ready(&mut self, replica: &Replica<Filled>) -> Result<(), StoreError> {
        let len = replica.head.len();
        let word = Filling::of(replica.head.extents, len, len).ready().encode();
        let at = at(replica.addr, self.layout.filling());
        Ok(self.store.pool().write(at, &word.to_le_bytes())?)
    }

    fn fill(
        &mut self,
        replica: &mut Replica<Filled>,
        object: &PlacedHead,
        source: Option<RackId>,
    ) -> Result<(), StoreError> {
        let Replica { memory: Filled { bytes, memory }, addr, head } = replica;
        let Some(head_bytes) = bytes.take() else {
            return Err(StoreError::Damaged { addr: *addr });
        };
        self.store.allocate_extents(memory)?;
        memory.write_words(now_ms(), 0)?;
        head.extents = memory.extents_len();
        let progress = Progress::begin(&head_bytes, self.layout, head.extents, head.len())?;
        let bytes = bytes.insert(memory.map_extents_mut(head_bytes)?);
        let mut followed = 0;
        let is_right = match &mut self.filler {
            Some(filler) => {
                let (addr, extents) = (*addr, head.extents);
                let grown = &mut |done| progress.store(done);
                filler.fill(object, ReplicaMemory { addr, extents, bytes, grown })?
            }
            None => {
                let mut transfer =
                    PoolTransfer::new(self.store, self.keys, object, source, bytes, progress);
                let is_right = chain::bring(&mut transfer)?;
                followed = transfer.followed;
                is_right
            }
        };
        if !is_right {
            return Err(StoreError::Damaged { addr: object.place.addr });
        }
        self.has_copied = true;
        let counters = &self.store.shared.counters;
        counters.transfers.add(1);
        counters.transferred_bytes.add(object.head.len());
        counters.chained_bytes.add(followed);
        Ok(())
    }

    fn save(
        &mut self,
        pin: Pin<Arc<Pool>>,
        object: &PlacedHead,
    ) -> Result<Option<Saved<LockedFile>>, StoreError> {
        let last_use_ms = self.words(object.place.addr)?.last_use_ms;
        if let Some(number) = self.file_of(object)?
            && self.store.spill_folder()?.has(self.keys, number, object.head.len())
        {
            return Ok(Some(Saved { number, new_file: None }));
        }
        let bytes = self.store.map(pin, &object.head, self.layout)?;
        let (number, file) = self.store.write_file(self.keys, object, &bytes)?;
        if self.words(object.place.addr)?.last_use_ms > last_use_ms {
            self.delete_file(number);
            return Ok(None);
        }
        Ok(Some(Saved { number, new_file: Some(file) }))
    }

    fn replace_by_stub(
        &mut self,
        object: &PlacedHead,
        file: FileNumber,
    ) -> Result<bool, StoreError> {
        let (key, stub) = (self.keys.object(), object.head.encode_stub(file));
        Ok(self.handles.objects.replace_placed(key, &object.place, &stub, None)?)
    }

    fn load(&mut self, stub: &PlacedHead) -> Result<Option<Loaded<Self>>, StoreError> {
        let Some(number) = stub.head.file else { return Ok(None) };
        let mut file = self.store.lock_file(self.keys, number)?;
        if self.find(Source::Objects)? != Some(*stub) {
            return Ok(None);
        }
        let memory = self.store.read_file(self.keys, &stub.head, &mut file)?;
        let addr = memory.addr();
        // This program owns the memory, so the pin counts, whether it is published or not.
        let pin = self.pin(addr)?;
        let head = Head { extents: memory.extents_len(), file: None, ..stub.head };
        let memory = Filled { bytes: None, memory };
        Ok(Some(Loaded { object: Replica { memory, addr, head }, pin, file }))
    }

    fn replace_by_copy(
        &mut self,
        found: &PlacedHead,
        copy: &mut Replica<Filled>,
    ) -> Result<bool, StoreError> {
        // Nobody writes it any more.
        drop(copy.memory.bytes.take());
        let memory = &mut copy.memory.memory;
        memory.write_words(now_ms(), found.head.file.map_or(0, FileNumber::get))?;
        let (key, head) = (self.keys.object(), copy.head.encode());
        let reservation = memory.reserve()?;
        let objects = &mut self.handles.objects;
        let is_replaced = objects.replace_placed(key, &found.place, &head, Some(reservation))?;
        if is_replaced && found.head.is_spilled() {
            self.store.shared.counters.restores.add(1);
            self.store.shared.counters.restored_bytes.add(found.head.len());
        }
        Ok(is_replaced)
    }

    fn ask_to_restore(&mut self, stub: &PlacedHead) -> Result<(), StoreError> {
        cast::ask_to_restore(self.store, self.handles, self.keys, stub)
    }

    fn file_of(&mut self, found: &PlacedHead) -> Result<Option<FileNumber>, StoreError> {
        if found.head.is_spilled() {
            return Ok(found.head.file);
        }
        let mut word = [0; 8];
        self.store.pool().read(at(found.place.addr, self.layout.filling()), &mut word)?;
        Ok(FileNumber::new(u64::from_le_bytes(word)))
    }

    fn lock_unused(&mut self, file: FileNumber) -> Result<Option<LockedFile>, StoreError> {
        self.store.lock_unused_file(self.keys, file)
    }

    fn delete_file(&mut self, file: FileNumber) {
        // A file that can't be removed now is removed by a later sweep.
        let _ = self.store.spill_folder().map(|folder| folder.delete(self.keys, file));
    }

    fn check_in_use(&mut self) -> Result<(), StoreError> {
        self.store.check_in_use()
    }

    fn wait(&mut self, replica: &PlacedHead) -> Result<(), StoreError> {
        let mut pauses = Pauses::default();
        loop {
            let look = Instant::now();
            self.check_in_use()?;
            // If the replica is gone, these are other words, or none.
            let words = self.words(replica.place.addr);
            if self.find(Source::Replicas)? != Some(*replica) {
                return Ok(());
            }
            let words = words?;
            if !words.is_brought() {
                return Ok(());
            }
            std::thread::sleep(pauses.next(look.elapsed()));
        }
    }
}

impl Store {
    /// Reads the words of a head that change.
    pub(crate) fn words_of(
        &self,
        addr: GlobalAddr,
        layout: HeadLayout,
    ) -> Result<Words, StoreError> {
        let (last_use_ms, filling) = self.filling_of(addr, layout)?;
        let idle_ms = now_ms().saturating_sub(last_use_ms);
        let ready = filling.extents.filter(|_| filling.is_ready);
        Ok(Words { last_use_ms, idle_ms, ready })
    }

    /// Reads the time of an object's last use; 0 if it is in a file.
    pub(crate) fn last_use_of(
        &self,
        object: &PlacedHead,
        layout: HeadLayout,
    ) -> Result<u64, StoreError> {
        if object.head.is_spilled() {
            return Ok(0);
        }
        Ok(self.words_of(object.place.addr, layout)?.last_use_ms)
    }

    /// Reads the time of a head's last use, and how far it is filled if it is that of a replica.
    pub(crate) fn filling_of(
        &self,
        addr: GlobalAddr,
        layout: HeadLayout,
    ) -> Result<(u64, Filling), StoreError> {
        let mut words = [0; 16];
        self.pool().read(at(addr, layout.last_use()), &mut words)?;
        let word =
            |at: usize| words[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        Ok((word(0), Filling::decode(word(8))))
    }
}
