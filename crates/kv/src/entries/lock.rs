//! The write steps of a transaction on one entry.

use crate::entries::find::{Located, LookupIntent};
use crate::entry::{Entry, Form, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::transaction_view::{ViewCell, WriteSetEntry};
use crate::locks::entry_lock::{EntryLock, LockSide};
use crate::locks::id::TransactionId;
use crate::memory::Memory;

const LOCKED: Form = Form { kind: ValueKind::LOCK, expires_ms: 0 };

impl<M: Memory> Handle<M> {
    /// Applies a change if the entry has its version; returns whether it did.
    pub(crate) fn write_if_current(
        &mut self,
        write: &WriteSetEntry,
    ) -> Result<bool, KvError<M::Error>> {
        let WriteSetEntry { key, version, new, .. } = write;
        let hash = Self::hash(key)?;
        loop {
            let done = match self.locate(hash, key, LookupIntent::Write)? {
                Located::Live(slot) => {
                    if self.version_at(&slot) != *version {
                        return Ok(false);
                    }
                    match new {
                        Some((form, value)) => {
                            self.replace_entry(&slot, key, Entry { form: *form, value }, None)?
                        }
                        None => self.unlink(&slot)?,
                    }
                }
                Located::Absent(_) if version.is_some() => return Ok(false),
                Located::Absent(miss) => match new {
                    Some((form, value)) => self.fill(&miss, key, *form, value)?,
                    None => true,
                },
            };
            if done {
                return Ok(true);
            }
        }
    }

    /// Replaces an entry by a lock of the transaction `id` if the entry has its version; returns
    /// whether it did.
    pub(crate) fn lock(
        &mut self,
        id: TransactionId,
        write: &WriteSetEntry,
    ) -> Result<bool, KvError<M::Error>> {
        let WriteSetEntry { key, version, new, .. } = write;
        let hash = Self::hash(key)?;
        let lot = rand::random();
        let new =
            new.as_ref().map(|(form, value)| LockSide { form: *form, lot, value: &value[..] });
        let mut bytes = Vec::new();
        loop {
            let located = self.locate(hash, key, LookupIntent::Write)?;
            let (now, old) = match &located {
                Located::Live(slot) => {
                    let value = &self.scratch[slot.value.clone()];
                    let old = LockSide { form: slot.form, lot: slot.lot, value };
                    let version = self.version_at(slot);
                    (version, version.is_some().then_some(old))
                }
                Located::Absent(_) => (None, None),
            };
            if now != *version {
                return Ok(false);
            }
            encode_lock(&mut bytes, id, old.as_ref(), new.as_ref())?;
            let done = match located {
                Located::Live(slot) => {
                    self.replace_entry(&slot, key, Entry { form: LOCKED, value: &bytes }, None)?
                }
                Located::Absent(miss) => self.fill(&miss, key, LOCKED, &bytes)?,
            };
            if done {
                return Ok(true);
            }
        }
    }

    /// Replaces an entry, whatever its version, by a lock of the insistent transaction `id`.
    /// Returns the entry; it is also the lock's new side until the transaction changes it.
    pub(crate) fn lock_as_it_is(
        &mut self,
        id: TransactionId,
        key: &[u8],
    ) -> Result<ViewCell, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let mut bytes = Vec::new();
        loop {
            let (done, cell) = match self.locate(hash, key, LookupIntent::Write)? {
                Located::Live(slot) => {
                    let version = self.version_at(&slot);
                    let value = self.scratch[slot.value.clone()].to_vec();
                    let old = LockSide { form: slot.form, lot: slot.lot, value: &value[..] };
                    let old = version.is_some().then_some(old);
                    encode_lock(&mut bytes, id, old.as_ref(), old.as_ref())?;
                    let done = self.replace_entry(
                        &slot,
                        key,
                        Entry { form: LOCKED, value: &bytes },
                        None,
                    )?;
                    let now = version.is_some().then_some((slot.form, value));
                    (done, ViewCell { version, now, is_written: false })
                }
                Located::Absent(miss) => {
                    encode_lock(&mut bytes, id, None, None)?;
                    (self.fill(&miss, key, LOCKED, &bytes)?, ViewCell::default())
                }
            };
            if done {
                return Ok(cell);
            }
        }
    }

    /// Sets the new side of a lock of an insistent transaction; returns whether the lock was there.
    pub(crate) fn change_lock(
        &mut self,
        id: TransactionId,
        write: &WriteSetEntry,
    ) -> Result<bool, KvError<M::Error>> {
        let WriteSetEntry { key, new, .. } = write;
        let hash = Self::hash(key)?;
        let lot = rand::random();
        let new =
            new.as_ref().map(|(form, value)| LockSide { form: *form, lot, value: &value[..] });
        let mut bytes = Vec::new();
        loop {
            let Located::Live(slot) = self.locate_raw(hash, key, LookupIntent::Write)? else {
                return Ok(false);
            };
            let found = &self.scratch[slot.value.clone()];
            let lock = EntryLock::decode(found).filter(|lock| lock.id == id);
            let Some(lock) = lock.filter(|_| slot.form.kind == ValueKind::LOCK) else {
                return Ok(false);
            };
            let old = lock.side(false);
            let old =
                old.map(|old| LockSide { form: old.form, lot: old.lot, value: &found[old.value] });
            encode_lock(&mut bytes, id, old.as_ref(), new.as_ref())?;
            if self.replace_entry(&slot, key, Entry { form: LOCKED, value: &bytes }, None)? {
                return Ok(true);
            }
        }
    }

    /// Replaces the lock of this transaction on `key` by the entry that it stands for. The owner
    /// and every other client write the same entry.
    pub(crate) fn resolve_lock(
        &mut self,
        key: &[u8],
        id: TransactionId,
        committed: bool,
    ) -> Result<(), KvError<M::Error>> {
        let hash = Self::hash(key)?;
        loop {
            let Located::Live(slot) = self.locate_raw(hash, key, LookupIntent::Write)? else {
                return Ok(());
            };
            if slot.form.kind != ValueKind::LOCK {
                return Ok(());
            }
            let bytes = self.scratch[slot.value.clone()].to_vec();
            let Some(lock) = EntryLock::decode(&bytes).filter(|lock| lock.id == id) else {
                return Ok(());
            };
            let done = match lock.side(committed) {
                Some(LockSide { form, lot, value }) => {
                    self.replace_entry(&slot, key, Entry { form, value: &bytes[value] }, Some(lot))
                }
                None => self.unlink(&slot),
            };
            match done {
                Ok(true) => return Ok(()),
                Ok(false) | Err(KvError::OutcomeUnknown) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes a lock into `bytes`, replacing the buffer's content.
fn encode_lock<E>(
    bytes: &mut Vec<u8>,
    id: TransactionId,
    old: Option<&LockSide<&[u8]>>,
    new: Option<&LockSide<&[u8]>>,
) -> Result<(), KvError<E>> {
    let max = u64::from(u32::MAX);
    EntryLock::encode(bytes, id, old, new).ok_or(KvError::TooLarge { bytes: max, max })
}
