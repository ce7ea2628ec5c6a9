//! Atomic changes of several keys: `docs/design/transactions.md`.

mod commit;
mod lock;
mod record;
mod recover;
mod resolve;
mod transactor;
mod value;

pub use commit::KeyChange;
pub use transactor::Transactor;
