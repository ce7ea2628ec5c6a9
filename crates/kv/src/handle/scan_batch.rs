use std::ops::RangeInclusive;

use rackpool_client::GlobalAddr;

use crate::entry::{Entry, Form, ValueKind};
#[cfg(doc)]
use crate::handle::Handle;
use crate::locks::id::TransactionId;

/// All or some entries of one segment, copied out of the pool.
#[derive(Debug, Default)]
pub(crate) struct ScanBatch {
    pub(crate) bytes: Vec<u8>,
    /// The entries, in the order of `bytes`.
    pub(crate) entries: Vec<CopiedEntry>,
    /// Copies only entries with such a fingerprint; `None`: all.
    pub(crate) fingerprints: Option<RangeInclusive<u8>>,
    /// For a [survey](Handle::survey): the kinds whose values are copied. It never needs keys.
    pub(crate) surveyed: Option<fn(ValueKind) -> bool>,
    /// Copies only entries of this reserved kind; `None`: only entries of the table's users.
    pub(crate) reserved: Option<ValueKind>,
    /// The transaction of the last lock without a record. If that lock is still in its slot, the
    /// transaction did not commit.
    pub(crate) over: Option<TransactionId>,
    /// Whether damaged entries are skipped; `damaged` is the address of one that was.
    pub(crate) passes: bool,
    pub(crate) damaged: Option<GlobalAddr>,
}

/// An entry in a batch. Its key and then its value are in the bytes of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopiedEntry {
    pub(crate) key_len: usize,
    pub(crate) value_len: usize,
    pub(crate) form: Form,
}

impl ScanBatch {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.damaged = None;
    }

    /// Calls `visit` with each entry.
    pub(crate) fn each(&self, mut visit: impl FnMut(&[u8], Entry<'_>)) {
        let mut rest = &self.bytes[..];
        for CopiedEntry { key_len, value_len, form } in &self.entries {
            let (entry, next) = rest.split_at(key_len + value_len);
            visit(&entry[..*key_len], Entry { form: *form, value: &entry[*key_len..] });
            rest = next;
        }
    }
}
