//! The interface of the benchmark to a key-value store.

use std::error::Error;

/// A worker thread's handle on a key-value store.
///
/// A store is opened on the thread that uses it and stays there, so it needs neither locks nor
/// `Send`.
pub trait Store {
    /// Replaces `value` by the value of a key. Returns false if the key does not exist.
    ///
    /// # Errors
    /// If the store fails; the run ends with this error.
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError>;

    /// Replaces the value of an existing key. Returns false, without writing, if the key does not
    /// exist.
    ///
    /// # Errors
    /// If the store fails; the run ends with this error.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError>;

    /// Stores a pair, replacing an existing one (a second load of the same keys succeeds). When it
    /// returns, the key is visible to reads and scans of every thread.
    ///
    /// # Errors
    /// If the pair could not be stored; the run ends with this error.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Replaces `pairs` by up to `count` pairs: that of `start` and its successors in the store's
    /// order. Returns whether the scan began at `start`; if that key does not exist, the scan may
    /// begin behind it.
    ///
    /// # Errors
    /// If the store fails, or keeps no order; the run ends with this error.
    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError>;

    /// Returns the interface for access to single fields.
    fn fields(&mut self) -> Fields<'_>;
}

/// How a store keeps the fields of a record.
pub enum Fields<'a> {
    /// Each field on its own.
    Apart(&'a mut dyn FieldStore),
    /// All fields in one value, which is read and written as a whole.
    Together(&'a mut dyn ValueStore),
}

/// A store that keeps a record's fields in one value.
pub trait ValueStore {
    /// Changes the value of an existing key atomically: concurrent writes are not lost. `change`
    /// turns the value into the new one. It is called again if the value has changed meanwhile; the
    /// last call counts. Returns false, without writing, if the key does not exist.
    ///
    /// # Errors
    /// If the store fails; the run ends with this error.
    fn modify(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, StoreError>;
}

/// A store that keeps each field of a record on its own.
pub trait FieldStore {
    /// Replaces `bytes` by one field of a record. Returns false if the key does not exist.
    ///
    /// # Errors
    /// If the store fails; the run ends with this error.
    fn read_field(
        &mut self,
        key: &[u8],
        field: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, StoreError>;

    /// Replaces one field of a record.
    ///
    /// # Errors
    /// If the store fails; the run ends with this error.
    fn write_field(&mut self, key: &[u8], field: usize, bytes: &[u8]) -> Result<(), StoreError>;
}

/// Keys and values, in memory that is reused.
#[derive(Debug, Default)]
pub struct Pairs {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    len: usize,
}

impl Pairs {
    /// Removes all pairs.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a pair. Returns its key and value, both empty, for the caller to fill.
    pub fn push(&mut self) -> (&mut Vec<u8>, &mut Vec<u8>) {
        if self.len == self.pairs.len() {
            self.pairs.push(Default::default());
        }
        let (key, value) = &mut self.pairs[self.len];
        self.len += 1;
        key.clear();
        value.clear();
        (key, value)
    }

    /// Sets the values of all keys with `get_many`, which is given the keys and calls back with the
    /// index and the value of each. Removes the pairs whose keys have no value.
    ///
    /// # Errors
    /// The error of `get_many`.
    pub fn retain_found<E>(
        &mut self,
        get_many: impl FnOnce(&[&[u8]], &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut is_found = vec![false; self.len];
        let pairs = self.pairs[..self.len].iter_mut();
        let (keys, mut values): (Vec<&[u8]>, Vec<&mut Vec<u8>>) =
            pairs.map(|(key, value)| (&key[..], value)).unzip();
        get_many(&keys, &mut |index, value| {
            values[index].extend_from_slice(value.unwrap_or_default());
            is_found[index] = value.is_some();
        })?;
        let mut kept = 0;
        for at in (0..self.len).filter(|at| is_found[*at]) {
            self.pairs.swap(kept, at);
            kept += 1;
        }
        self.len = kept;
        Ok(())
    }

    /// The pairs, in the order of their insertion.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs[..self.len].iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Opens a [`Store`] for each worker thread.
pub trait StoreFactory: Sync {
    /// Opens the store of worker `thread` (counted from 0). Called on that worker's thread, before
    /// the clock starts, once for the load phase and once for each workload.
    ///
    /// # Errors
    /// If the store cannot be opened; the run ends with this error.
    fn open(&self, thread: usize) -> Result<Box<dyn Store + '_>, StoreError>;

    /// A short description of the store for table and report: `pool of 2 racks, emulated fabric`.
    fn label(&self) -> String;

    /// The rack of worker `thread`, for the results by rack.
    fn rack_of(&self, thread: usize) -> u16;
}

/// Why a store failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(Box<dyn Error + Send + Sync>);

impl StoreError {
    /// Wraps the store's own error, or a message.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
