use rackpool_client::{GlobalAddr, PublishCas, PublishMode};

use crate::entries::find::{LiveSlot, Located, LookupIntent};
use crate::entry::Form;
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::condition::Condition;
use crate::layout::hash::KeyHash;
use crate::layout::object::EntryObject;
use crate::layout::slot::{ObjectRef, SlotKind, SlotWord};
use crate::memory::words::read_word;
use crate::memory::{CasError, Memory, ReservedObject};

/// Which keys a put may store a value under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutMode {
    Always,
    IfAbsent,
    IfPresent,
}

impl PutMode {
    /// Whether the entry in `slot` prevents the put. Inserting over an expired entry needs a
    /// compare-and-put, which [`Handle::insert`] does; so [`PutMode::IfAbsent`] always refuses
    /// here.
    fn refuses(self, slot: &LiveSlot) -> bool {
        match self {
            Self::Always => false,
            Self::IfAbsent => true,
            Self::IfPresent => slot.form.is_over(),
        }
    }
}

/// Whether a value was stored, and whether the key was present before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutOutcome {
    pub(crate) done: bool,
    pub(crate) was_present: bool,
}

/// A key and the value to store, with the reserved object that encodes them once it is written. The
/// operation owns the object until a slot points to it.
pub(crate) struct PendingPut<'a, D> {
    pub(crate) hash: KeyHash,
    pub(crate) key: &'a [u8],
    pub(crate) form: Form,
    pub(crate) value: &'a [u8],
    /// The lot to give to the object; `None` for a random one.
    pub(crate) lot: Option<u32>,
    /// The condition that the object was last written with.
    pub(crate) condition: Option<Condition>,
    pub(crate) object: Option<(ObjectRef, D)>,
}

impl<M: Memory> Handle<M> {
    /// Prepares a store, without an object yet. The object may later grow by `more` bytes.
    pub(crate) fn prepare_put<'a>(
        &self,
        key: &'a [u8],
        form: Form,
        value: &'a [u8],
        more: usize,
    ) -> Result<PendingPut<'a, M::Reservation>, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let max = self.shared.memory.page_bytes();
        let bytes = EntryObject::bytes_for(key, form, value);
        match bytes.map(|bytes| (bytes.next_multiple_of(8) + more) as u64) {
            Some(bytes) if bytes <= max => {
                Ok(PendingPut { hash, key, form, value, lot: None, condition: None, object: None })
            }
            _ => {
                let expiry = if form.expires_ms == 0 { 0 } else { EntryObject::EXPIRY };
                let rest = EntryObject::HEADER + key.len() + expiry + more;
                let bytes = rest as u64 + value.len() as u64;
                Err(KvError::TooLarge { bytes, max })
            }
        }
    }

    /// The hash of `key`, or an error if the key is too long.
    pub(crate) fn hash(key: &[u8]) -> Result<KeyHash, KvError<M::Error>> {
        if key.len() > usize::from(u16::MAX) {
            return Err(KvError::KeyLength { bytes: key.len() });
        }
        Ok(KeyHash::of(key))
    }

    /// Writes the object, if there is none yet. With a condition, the object is always rewritten.
    pub(crate) fn write_put(
        &mut self,
        put: &mut PendingPut<'_, M::Reservation>,
        condition: Option<Condition>,
    ) -> Result<(), KvError<M::Error>> {
        let made = match put.object.take() {
            Some(made) if condition.is_none() => made,
            made => {
                let PendingPut { hash, key, form, value, lot, .. } = *put;
                EntryObject::encode(&mut self.staging, hash, key, form, value, condition);
                self.write_object(made.map(|(_, reservation)| reservation), lot)?
            }
        };
        (put.object, put.condition) = (Some(made), condition);
        Ok(())
    }

    /// Frees the object of a completed operation if it was not linked.
    pub(crate) fn discard(&mut self, put: PendingPut<'_, M::Reservation>) {
        if let Some((_, reservation)) = put.object {
            self.finish(reservation);
        }
    }

    /// Stores a value if `mode` allows it.
    pub(crate) fn store(
        &mut self,
        key: &[u8],
        form: Form,
        value: &[u8],
        mode: PutMode,
    ) -> Result<PutOutcome, KvError<M::Error>> {
        let mut put = self.prepare_put(key, form, value, 0)?;
        let result = self.try_store(&mut put, mode);
        self.discard(put);
        result
    }

    /// Stores what `put` prepares if `mode` allows it. The caller discards `put` afterwards.
    pub(crate) fn try_store(
        &mut self,
        put: &mut PendingPut<'_, M::Reservation>,
        mode: PutMode,
    ) -> Result<PutOutcome, KvError<M::Error>> {
        let intent =
            if mode == PutMode::Always { LookupIntent::Replace } else { LookupIntent::Write };
        loop {
            self.replaced = None;
            let located = self.locate(put.hash, put.key, intent)?;
            let (at, word, was_present) = match located {
                Located::Live(slot) if mode.refuses(&slot) => {
                    return Ok(PutOutcome { done: false, was_present: !slot.form.is_over() });
                }
                Located::Absent(_) if mode == PutMode::IfPresent => {
                    return Ok(PutOutcome { done: false, was_present: false });
                }
                Located::Live(slot) if !self.is_published(&slot)? => continue,
                Located::Live(slot) => {
                    self.replaced = Some((slot.form, slot.value));
                    (slot.at, slot.word, !slot.form.is_over())
                }
                Located::Absent(miss) => match miss.vacancy {
                    Some(vacancy) => (vacancy.at, vacancy.word, false),
                    None => {
                        self.make_room(&miss, put.hash)?;
                        continue;
                    }
                },
            };
            self.write_put(put, None)?;
            if self.link(at, word, put)? {
                if let Some((_, reservation)) = put.object.take() {
                    self.finish(reservation);
                }
                return Ok(PutOutcome { done: true, was_present });
            }
        }
    }

    /// Ensures that the object in the scratch buffer, which a search just read through `slot`, has
    /// a cleared owner word. Only then may it be unlinked (I5). `false`: the slot has changed.
    pub(crate) fn is_published(&mut self, slot: &LiveSlot) -> Result<bool, KvError<M::Error>> {
        let owner = EntryObject::owner_in(&self.scratch);
        if owner == 0 {
            return Ok(true);
        }
        let cleared = self.clear_owner(slot.word.object().addr, owner);
        let Err(error) = cleared else { return Ok(true) };
        // Another client may have freed the object, and its page may be gone.
        let now = SlotWord::from_raw(read_word(&self.shared.memory, slot.at)?);
        match error {
            _ if !now.is_unchanged(slot.word) => Ok(false),
            KvError::Memory(lost) if self.shared.memory.is_lost(&lost) => Ok(true),
            error => Err(error),
        }
    }

    /// Swaps the slot at `at` from `word` to a pointer to the written object; returns whether the
    /// slot still was `word`. The object that the slot pointed to is freed with the reservation.
    pub(crate) fn link(
        &mut self,
        at: GlobalAddr,
        word: SlotWord,
        put: &mut PendingPut<'_, M::Reservation>,
    ) -> Result<bool, KvError<M::Error>> {
        let Some((object, reservation)) = &mut put.object else { return Ok(false) };
        let new = word.pointing(*object, put.hash);
        let mode =
            put.condition.map_or(PublishMode::Plain, |known| PublishMode::Compare(known.stamp));
        let result = self.publish_slot(reservation, at, word, new, mode);
        if matches!(result, Err(KvError::OutcomeUnknown))
            && let Some((_, reservation)) = put.object.take()
        {
            // The slot may point to the object, or may have pointed to it.
            self.finish(reservation);
        }
        result
    }

    /// Publishes a reservation into a slot; returns whether the slot still was `word`. If the slot
    /// has an object, its head is in the scratch buffer; that of a new object is in the staging
    /// buffer.
    fn publish_slot(
        &mut self,
        reservation: &mut M::Reservation,
        at: GlobalAddr,
        word: SlotWord,
        new: SlotWord,
        mode: PublishMode,
    ) -> Result<bool, KvError<M::Error>> {
        let done = self.try_publish_slot(reservation, at, word, new, mode)?;
        if done {
            let growth =
                self.object_bytes(new, &self.staging) - self.object_bytes(word, &self.scratch);
            self.growth = self.growth.saturating_add(growth);
        }
        Ok(done)
    }

    /// The allocated size of the object of a slot, which begins with `head`, in bytes; 0 if the
    /// slot has none.
    fn object_bytes(&self, word: SlotWord, head: &[u8]) -> i64 {
        if word.kind() != SlotKind::Live {
            return 0;
        }
        let page_bytes = self.shared.memory.page_bytes();
        let large = || {
            if let Some(bytes) = EntryObject::extended_in(head) {
                return bytes;
            }
            let bytes = EntryObject::len_in(head).unwrap_or(0) as u64;
            // A damaged object may claim any length.
            bytes.checked_next_power_of_two().unwrap_or(page_bytes).min(page_bytes)
        };
        let bytes = word.object().whole_bytes().map_or_else(large, |bytes| bytes as u64);
        i64::try_from(bytes).unwrap_or(i64::MAX)
    }

    fn try_publish_slot(
        &mut self,
        reservation: &mut M::Reservation,
        at: GlobalAddr,
        word: SlotWord,
        new: SlotWord,
        mode: PublishMode,
    ) -> Result<bool, KvError<M::Error>> {
        let memory = &self.shared.memory;
        let replaced = (word.kind() == SlotKind::Live).then(|| word.object().addr);
        let (expected, new_raw, mask) = (word.raw(), new.raw(), SlotWord::CHANGES);
        let link = PublishCas { addr: at, expected, new: new_raw, mask, replaced, mode };
        match memory.publish(reservation, &link) {
            Ok(found) => Ok(found == expected),
            Err(CasError::GivenUp(_)) => {
                self.unreclaimed += 1;
                Err(KvError::OutcomeUnknown)
            }
            Err(CasError::Failed(error)) => Err(KvError::Memory(error)),
            Err(CasError::Indeterminate) => {
                let known = match read_word(memory, at).map(SlotWord::from_raw) {
                    Ok(now) if now.is_unchanged(word) => Some(false),
                    // Only this handle can store this word, which contains its object or its mark.
                    Ok(now) if now.is_unchanged(new) => Some(true),
                    Ok(now) if now.changes_since(word) == 1 => Some(false),
                    // The outcome stays unknown, also if this read fails.
                    _ => None,
                };
                match known {
                    Some(done) => {
                        memory.resolve(reservation, done);
                        Ok(done)
                    }
                    None => {
                        self.unreclaimed += 1;
                        Err(KvError::OutcomeUnknown)
                    }
                }
            }
        }
    }

    /// Deletes a key, only if it has the value `wanted` if one is given; returns whether it was
    /// present.
    pub(crate) fn remove(
        &mut self,
        key: &[u8],
        wanted: Option<&[u8]>,
    ) -> Result<bool, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let intent = if wanted.is_none() { LookupIntent::Replace } else { LookupIntent::Write };
        loop {
            let Located::Live(slot) = self.locate(hash, key, intent)? else {
                return Ok(false);
            };
            if wanted.is_some_and(|wanted| self.scratch[slot.value.clone()] != *wanted) {
                return Ok(false);
            }
            if self.unlink(&slot)? {
                return Ok(!slot.form.is_over());
            }
        }
    }

    /// Deletes the entry that a search just found; returns whether it was still there.
    pub(crate) fn unlink(&mut self, slot: &LiveSlot) -> Result<bool, KvError<M::Error>> {
        if !self.is_published(slot)? {
            return Ok(false);
        }
        let mut reservation = self.shared.memory.tombstone().map_err(KvError::Memory)?;
        let new = slot.word.deleted((reservation.token() >> 32) as u32);
        let mode = PublishMode::Settle(new.settled().raw());
        let result = self.publish_slot(&mut reservation, slot.at, slot.word, new, mode);
        self.finish(reservation);
        result
    }
}
