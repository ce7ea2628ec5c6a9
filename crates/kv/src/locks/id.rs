//! The names and outcomes of transactions.

/// A key of one of the tables of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableKey {
    /// The number of the table.
    pub(crate) table: usize,
    pub(crate) key: Vec<u8>,
}

/// Identifies a transaction: its committer or transactor (owner and slot) and a number that only
/// grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionId {
    pub(crate) owner: u64,
    pub(crate) slot: u16,
    pub(crate) number: u64,
}

/// The outcome of the transaction that a lock belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransactionOutcome {
    /// The transaction may still commit. Readers take the old side.
    Pending,
    Committed,
    Aborted,
    /// The record is gone or belongs to a later transaction. If the lock is still in its slot after
    /// this was seen, its transaction did not commit.
    Over,
}
