//! The private view of an optimistic transaction: its read set and its write set.

use std::collections::BTreeMap;

use crate::entry::{Entry, Form, Version};
use crate::handle::scan_batch::ScanBatch;
use crate::locks::id::TransactionId;

/// The view of a transaction on one table.
#[derive(Debug, Default)]
pub(crate) struct TransactionView {
    pub(crate) cells: BTreeMap<Vec<u8>, ViewCell>,
    /// The number of operations on the view.
    pub(crate) looks: u64,
    /// Set when the entries that were read are known to have never existed together.
    pub(crate) is_torn: bool,
    /// The id of an insistent transaction, which locks each entry that it reads; else `None`.
    pub(crate) insists: Option<TransactionId>,
}

/// One key of a view.
#[derive(Debug, Default)]
pub(crate) struct ViewCell {
    /// The version that was read; `None` if the key was absent.
    pub(crate) version: Option<Version>,
    /// The entry as the transaction sees it.
    pub(crate) now: Option<(Form, Vec<u8>)>,
    pub(crate) is_written: bool,
}

impl ViewCell {
    /// The entry as the transaction sees it. It does not expire within the transaction; if the
    /// entry that was read has expired by the commit, validation fails as for any other change.
    pub(crate) fn entry(&self) -> Option<Entry<'_>> {
        self.now.as_ref().map(|(form, value)| Entry { form: *form, value })
    }

    /// Writing an entry that has already expired is a deletion.
    pub(crate) fn write(&mut self, now: Option<(Form, Vec<u8>)>) {
        self.now = now.filter(|(form, _)| !form.is_over());
        self.is_written = true;
    }
}

impl TransactionView {
    /// The view of an insistent transaction.
    pub(crate) fn insistent(id: TransactionId) -> Self {
        Self { insists: Some(id), ..Self::default() }
    }

    /// The keys of the write set and their cells.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&[u8], &ViewCell)> {
        let written = self.cells.iter().filter(|(_, cell)| cell.is_written);
        written.map(|(key, cell)| (&key[..], cell))
    }

    /// Calls `visit` with the batch's entries as the transaction sees them. With the first batch of
    /// a scan it also visits the entries that the transaction created.
    pub(crate) fn overlay(
        &self,
        batch: &ScanBatch,
        is_first: bool,
        mut visit: impl FnMut(&[u8], Entry<'_>),
    ) {
        batch.each(|key, entry| match self.cells.get(key).filter(|cell| cell.is_written) {
            Some(cell) => cell.entry().into_iter().for_each(|entry| visit(key, entry)),
            None => visit(key, entry),
        });
        if is_first {
            for (key, cell) in self.written().filter(|(_, cell)| cell.version.is_none()) {
                cell.entry().into_iter().for_each(|entry| visit(key, entry));
            }
        }
    }
}

/// An entry of the write set.
#[derive(Debug)]
pub(crate) struct WriteSetEntry {
    /// The number of its table.
    pub(crate) table: usize,
    pub(crate) key: Vec<u8>,
    /// The version that the entry must have; `None`: the key must be absent.
    pub(crate) version: Option<Version>,
    pub(crate) new: Option<(Form, Vec<u8>)>,
}
