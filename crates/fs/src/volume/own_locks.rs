//! What this mount knows of its locks of a file.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::file_locks::LockOwner;

/// A version of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ContentsVersion {
    pub(crate) turn: u64,
    /// Number of writes of this mount. A write in progress while the cache was dropped may have let
    /// a reader cache the old bytes again.
    pub(crate) writes: u64,
}

/// A mount's knowledge of its locks of a file that it has open.
#[derive(Debug, Default)]
pub(crate) struct OwnLocks {
    /// Set if the mount may be listed in the file's record or in its own index.
    pub(crate) may_stand: bool,
    /// Set if the mount is certainly listed in the index.
    pub(crate) stands: bool,
    /// The version at which all cached contents were dropped; nothing older is cached.
    pub(crate) seen: Option<ContentsVersion>,
    /// Owners that may have locks.
    pub(crate) owners: BTreeMap<LockOwner, OwnerState>,
}

#[derive(Debug, Default)]
pub(crate) struct OwnerState {
    /// The open file descriptions that its requests came through.
    pub(crate) handles: BTreeSet<u64>,
    /// Set while its locks still have to be released, because the pool failed.
    pub(crate) is_due: bool,
    /// Set when a descriptor that it has used for a request was closed.
    pub(crate) is_closing: bool,
}

impl OwnLocks {
    /// Advances the cached turn from `before` to `now`: this mount has made that step itself.
    pub(crate) fn advance(&mut self, before: u64, now: u64) -> Option<ContentsVersion> {
        if let Some(seen) = self.seen.as_mut().filter(|seen| seen.turn == before) {
            seen.turn = now;
        }
        self.seen
    }
}
