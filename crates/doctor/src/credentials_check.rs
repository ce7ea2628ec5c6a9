//! Whether the credentials of this host can be used.

use std::path::Path;
use std::time::Duration;

use rackpool_access::Credentials;

/// The operator is warned this long before credentials expire.
const RENEWAL: Duration = Duration::from_secs(30 * 86_400);
/// The result of a check of credentials.
#[derive(Clone, Debug)]
pub enum CredentialsCheck {
    /// No credentials were named.
    None,
    /// The credentials can be used.
    Good {
        /// The party of the credentials.
        party: String,
        /// Whether they expire within 30 days.
        expiring: bool,
    },
    /// The credentials can't be used, and why.
    Bad(String),
}

impl CredentialsCheck {
    /// Checks the credentials in a folder.
    #[must_use]
    pub fn look(folder: Option<&Path>) -> Self {
        match folder.map(Credentials::load) {
            None => Self::None,
            Some(Err(error)) => Self::Bad(error.to_string()),
            Some(Ok(own)) => {
                Self::Good { party: own.party().to_string(), expiring: own.expire_within(RENEWAL) }
            }
        }
    }
}
