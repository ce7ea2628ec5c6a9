//! Why a run could not be finished.

use super::store::StoreError;
use super::workload::Operation;

/// Why a run could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A worker's store could not be opened.
    #[error("worker {thread} could not open its store: {cause}")]
    Open {
        /// The worker.
        thread: usize,
        /// The store's reason.
        cause: StoreError,
    },
    /// A store failed to execute an operation.
    #[error("{operation} of {key} failed in worker {thread}, after {done} operations: {cause}")]
    Operation {
        /// The worker.
        thread: usize,
        /// The operation.
        operation: Operation,
        /// The key of the operation.
        key: String,
        /// Operations that this worker had done in this phase.
        done: u64,
        /// The store's reason.
        cause: StoreError,
    },
    /// A worker panicked: a bug in the store or here.
    #[error("a worker panicked; its message is above")]
    Panicked,
}
