//! Where a page is.

use rackpool_model::RackId;

/// The metadata server's answer about a page's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// The page's home.
    Home(RackId),
    /// The metadata server knows no such page.
    NoSuchPage,
    /// The memory of the page's home is lost, and the page with it.
    Lost,
    /// The metadata server did not answer.
    Unreachable,
}
