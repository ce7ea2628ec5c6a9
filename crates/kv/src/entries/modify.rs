use rackpool_client::GlobalAddr;

use crate::entries::find::{LiveSlot, Located, LookupIntent, Miss};
use crate::entries::store::PutMode;
use crate::entry::{Entry, EntryChange, Form, Version};
use crate::error::KvError;
use crate::handle::Handle;
use crate::layout::condition::Condition;
use crate::layout::hash::KeyHash;
use crate::layout::slot::SlotWord;
use crate::memory::Memory;

impl<M: Memory> Handle<M> {
    /// Reads the entry of `key`, of any kind; `None` if the key is absent or the entry has expired.
    /// The result borrows this handle's buffer.
    ///
    /// # Errors
    /// As [`Handle::get`], for entries of any kind.
    #[inline]
    pub fn read(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>, KvError<M::Error>> {
        if self.view.is_some() {
            return Ok(self.cell(key)?.entry());
        }
        match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) => Ok(self.entry_at(&slot)),
            Located::Absent(_) => Ok(None),
        }
    }

    /// As [`read`](Self::read), but returns also an entry that has expired and is still stored. Not
    /// for transactions: reads what is stored, not the handle's view.
    ///
    /// # Errors
    /// As [`Handle::read`].
    pub fn read_stored(&mut self, key: &[u8]) -> Result<Option<Entry<'_>>, KvError<M::Error>> {
        Ok(match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) => {
                Some(Entry { form: slot.form, value: &self.scratch[slot.value] })
            }
            Located::Absent(_) => None,
        })
    }

    /// The entry that the last [`put_entry`](Self::put_entry) of this handle replaced, expired or
    /// not; `None` if there was none, or within a transaction. To be called directly after it.
    #[inline]
    #[must_use]
    pub fn replaced(&self) -> Option<Entry<'_>> {
        let (form, value) = self.replaced.clone()?;
        Some(Entry { form, value: self.scratch.get(value)? })
    }

    /// The version of the entry of `key`; `None` if the key is absent or the entry has expired.
    ///
    /// # Errors
    /// As [`Handle::read`].
    pub fn version(&mut self, key: &[u8]) -> Result<Option<Version>, KvError<M::Error>> {
        if self.view.is_some() {
            return Ok(self.cell(key)?.version);
        }
        match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) => Ok(self.version_at(&slot)),
            Located::Absent(_) => Ok(None),
        }
    }

    /// Stores `value` under `key` with this kind and expiry. Returns whether it replaced an entry.
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn put_entry(
        &mut self,
        key: &[u8],
        form: Form,
        value: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        Self::check_kind(form)?;
        if self.view.is_some() {
            self.replaced = None;
            let was_present = self.cell(key)?.entry().is_some();
            return self.write_cell(key, form, value).map(|()| was_present);
        }
        Ok(self.store(key, form, value, PutMode::Always)?.was_present)
    }

    /// Changes the entry of `key` atomically. `decide` gets the entry, or `None` if the key is
    /// absent or the entry has expired, and an empty buffer for the new value. No other client
    /// changes the entry between the read that `decide` saw and the store. If one does, `decide` is
    /// called again; its last call counts.
    ///
    /// [`EntryChange::Delete`] also removes the slot of an expired entry. Returns whether anything
    /// changed.
    ///
    /// ```
    /// use rackpool_kv::{EntryChange, Form, Handle, KvError, Memory};
    ///
    /// /// Appends a line; none is lost, whoever else appends.
    /// fn append<M: Memory>(log: &mut Handle<M>, line: &[u8]) -> Result<(), KvError<M::Error>> {
    ///     log.modify(b"log", |entry, made| {
    ///         made.extend_from_slice(entry.map_or(&[], |entry| entry.value));
    ///         made.extend_from_slice(line);
    ///         EntryChange::Put(Form::PLAIN)
    ///     })?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Handle::put`].
    pub fn modify(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> EntryChange,
    ) -> Result<bool, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let mut made = std::mem::take(&mut self.made);
        let result = if self.view.is_some() {
            self.modify_cell(key, &mut made, &mut decide)
        } else {
            self.try_modify(hash, key, &mut made, &mut decide)
        };
        self.made = made;
        result
    }

    fn try_modify(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        made: &mut Vec<u8>,
        decide: &mut impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> EntryChange,
    ) -> Result<bool, KvError<M::Error>> {
        loop {
            made.clear();
            let done = match self.locate(hash, key, LookupIntent::Write)? {
                Located::Live(slot) => match decide(self.entry_at(&slot), made) {
                    EntryChange::Keep => return Ok(false),
                    EntryChange::Delete => self.unlink(&slot)?,
                    EntryChange::Put(form) => {
                        Self::check_kind(form)?;
                        self.replace_entry(&slot, key, Entry { form, value: made }, None)?
                    }
                },
                Located::Absent(miss) => match decide(None, made) {
                    EntryChange::Keep | EntryChange::Delete => return Ok(false),
                    EntryChange::Put(form) => {
                        Self::check_kind(form)?;
                        self.fill(&miss, key, form, made)?
                    }
                },
            };
            if done {
                return Ok(true);
            }
        }
    }

    /// The version of the entry that a search just found; `None` if it has expired.
    pub(crate) fn version_at(&self, slot: &LiveSlot) -> Option<Version> {
        let value = &self.scratch[slot.value.clone()];
        (!slot.form.is_over()).then(|| Version::of(slot.lot, slot.form, value))
    }

    /// An error if the kind has a meaning to the table.
    pub(crate) fn check_kind(form: Form) -> Result<(), KvError<M::Error>> {
        if form.kind.is_free() {
            return Ok(());
        }
        let value = form.kind.0.into();
        Err(KvError::Option { name: "kind", value, allowed: "0 to 252" })
    }

    /// The entry that a search just found, in the scratch buffer; `None` if it has expired.
    #[inline]
    pub(crate) fn entry_at(&self, slot: &LiveSlot) -> Option<Entry<'_>> {
        let value = &self.scratch[slot.value.clone()];
        (!slot.form.is_over()).then_some(Entry { form: slot.form, value })
    }

    /// Replaces the entry that a search just found by a compare-and-put on its version. The new
    /// object gets the given `lot`, if any. Returns whether the entry was unchanged.
    pub(crate) fn replace_entry(
        &mut self,
        slot: &LiveSlot,
        key: &[u8],
        Entry { form, value }: Entry<'_>,
        lot: Option<u32>,
    ) -> Result<bool, KvError<M::Error>> {
        if !self.is_published(slot)? {
            return Ok(false);
        }
        let mut put = self.prepare_put(key, form, value, Condition::BYTES)?;
        put.lot = lot;
        let result = self.exchange_slot(slot, &mut put);
        self.discard(put);
        result
    }

    /// Stores a key that a search did not find into the empty slot that it found; returns whether
    /// the slot was still empty. Without an empty slot it makes room and returns false.
    pub(crate) fn fill(
        &mut self,
        miss: &Miss,
        key: &[u8],
        form: Form,
        value: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        match miss.vacancy {
            Some(vacancy) => self.put_into((vacancy.at, vacancy.word), key, form, value),
            None => {
                self.make_room(miss, Self::hash(key)?)?;
                Ok(false)
            }
        }
    }

    /// Stores a key into a slot that is its own, and whose word was read; returns whether the word
    /// was unchanged.
    pub(crate) fn put_into(
        &mut self,
        (at, word): (GlobalAddr, SlotWord),
        key: &[u8],
        form: Form,
        value: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let mut put = self.prepare_put(key, form, value, 0)?;
        self.write_put(&mut put, None)?;
        let result = self.link(at, word, &mut put);
        if matches!(result, Ok(true))
            && let Some((_, reservation)) = put.object.take()
        {
            self.finish(reservation);
        }
        self.discard(put);
        result
    }

    /// Like [`Handle::modify`], for the table's own entries: of any kind, ignoring expiry and
    /// locks. `decide` sees only the value.
    pub(crate) fn change_reserved(
        &mut self,
        key: &[u8],
        mut decide: impl FnMut(Option<&[u8]>, &mut Vec<u8>) -> EntryChange,
    ) -> Result<bool, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let mut made = Vec::new();
        loop {
            made.clear();
            let done = match self.locate_raw(hash, key, LookupIntent::Write)? {
                Located::Live(slot) => {
                    match decide(Some(&self.scratch[slot.value.clone()]), &mut made) {
                        EntryChange::Keep => return Ok(false),
                        EntryChange::Delete => self.unlink(&slot)?,
                        EntryChange::Put(form) => {
                            self.replace_entry(&slot, key, Entry { form, value: &made }, None)?
                        }
                    }
                }
                Located::Absent(miss) => match decide(None, &mut made) {
                    EntryChange::Keep | EntryChange::Delete => return Ok(false),
                    EntryChange::Put(form) => self.fill(&miss, key, form, &made)?,
                },
            };
            if done {
                return Ok(true);
            }
        }
    }
}
