//! Optimistic transactions over any entries of tables: `docs/design/optimistic.md`.

mod commit;
mod install;
mod lock;
mod outcome;
mod record;
mod recover;
mod view;

pub use commit::Committer;
pub(crate) use lock::{EntryLock, TransactionId};
pub(crate) use outcome::TransactionOutcome;
pub use recover::{Recovery, RecoveryStep};
pub(crate) use view::TransactionView;
