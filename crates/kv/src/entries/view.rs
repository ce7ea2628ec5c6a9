//! The private view of an optimistic transaction: its read set and its write set.

use crate::entries::find::{Located, LookupIntent};
use crate::entry::{Entry, EntryChange, Form, ValueKind, Version};
use crate::error::KvError;
use crate::handle::Handle;
use crate::handle::transaction_view::ViewCell;
use crate::layout::condition::Condition;
use crate::memory::Memory;

/// The number of reads after which, and at each doubling of which, a view validates its read set: a
/// loop over entries that never existed together ends with a conflict.
const FIRST_CHECK: u64 = 1 << 12;

impl<M: Memory> Handle<M> {
    /// Begins a transaction on this handle: a private view. Until the commit, all operations that
    /// name a key, and scans, work on the view. The first operation on a key reads its entry; later
    /// ones see this entry or what the transaction wrote. Changes stay in the view until
    /// [`Committer::commit`](crate::Committer::commit) applies them or [`cancel`](Self::cancel)
    /// drops them. `commit` does not validate scans.
    pub fn begin(&mut self) {
        self.view = Some(Box::default());
    }

    /// Drops the view, if there is one.
    pub fn cancel(&mut self) {
        self.view = None;
    }

    /// Drops the write set of the view and keeps its read set, which the commit then validates.
    pub fn forget_changes(&mut self) {
        for cell in self.view.iter_mut().flat_map(|view| view.cells.values_mut()) {
            cell.is_written = false;
        }
    }

    /// Runs `work` outside of the transaction in progress, if there is one: it reads what is
    /// stored, and its changes are made at once.
    pub fn outside<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let view = self.view.take();
        let result = work(self);
        self.view = view;
        result
    }

    /// Whether a transaction is in progress on this handle.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.view.is_some()
    }

    /// The keys of the view's write set.
    pub fn changed_keys(&self) -> impl Iterator<Item = &[u8]> {
        self.view.iter().flat_map(|view| view.written().map(|(key, _)| key))
    }

    /// Whether the view has any key with this prefix.
    pub(crate) fn knows_any(&self, prefix: &[u8]) -> bool {
        let next = self.view.as_ref().and_then(|view| view.cells.range(prefix.to_vec()..).next());
        next.is_some_and(|(key, _)| key.starts_with(prefix))
    }

    /// The view's cell of a key; reads the entry at the first call.
    pub(crate) fn cell(&mut self, key: &[u8]) -> Result<&mut ViewCell, KvError<M::Error>> {
        let hash = Self::hash(key)?;
        let known = self.view.as_ref().is_some_and(|view| view.cells.contains_key(key));
        let insists = self.view.as_ref().and_then(|view| view.insists);
        let cell = if known {
            ViewCell::default()
        } else if let Some(id) = insists {
            match self.lock_as_it_is(id, key) {
                // The lock may have been stored. The commit aborts and resolves it.
                Err(KvError::OutcomeUnknown) => {
                    let view = self.view.get_or_insert_default();
                    view.is_torn = true;
                    ViewCell::default()
                }
                cell => cell?,
            }
        } else {
            match self.locate(hash, key, LookupIntent::Read)? {
                Located::Live(slot) => {
                    // The expiry is compared with the clock only once.
                    let version = self.version_at(&slot);
                    let value = &self.scratch[slot.value.clone()];
                    let now = version.is_some().then(|| (slot.form, value.to_vec()));
                    ViewCell { version, now, is_written: false }
                }
                Located::Absent(_) => ViewCell::default(),
            }
        };
        let view = self.view.get_or_insert_default();
        view.cells.entry(key.to_vec()).or_insert(cell);
        self.check_view()?;
        let view = self.view.get_or_insert_default();
        Ok(view.cells.entry(key.to_vec()).or_default())
    }

    /// Validates the read set after 4,096 reads and at each doubling; fails with
    /// [`KvError::Conflict`] if it changed.
    fn check_view(&mut self) -> Result<(), KvError<M::Error>> {
        let view = self.view.get_or_insert_default();
        view.looks += 1;
        if view.is_torn {
            return Err(KvError::Conflict);
        }
        if view.looks < FIRST_CHECK || !view.looks.is_power_of_two() || view.insists.is_some() {
            return Ok(());
        }
        let mut view = std::mem::take(view);
        let torn = view.cells.iter().try_fold(false, |torn, (key, cell)| {
            Ok::<_, KvError<M::Error>>(torn || !self.is_current(key, cell.version)?)
        });
        view.is_torn = *torn.as_ref().unwrap_or(&true);
        let is_torn = view.is_torn;
        self.view = Some(view);
        torn?;
        if is_torn { Err(KvError::Conflict) } else { Ok(()) }
    }

    /// Whether the entry of `key` has this version now.
    pub(crate) fn is_current(
        &mut self,
        key: &[u8],
        version: Option<Version>,
    ) -> Result<bool, KvError<M::Error>> {
        Ok(match self.locate(Self::hash(key)?, key, LookupIntent::Read)? {
            Located::Live(slot) => self.version_at(&slot) == version,
            Located::Absent(_) => version.is_none(),
        })
    }

    /// [`Handle::get`] in the view.
    pub(crate) fn get_cell(
        &mut self,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool, KvError<M::Error>> {
        let Some(entry) = self.cell(key)?.entry() else { return Ok(false) };
        if entry.form.kind != ValueKind::STRING {
            return Err(KvError::OtherKind { found: entry.form.kind });
        }
        value.extend_from_slice(entry.value);
        Ok(true)
    }

    /// Stores a value in the view.
    pub(crate) fn write_cell(
        &mut self,
        key: &[u8],
        form: Form,
        value: &[u8],
    ) -> Result<(), KvError<M::Error>> {
        self.prepare_put(key, form, value, Condition::BYTES)?;
        self.cell(key)?.write(Some((form, value.to_vec())));
        Ok(())
    }

    /// [`Handle::compare_and_put`] in the view, for a key that must be present.
    pub(crate) fn exchange_cell(
        &mut self,
        key: &[u8],
        expected: &[u8],
        new: &[u8],
    ) -> Result<bool, KvError<M::Error>> {
        let Some(entry) = self.cell(key)?.entry() else { return Ok(false) };
        if entry.form.kind != ValueKind::STRING {
            return Err(KvError::OtherKind { found: entry.form.kind });
        }
        if entry.value != expected {
            return Ok(false);
        }
        self.write_cell(key, Form::PLAIN, new).map(|()| true)
    }

    /// Deletes an entry of the view, only if it has the value `wanted` if one is given; returns
    /// whether it was present.
    pub(crate) fn delete_cell(
        &mut self,
        key: &[u8],
        wanted: Option<&[u8]>,
    ) -> Result<bool, KvError<M::Error>> {
        let cell = self.cell(key)?;
        let Some(entry) = cell.entry() else { return Ok(false) };
        if wanted.is_some_and(|wanted| entry.value != wanted) {
            return Ok(false);
        }
        cell.write(None);
        Ok(true)
    }

    /// [`Handle::modify`] in the view.
    pub(crate) fn modify_cell(
        &mut self,
        key: &[u8],
        made: &mut Vec<u8>,
        decide: &mut impl FnMut(Option<Entry<'_>>, &mut Vec<u8>) -> EntryChange,
    ) -> Result<bool, KvError<M::Error>> {
        made.clear();
        let cell = self.cell(key)?;
        match decide(cell.entry(), made) {
            EntryChange::Keep => Ok(false),
            EntryChange::Delete => self.delete_cell(key, None),
            EntryChange::Put(form) => {
                Self::check_kind(form)?;
                self.write_cell(key, form, made).map(|()| true)
            }
        }
    }
}
