//! What the benchmark asks of a key-value store.

use std::error::Error;

/// One worker thread's own handle on a key-value store.
///
/// A store is opened on the thread that uses it and never leaves it, so it needs neither locks nor
/// `Send`.
pub trait Store {
    /// Replaces `value`'s contents by the pair's value. `Ok(false)`: no such key.
    ///
    /// # Errors
    /// When the store cannot answer; the run ends with this error.
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError>;

    /// Replaces the whole value of a pair that exists. `Ok(false)`: no such key, and nothing was
    /// written.
    ///
    /// # Errors
    /// When the store cannot answer; the run ends with this error.
    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<bool, StoreError>;

    /// Stores a pair; one that is there already is replaced (a second load of the same keys
    /// succeeds). When it returns, every thread's reads, and scans, find the key.
    ///
    /// # Errors
    /// When the pair could not be stored; the run ends with this error.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;

    /// Puts up to `count` pairs into `pairs`, replacing what it holds: that of `start` and those
    /// that follow in the store's order. Says whether it began at `start`; if that is not there,
    /// it may begin behind it.
    ///
    /// # Errors
    /// When the store cannot answer, or keeps no order; the run ends with this error.
    fn scan(&mut self, start: &[u8], count: u64, pairs: &mut Pairs) -> Result<bool, StoreError>;

    /// How one of several fields is reached.
    fn fields(&mut self) -> Fields<'_>;
}

/// How a store keeps the fields of a record.
pub enum Fields<'a> {
    /// Each by itself.
    Apart(&'a mut dyn FieldStore),
    /// All in one value: one is read with the others, and written with them.
    Together(&'a mut dyn ValueStore),
}

/// A store that keeps a record's fields in one value.
pub trait ValueStore {
    /// Changes the value of a pair that exists in one step: what others write between the reading
    /// and the writing is not lost. `change` gets the value and turns it into the new one; it is
    /// called again if the value was another one meanwhile, and its last call counts. `Ok(false)`:
    /// no such key, and nothing was written.
    ///
    /// # Errors
    /// When the store cannot answer; the run ends with this error.
    fn modify(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, StoreError>;
}

/// A store that keeps a record's fields apart.
pub trait FieldStore {
    /// Replaces `bytes` by one field of a record. `Ok(false)`: no such key.
    ///
    /// # Errors
    /// When the store cannot answer; the run ends with this error.
    fn read_field(
        &mut self,
        key: &[u8],
        field: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, StoreError>;

    /// Replaces one field of a record.
    ///
    /// # Errors
    /// When the store cannot answer; the run ends with this error.
    fn write_field(&mut self, key: &[u8], field: usize, bytes: &[u8]) -> Result<(), StoreError>;
}

/// Keys with their values, in memory that is used again for the next ones.
#[derive(Debug, Default)]
pub struct Pairs {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
    len: usize,
}

impl Pairs {
    /// Forgets all pairs.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// A pair more: its key and its value, which are to be filled; both empty now.
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

    /// Lets `fill` give each key its value, and drops the pairs of which it says `false`.
    ///
    /// # Errors
    /// The first that `fill` gives.
    pub fn retain_filled<E>(
        &mut self,
        mut fill: impl FnMut(&[u8], &mut Vec<u8>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut kept = 0;
        for at in 0..self.len {
            let (key, value) = &mut self.pairs[at];
            if fill(key, value)? {
                self.pairs.swap(kept, at);
                kept += 1;
            }
        }
        self.len = kept;
        Ok(())
    }

    /// The pairs, in the order they came.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.pairs[..self.len].iter().map(|(key, value)| (&key[..], &value[..]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Opens a [`Store`] for each worker thread.
pub trait StoreFactory: Sync {
    /// Opens the store of worker `thread` (counted from 0). Called on that worker's own thread,
    /// before the clock starts, once for the load phase and once for each workload.
    ///
    /// # Errors
    /// When the store cannot be reached; the run ends with this error.
    fn open(&self, thread: usize) -> Result<Box<dyn Store + '_>, StoreError>;

    /// What is measured, in a few words for table and report: `pool of 2 racks, emulated fabric`.
    fn label(&self) -> String;

    /// The rack that worker `thread` runs in, for the results by rack.
    fn rack_of(&self, thread: usize) -> u16;
}

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(Box<dyn Error + Send + Sync>);

impl StoreError {
    /// Wraps the store's own error, or a message.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
