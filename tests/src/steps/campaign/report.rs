//! What a campaign has done.

use std::fmt;
use std::time::Duration;

use crate::steps::plan::{Coverage, Table};

/// What a campaign has done; that there is one says that nothing was wrong.
#[derive(Clone, Debug)]
pub struct Report {
    /// Clients that were killed.
    pub kills: usize,
    /// Distinct instructions of the product that were about to be carried out at a kill.
    pub distinct: usize,
    /// How far each operation was covered.
    pub coverage: Vec<Coverage>,
    /// The longest it took until everything of a batch was back.
    pub slowest: Duration,
    /// Kills that left the object which `alloc` had returned, as promised.
    pub in_hand: usize,
    /// Of those, clients whose `alloc` was looked at from instant to instant before.
    pub followed: usize,
    /// How long everything took.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Table(&self.coverage))?;
        write!(
            f,
            "{} clients killed at {} distinct instructions in {:.1?}; all was back within {:.1?}; \
             {} kills left the one object that alloc had in hand, {} of them when every instant \
             of it had been looked at",
            self.kills, self.distinct, self.took, self.slowest, self.in_hand, self.followed
        )
    }
}
