//! Sharing: pages that other racks only read have read-only replicas there until a client writes.
//!
//! Two machines: [`ShareHome`] keeps a page from being written while it is shared, [`Copies`] keeps
//! replicas of pages of other racks. Leases make it safe: docs/design/sharing.md.

mod copies;
mod home;

use core::time::Duration;

pub use copies::{Copies, CopiesAction, CopiesEvent, FoundCopy};
pub use home::{ShareAction, ShareEvent, ShareHome};

/// A sharing: the time from a page's first replica to its last, numbered by its home. Numbers grow,
/// across incarnations too. The page has the same bytes throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharingId(pub u64);

/// A replica that clients may read, numbered by the rack that keeps it. Numbers grow, across
/// incarnations too, and are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Parameters of sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRules {
    /// How long a page that was written is not shared again. The rest doubles each time that a
    /// sharing lasted less than `worth`.
    pub rest: Duration,
    /// The longest rest.
    pub longest_rest: Duration,
    /// A sharing that lasted at least this long resets the rest to the shortest.
    pub worth: Duration,
    /// A sharing ends if no lease for a replica was granted for this time. A rack that reads its
    /// replica renews its lease much more often.
    pub idle: Duration,
    /// The most pages that a home shares at once.
    pub shared: usize,
    /// The most replicas that a rack keeps.
    pub copies: usize,
    /// How long a rack requests a replica, and then how long it leaves the page alone if it got
    /// none.
    pub pause: Duration,
    /// A rack requests the lease for a replica at most once in this time.
    pub retry: Duration,
}

impl ShareRules {
    /// The first rest after a write is 100 ms.
    pub const DEFAULT: Self = Self {
        rest: Duration::from_millis(100),
        longest_rest: Duration::from_secs(10),
        worth: Duration::from_secs(1),
        idle: Duration::from_secs(1),
        shared: 1024,
        copies: 64,
        pause: Duration::from_millis(200),
        retry: Duration::from_millis(2),
    };
}
