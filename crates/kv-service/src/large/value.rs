use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rackpool_kv::now_ms;

use super::head::{Head, head_key, marker_key};
use super::memory::StringMemory;
use super::{LargeStrings, Nodes, StringView, remove};
use crate::failure::{Failure, said};
use crate::values::{LargeString, StringId};

/// Bytes of a string that is put together.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// This number of zeros.
    Zeros(usize),
}

/// The number of zeros that are written at once.
const ZEROS: usize = 64 << 10;

/// A large string before a key names it. What no key names when it is dropped is freed.
#[derive(Debug)]
pub struct LargeValue {
    strings: Arc<LargeStrings>,
    name: LargeString,
    /// The key that is going to name it.
    key: Vec<u8>,
    state: Mutex<ValueState>,
}

/// The owner of the memory of a [`LargeValue`].
#[derive(Debug)]
enum ValueState {
    /// This process owns it. Left by [`LargeValue::publish`]. A kill gives it back to the rack.
    Owned(StringMemory),
    /// The node table has it, with a marker. Left when the transaction that names it is committed.
    /// A kill leaves it to the sweep.
    Marked,
    /// A key has named it, or may have: it is the table's.
    Named,
}

impl LargeValue {
    /// A string of `len` bytes, none of which has arrived.
    pub fn begin(strings: &Arc<LargeStrings>, key: &[u8], len: u64) -> Result<Self, Failure> {
        let memory = StringMemory::new(strings, key.len(), len)?;
        let name = LargeString { id: StringId::random(), len };
        let state = Mutex::new(ValueState::Owned(memory));
        Ok(Self { strings: Arc::clone(strings), name, key: key.to_vec(), state })
    }

    /// A string that is put together from parts.
    pub fn build(
        strings: &Arc<LargeStrings>,
        key: &[u8],
        parts: &[Part<'_>],
    ) -> Result<Arc<Self>, Failure> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let value = Self::begin(strings, key, len)?;
        let mut offset = 0;
        for part in parts {
            let mut left = part.len();
            while left > 0 {
                let done = part.len() - left;
                let some = match part {
                    Part::Bytes(bytes) => &bytes[done..],
                    Part::Zeros(_) => &[0; ZEROS][..left.min(ZEROS)],
                };
                value.write(offset, some)?;
                (offset, left) = (offset + some.len() as u64, left - some.len());
            }
        }
        Ok(Arc::new(value))
    }

    fn lock(&self) -> MutexGuard<'_, ValueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.name.len
    }

    /// Whether the string has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.name.len == 0
    }

    /// Whether the next `bytes` bytes at `offset` need more memory of the rack.
    #[must_use]
    pub fn has_to_grow(&self, offset: u64, bytes: usize) -> bool {
        match &*self.lock() {
            ValueState::Owned(memory) => memory.room() < offset.saturating_add(bytes as u64),
            ValueState::Marked | ValueState::Named => false,
        }
    }

    /// Stores bytes that have arrived. No key may have been told to name the string before.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let ValueState::Owned(memory) = &mut *self.lock() else {
            return Err(said("ERR a stored string can't be written: report this as a defect"));
        };
        memory.grow(offset.saturating_add(bytes.len() as u64), self.name.len)?;
        memory.write(offset, bytes)
    }

    /// The name of the string, to be stored in the entry of its key. The node table has the string
    /// from here on, with a marker that the transaction which names the string must delete.
    pub(crate) fn publish(&self, nodes: &mut Nodes) -> Result<LargeString, Failure> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, ValueState::Named) {
            ValueState::Owned(memory) => {
                let head = Head {
                    size: memory.size(),
                    len: self.name.len,
                    extents: u32::try_from(memory.extents.len()).unwrap_or(u32::MAX),
                    owner: self.key.clone(),
                };
                // The sweep frees a string without a marker that no key names, so the marker comes
                // first.
                *state = ValueState::Marked;
                remove::mark(nodes, self.name.id, now_ms())?;
                let reservation = memory.reserve(self.key.len())?;
                let key = head_key(self.name.id);
                if !nodes.insert_extended(&key, &head.encode(), reservation)? {
                    return Err(said("ERR the id of a string is in use"));
                }
            }
            other => *state = other,
        }
        Ok(self.name)
    }

    /// The key of the marker.
    pub(crate) fn marker(&self) -> impl AsRef<[u8]> + use<> {
        marker_key(self.name.id)
    }

    /// The key that is going to name the string.
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Notes that the transaction which names the string was committed, or may have been.
    pub(crate) fn set_named(&self) {
        *self.lock() = ValueState::Named;
    }

    /// The bytes, for reading.
    pub(crate) fn view(&self, nodes: &mut Nodes) -> Result<Option<StringView>, Failure> {
        if let ValueState::Owned(memory) = &*self.lock() {
            return StringView::of_memory(memory, self.name.len).map(Some);
        }
        let all = 0..self.name.len;
        StringView::open(&self.strings, nodes, self.name, all)
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if matches!(*self.lock(), ValueState::Marked) {
            let mut nodes = self.strings.nodes.handle();
            // If this fails, the sweep frees the string.
            let _ = remove::unmark(&mut nodes, self.name.id);
            let _ = remove::free(&mut nodes, self.name.id);
        }
    }
}

impl Part<'_> {
    /// The length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub const fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Zeros(len) => *len,
        }
    }
}
