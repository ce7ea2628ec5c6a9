//! Optimistic transactions over any entries of tables: `docs/design/optimistic.md`.

mod commit;
mod recover;

pub use commit::Committer;
pub use recover::{Recovery, RecoveryStep};
