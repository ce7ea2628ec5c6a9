//! The limit of an answer's time.

use std::time::Duration;

/// How long a server may take to answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(8);
