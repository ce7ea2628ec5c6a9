//! Machines with at most one planted bug, for the worlds of multicasts and of groups.

use rackpool_proto::planted_bugs::{Bug, Bugs};

/// At most one planted bug.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant(pub(crate) Option<Bug>);

impl Bugs for Plant {
    fn has(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
}
