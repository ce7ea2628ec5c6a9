//! Entries that are the start of a larger object, which their caller has made and finds again.

use rackpool_client::GlobalAddr;

use crate::entries::find::{LiveSlot, Located, LookupIntent};
use crate::entries::store::{PendingPut, PutMode};
use crate::entries::verify::Peek;
use crate::entry::{Form, ValueKind, Version};
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::bucket::{slot_addr, slots_in};
use crate::layout::object::EntryObject;
use crate::layout::segment::SegmentHeader;
use crate::layout::slot::SlotKind;
use crate::memory::Memory;
use crate::memory::words::read_word;

/// Where the entry of a key lies, and which of the key's successive entries it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    /// The address of the object that the entry begins.
    pub addr: GlobalAddr,
    /// The version of the entry.
    pub version: Version,
}

impl<M: Memory> Handle<M> {
    /// The length in bytes of an entry without expiry: what [`insert_reserved`] writes to the start
    /// of the object.
    ///
    /// [`insert_reserved`]: Self::insert_reserved
    #[must_use]
    pub const fn entry_bytes(key_len: usize, value_len: usize) -> usize {
        EntryObject::HEADER + key_len + value_len
    }

    /// Reads the value of `key` into `value` like [`get`](Self::get), and returns where the entry
    /// lies; `None` if the key is absent. Not for transactions: reads what is stored, not the
    /// handle's view.
    ///
    /// ```
    /// use rackpool_kv::{KvError, Memory, ReservedObject, Table};
    ///
    /// /// Stores an object of 4 KiB whose first bytes are the entry, and finds it by the key.
    /// fn demo<M: Memory>(table: &Table<M>) -> Result<(), KvError<M::Error>> {
    ///     let mut handle = table.handle();
    ///     let object = table.memory().reserve(4096).map_err(KvError::Memory)?;
    ///     let addr = object.addr();
    ///     // The caller writes what follows the entry, before the object can be found.
    ///     assert!(handle.insert_reserved(b"key", b"value", object)?);
    ///     let mut value = Vec::new();
    ///     let place = handle.get_placed(b"key", &mut value)?.expect("it was inserted");
    ///     assert_eq!((place.addr, &value[..]), (addr, &b"value"[..]));
    ///     assert!(handle.delete_placed(b"key", &place)?);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Handle::get`].
    pub fn get_placed(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<Option<EntryPlace>, KvError<M::Error>> {
        value.clear();
        let Located::Live(slot) = self.locate(Self::hash(key)?, key, LookupIntent::Read)? else {
            return Ok(None);
        };
        let Some(version) = self.version_at(&slot) else { return Ok(None) };
        value.extend_from_slice(&self.scratch[slot.value]);
        Ok(Some(EntryPlace { addr: slot.word.object().addr, version }))
    }

    /// Stores `value` under `key` if the key is absent, as the start of an object that the caller
    /// has reserved and that is at least as long as the [entry](Self::entry_bytes) and aligned to
    /// 64 bytes. Returns whether it stored the value. Ends the reservation in any case, and frees
    /// the object if it was not stored. An entry that has expired counts as present.
    ///
    /// # Errors
    /// As [`Handle::put`]. After [`KvError::OutcomeUnknown`] the object may have been stored.
    pub fn insert_reserved(
        &mut self,
        key: &[u8],
        value: &[u8],
        reservation: M::Reservation,
    ) -> Result<bool, KvError<M::Error>> {
        self.insert_object(key, Form::PLAIN, value, reservation)
    }

    /// As [`insert_reserved`](Self::insert_reserved), for an object with extents: the entry has the
    /// kind [`ValueKind::EXTENDED`], and `value` begins with the bytes that the object and its
    /// extents take together, u64, little-endian. [`Table::walk`](crate::Table::walk) and
    /// [`take_growth`](Self::take_growth) count them.
    ///
    /// # Errors
    /// As [`insert_reserved`](Self::insert_reserved).
    pub fn insert_extended(
        &mut self,
        key: &[u8],
        value: &[u8],
        reservation: M::Reservation,
    ) -> Result<bool, KvError<M::Error>> {
        let form = Form { kind: ValueKind::EXTENDED, expires_ms: 0 };
        self.insert_object(key, form, value, reservation)
    }

    fn insert_object(
        &mut self,
        key: &[u8],
        form: Form,
        value: &[u8],
        reservation: M::Reservation,
    ) -> Result<bool, KvError<M::Error>> {
        let mut put = self.placed_put(key, form, value, reservation)?;
        let result = self.try_store(&mut put, PutMode::IfAbsent);
        self.discard(put);
        Ok(result?.done)
    }

    /// Writes an entry to the start of an object that the caller has reserved.
    fn placed_put<'a>(
        &mut self,
        key: &'a [u8],
        form: Form,
        value: &'a [u8],
        reservation: M::Reservation,
    ) -> Result<PendingPut<'a, M::Reservation>, KvError<M::Error>> {
        let hash = match self.prepare_put(key, form, value, 0) {
            Ok(PendingPut { hash, .. }) => hash,
            Err(error) => {
                self.finish(reservation);
                return Err(error);
            }
        };
        EntryObject::encode(&mut self.staging, hash, key, form, value, None);
        let (mut object, reservation) = self.write_object(Some(reservation), None)?;
        if form.kind == ValueKind::EXTENDED {
            object = object.of_any_size();
        }
        let (lot, condition) = (None, None);
        Ok(PendingPut {
            hash,
            key,
            form,
            value,
            lot,
            condition,
            object: Some((object, reservation)),
        })
    }

    /// Deletes `key` if its entry is the one at `place`. Returns whether it deleted the entry; the
    /// object that the entry begins is then freed.
    ///
    /// # Errors
    /// As [`Handle::delete`].
    pub fn delete_placed(
        &mut self,
        key: &[u8],
        place: &EntryPlace,
    ) -> Result<bool, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        loop {
            let Located::Live(slot) = self.locate(hash, key, LookupIntent::Write)? else {
                return Ok(false);
            };
            if !self.is_at(&slot, place) {
                return Ok(false);
            }
            if self.unlink(&slot)? {
                return Ok(true);
            }
        }
    }

    /// Replaces the entry of `key` if it is the one at `place`. Returns whether it did; the object
    /// of the former entry is then freed. With a reservation the new entry begins that object, as
    /// after [`insert_reserved`](Self::insert_reserved); the call ends the reservation in any case.
    ///
    /// # Errors
    /// As [`Handle::put`]. After [`KvError::OutcomeUnknown`] the entry may have been replaced.
    pub fn replace_placed(
        &mut self,
        key: &[u8],
        place: &EntryPlace,
        value: &[u8],
        reservation: Option<M::Reservation>,
    ) -> Result<bool, KvError<M::Error>> {
        let mut put = match reservation {
            Some(reservation) => self.placed_put(key, Form::PLAIN, value, reservation)?,
            None => self.prepare_put(key, Form::PLAIN, value, 0)?,
        };
        let result = self.try_replace(&mut put, place);
        self.discard(put);
        result
    }

    fn try_replace(
        &mut self,
        put: &mut PendingPut<'_, M::Reservation>,
        place: &EntryPlace,
    ) -> Result<bool, KvError<M::Error>> {
        while let Located::Live(slot) = self.locate(put.hash, put.key, LookupIntent::Write)?
            && self.is_at(&slot, place)
        {
            if !self.is_published(&slot)? {
                continue;
            }
            self.write_put(put, None)?;
            if self.link(slot.at, slot.word, put)? {
                if let Some((_, reservation)) = put.object.take() {
                    self.finish(reservation);
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the entry that a search just found is the one at `place`.
    fn is_at(&self, slot: &LiveSlot, place: &EntryPlace) -> bool {
        slot.word.object().addr == place.addr && self.version_at(slot) == Some(place.version)
    }

    /// Calls `visit` with key, value and place of each string whose object lies at an address for
    /// which `wants` returns true. Reads no other object.
    ///
    /// For statistics and for searches whose results are checked again: entries that change during
    /// the call, and damaged ones, may be left out; one may be visited twice if the table grows.
    ///
    /// # Errors
    /// As [`Handle::scan`]. After an error the visit is incomplete.
    pub fn for_each_placed(
        &mut self,
        wants: impl Fn(GlobalAddr) -> bool,
        mut visit: impl FnMut(&[u8], &[u8], EntryPlace),
    ) -> Result<(), KvError<M::Error>> {
        let mut bytes = vec![0; self.shared.layout.shape.slots() * 8];
        let mut at = 0;
        while let Some(hash) = self.suffix_at(at) {
            let segment = self.resolve(hash)?;
            let first = slot_addr(segment.addr(), 0);
            self.shared.memory.read(first, &mut bytes).map_err(KvError::Memory)?;
            let tag = SegmentHeader::tag_addr(segment.addr());
            if read_word(&self.shared.memory, tag)? != segment.tag(hash) {
                self.refresh(hash, segment)?;
                continue;
            }
            for (index, word) in slots_in(&bytes).enumerate() {
                let addr = word.object().addr;
                if word.kind() != SlotKind::Live || !wants(addr) {
                    continue;
                }
                let slot = slot_addr(segment.addr(), index);
                let Peek::Whole(parts, _) = self.peek(slot, word, segment, hash)? else { continue };
                if parts.form.kind == ValueKind::STRING && !parts.form.is_over() {
                    let value = &self.scratch[parts.value];
                    let lot = EntryObject::lot_in(&self.scratch);
                    let version = Version::of(lot, parts.form, value);
                    visit(&self.scratch[parts.key], value, EntryPlace { addr, version });
                }
            }
            at += self.suffixes_of(segment);
        }
        Ok(())
    }
}
