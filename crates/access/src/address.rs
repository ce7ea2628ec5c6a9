use std::net::SocketAddr;

use crate::{Credentials, CredentialsError};

/// Checks an address that an option names: without credentials only a loopback address is allowed.
///
/// # Errors
/// `NotLoopback` names the option and says what to do.
pub fn require_loopback(
    option: &'static str,
    address: SocketAddr,
    credentials: Option<&Credentials>,
) -> Result<(), CredentialsError> {
    if credentials.is_some() || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(CredentialsError::NotLoopback { option, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_granted_without_credentials() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            require_loopback("--listen", address.parse().unwrap(), None).unwrap();
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1", "[fe80::1]:1"] {
            let error = require_loopback("--listen", address.parse().unwrap(), None).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("--listen") && text.contains("rackpool credentials init"),
                "{text}"
            );
        }
    }
}
