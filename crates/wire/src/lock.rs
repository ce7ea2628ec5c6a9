//! The outcome of a request for a lock, between a client, its daemon and the page's home.

use bincode::{Decode, Encode};

/// The outcome of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LockOutcome {
    /// The lock is held.
    Granted {
        /// Whether a writer ended without an unlock since the last writer that unlocked.
        recovered: bool,
    },
    /// The request waits. A message follows. Between racks only.
    Queued,
    /// The time of the request has passed.
    TimedOut,
    /// The page is not here, or leaves: the client asks again.
    Moved,
}
