//! How requests for locks are decided and how locks end, between a client, its daemon and the
//! page's home.

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

/// How a lock ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LockEnd {
    /// Its holder has unlocked.
    Unlocked,
    /// Its holder ended without an unlock, or lost the lock.
    Abandoned,
    /// Its requester never had it: the request was given up.
    Withdrawn,
}
