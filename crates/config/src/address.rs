use std::net::{SocketAddr, ToSocketAddrs};

/// Parses the listen address of an option: `ADDRESS:PORT`, or `NAME:PORT` with a name of this host.
/// For a name with several addresses, returns the first IPv4 address, else the first address. So a
/// server that listens at `localhost` listens at 127.0.0.1; clients try all addresses of a name.
///
/// ```
/// let address = rackpool_config::listen_address("[::1]:7400")?;
/// assert!(address.is_ipv6());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// A message that says what is wrong and shows valid examples.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (name, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let Some(port) = port.parse().ok().filter(|_| !name.is_empty()) else {
        return Err("give an address, or a name of this host, and a port from 0 to 65535: \
                    127.0.0.1:7400, [::1]:7400 or localhost:7400"
            .into());
    };
    let found: Result<Vec<_>, _> = (name, port).to_socket_addrs().map(Iterator::collect);
    match found {
        Ok(addresses) => {
            let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
            first.copied().ok_or_else(|| format!("the name {name} has no address"))
        }
        Err(error) => Err(format!("the address of {name} is not found: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_taken_and_others_explained() {
        for (text, expected) in [
            ("127.0.0.1:7400", "127.0.0.1:7400"),
            ("localhost:0", "127.0.0.1:0"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(
                listen_address(text).map(|address| address.to_string()),
                Ok(expected.into())
            );
        }
        for text in ["", ":", "7400", "localhost", ":7400", "localhost:", "localhost:65536"] {
            let error = listen_address(text).unwrap_err();
            assert!(error.contains("localhost:7400"), "{text}: {error}");
        }
        // The 64-character label exceeds the limit of 63, so the name can't exist.
        let nowhere = format!("{}:1", "x".repeat(64));
        assert!(listen_address(&nowhere).unwrap_err().contains("is not found"));
    }
}
