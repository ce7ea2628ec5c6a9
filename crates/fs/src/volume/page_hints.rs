use std::collections::HashSet;

use rackpool_client::GlobalAddr;

/// What a mount knows of the pages of heads. Heads marked free here may have been taken since.
#[derive(Debug, Default)]
pub(crate) struct PageHints {
    pub(crate) pages: Vec<GlobalAddr>,
    pub(crate) known: HashSet<u64>,
    /// Heads that were free when their page was read.
    pub(crate) free: Vec<GlobalAddr>,
    /// Index of the next page to search for free heads.
    pub(crate) next: usize,
    /// Pages created since the search last started at the first page.
    pub(crate) made: usize,
    /// Index of the page that was last searched for abandoned heads.
    pub(crate) scrubbed: Option<usize>,
}
