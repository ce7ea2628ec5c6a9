use crate::entries::find::{Located, LookupIntent};
use crate::entries::store::PutMode;
use crate::entry::{EntryChange, Form, ValueKind};
use crate::error::KvError;
use crate::handle::Handle;
use crate::memory::Memory;

impl<M: Memory> Handle<M> {
    /// Reads the value of `key` into `value`, replacing the buffer's content. Returns whether the
    /// key is present; if it is absent, `value` is empty.
    ///
    /// # Errors
    /// [`KvError::OtherKind`] if the value is not a string. [`KvError`] for a key that is too long,
    /// for damaged bytes, or the memory's own error.
    #[inline]
    pub fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, KvError<M::Error>> {
        value.clear();
        if self.view.is_some() {
            return self.get_cell(key, value);
        }
        match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) if slot.form.is_over() => Ok(false),
            Located::Live(slot) if slot.form.kind == ValueKind::STRING => {
                value.extend_from_slice(&self.scratch[slot.value]);
                Ok(true)
            }
            Located::Live(slot) => Err(KvError::OtherKind { found: slot.form.kind }),
            Located::Absent(_) => Ok(false),
        }
    }

    /// Stores `value` under `key`. Returns whether it replaced a value, of any kind.
    ///
    /// # Errors
    /// [`KvError`]: key or value too long, a full table or pool, damaged bytes, or the memory's own
    /// error. [`KvError::OutcomeUnknown`] if it is unknown whether the change was made.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        self.put_entry(key, Form::PLAIN, value)
    }

    /// Stores `value` under `key` if the key is absent. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_none() {
            let stored = self.store(key, Form::PLAIN, value, PutMode::IfAbsent)?;
            if stored.done || stored.was_present {
                return Ok(stored.done);
            }
        }
        // The entry that was found has expired.
        self.modify(key, |entry, made| {
            if entry.is_some() {
                return EntryChange::Keep;
            }
            made.extend_from_slice(value);
            EntryChange::Put(Form::PLAIN)
        })
    }

    /// Stores `value` under `key` if the key is present. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            let is_present = self.cell(key)?.entry().is_some();
            return if is_present { self.put(key, value).map(|_| true) } else { Ok(false) };
        }
        Ok(self.store(key, Form::PLAIN, value, PutMode::IfPresent)?.done)
    }

    /// Deletes `key`. Returns whether the key was present.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            return self.delete_cell(key, None);
        }
        self.remove(key, None)
    }

    /// Stores `new` under `key` if the current value is `expected`; `None` means that the key is
    /// absent. Returns whether it stored the value.
    ///
    /// # Errors
    /// As [`Handle::put`]; [`KvError::OtherKind`] if the value is not a string.
    pub fn compare_and_put(
        &mut self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        match expected {
            None => self.insert(key, new),
            Some(expected) if self.view.is_some() => self.exchange_cell(key, expected, new),
            Some(expected) => self.exchange(key, expected, new),
        }
    }

    /// Deletes `key` if its value is `expected`. Returns whether it deleted the key.
    ///
    /// Unlike [`compare_and_put`](Self::compare_and_put), it compares the slot word, not the value,
    /// in its deciding step. If this client is stopped during the call while the slot changes an
    /// exact multiple of 1024 times, and the last value is at the address of the expected one, that
    /// value is deleted. The operation is therefore meant for values that are never replaced, only
    /// deleted.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn compare_and_delete(
        &mut self,
        key: &[u8],
        expected: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        if self.view.is_some() {
            return self.delete_cell(key, Some(expected));
        }
        self.remove(key, Some(expected))
    }
}
