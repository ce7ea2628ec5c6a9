//! Transactions over several entries. The two kinds share no table.

#[warn(clippy::missing_errors_doc)]
pub(crate) mod optimistic;
pub(crate) mod transactor;
