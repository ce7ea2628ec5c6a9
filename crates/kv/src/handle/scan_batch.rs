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
    /// Key length, value length and form of each entry, in the order of `bytes`.
    pub(crate) lens: Vec<(usize, usize, Form)>,
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

impl ScanBatch {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.lens.clear();
        self.damaged = None;
    }

    /// Calls `visit` with each entry.
    pub(crate) fn each(&self, mut visit: impl FnMut(&[u8], Entry<'_>)) {
        let mut rest = &self.bytes[..];
        for (key, value, form) in &self.lens {
            let (entry, next) = rest.split_at(key + value);
            visit(&entry[..*key], Entry { form: *form, value: &entry[*key..] });
            rest = next;
        }
    }
}
