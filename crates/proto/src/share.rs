//! Pages that other racks only read are shared: they keep copies, until somebody writes.
//!
//! Two machines: [`Home`] lets nobody write a page while it is shared, [`Copies`] keeps copies of
//! pages of other racks. What makes it safe are leases: docs/design/sharing.md.

mod copies;
mod home;

use core::time::Duration;

pub use copies::{Copies, CopiesAction, CopiesEvent};
pub use home::{HomeAction, HomeEvent, ShareHome};

/// One time in which a page is shared, numbered by its home: grows, across the lives of its daemon
/// too. The page has the same bytes all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharingId(pub u64);

/// One copy that clients may read, numbered by the rack that keeps it: grows, across the lives of
/// its daemon too, and is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Times and bounds of sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRules {
    /// How long a page that was written is not shared again; doubled each time that it did not
    /// last.
    pub rest: Duration,
    /// The longest rest.
    pub longest_rest: Duration,
    /// A sharing that lasted as long was worth it: the next rest is the shortest again.
    pub worth: Duration,
    /// A sharing of which nobody had a lease that is good for a copy for so long ends by itself.
    /// Those who read their copies ask for another lease much sooner.
    pub idle: Duration,
    /// How many pages a home shares at once.
    pub shared: usize,
    /// How many copies a rack keeps.
    pub copies: usize,
    /// How long a rack that got no copy leaves the page alone.
    pub pause: Duration,
}

impl ShareRules {
    /// A page is shared again a tenth of a second after it was written, at the earliest.
    pub const DEFAULT: Self = Self {
        rest: Duration::from_millis(100),
        longest_rest: Duration::from_secs(10),
        worth: Duration::from_secs(1),
        idle: Duration::from_secs(1),
        shared: 1024,
        copies: 64,
        pause: Duration::from_millis(200),
    };
}
