//! Results of a campaign.

use std::fmt;
use std::time::Duration;

use crate::steps::plan::{Coverage, Table};

/// Results of a campaign without findings; a campaign with a finding panics instead.
#[derive(Clone, Debug)]
pub struct Report {
    /// Clients that were killed.
    pub kills: usize,
    /// Distinct instructions of the product before which a client was killed.
    pub distinct: usize,
    /// The coverage of each operation.
    pub coverage: Vec<Coverage>,
    /// The longest time until everything that a batch held was reclaimed.
    pub slowest: Duration,
    /// Kills after which the object that `alloc` had returned stayed in use, as promised.
    pub in_hand: usize,
    /// Of those, clients whose `alloc` was followed instruction by instruction before the kill.
    pub followed: usize,
    /// Duration of the campaign.
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
