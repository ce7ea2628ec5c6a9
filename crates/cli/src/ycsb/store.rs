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
    /// succeeds). When it returns, every thread's reads find the key.
    ///
    /// # Errors
    /// When the pair could not be stored; the run ends with this error.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError>;
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
