//! The target of the benchmark.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The target of the benchmark: the table itself, or a server that speaks Redis' protocol.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Target {
    /// The table in the pool, by one-sided operations.
    #[default]
    Direct,
    /// A server that speaks Redis' protocol.
    Resp(Server),
}

/// The address and password of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub(super) address: Address,
    pub(super) password: Option<String>,
}

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// `host:port`.
    Tcp(String),
    Unix(PathBuf),
}

impl Server {
    /// A server at a Unix socket, without a password.
    #[must_use]
    pub const fn unix(path: PathBuf) -> Self {
        Self { address: Address::Unix(path), password: None }
    }
}

/// A string that is no target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' is no target: give direct, resp://HOST:PORT, resp://:PASSWORD@HOST:PORT or \
     unix:PATH of a socket"
)]
pub struct TargetError {
    given: String,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(given: &str) -> Result<Self, TargetError> {
        if given == "direct" {
            return Ok(Self::Direct);
        }
        let server = given.strip_prefix("unix:").map_or_else(
            || given.strip_prefix("resp://").and_then(tcp),
            |path| {
                let address = Address::Unix(path.into());
                (!path.is_empty()).then_some(Server { address, password: None })
            },
        );
        server.map(Self::Resp).ok_or_else(|| TargetError { given: given.to_owned() })
    }
}

/// Parses `HOST:PORT`, with or without a leading `:PASSWORD@`.
fn tcp(given: &str) -> Option<Server> {
    let given = given.strip_suffix('/').unwrap_or(given);
    let (password, address) = match given.rsplit_once('@') {
        Some((user, address)) => (Some(user.split_once(':')?.1.to_owned()), address),
        None => (None, given),
    };
    let (host, port) = address.rsplit_once(':')?;
    let usable = !host.is_empty() && port.parse::<u16>().is_ok();
    usable.then(|| Server { address: Address::Tcp(address.to_owned()), password })
}

impl fmt::Display for Server {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(address) => write!(f, "resp://{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_understood_and_passwords_not_shown() {
        assert_eq!("direct".parse(), Ok(Target::Direct));
        for (given, shown, password) in [
            ("resp://127.0.0.1:6379", "resp://127.0.0.1:6379", None),
            ("resp://[::1]:6379/", "resp://[::1]:6379", None),
            ("resp://:se:cr@t@host:1", "resp://host:1", Some("se:cr@t")),
            ("unix:/run/kv.sock", "unix:/run/kv.sock", None),
        ] {
            let Ok(Target::Resp(server)) = given.parse() else { panic!("{given}") };
            assert_eq!(
                (server.to_string().as_str(), server.password.as_deref()),
                (shown, password)
            );
        }
        for wrong in ["", "redis", "resp://host", "resp://:6379", "resp://host:port", "unix:"] {
            let error = wrong.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("resp://HOST:PORT"), "{error}");
        }
    }
}
