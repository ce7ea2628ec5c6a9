use std::net::{SocketAddr, ToSocketAddrs};

/// The address to listen at that an option names: `ADDRESS:PORT`, or `NAME:PORT` of this host. A
/// name that has several addresses stands for its first IPv4 one, else for its first one: so
/// `localhost` is 127.0.0.1 for whoever listens, and clients try all of its addresses.
///
/// ```
/// let address = rackpool_config::listen_address("[::1]:7400")?;
/// assert!(address.is_ipv6());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// What is wrong with it, and what it should look like.
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
        // A label of 64 characters is longer than any name's.
        let nowhere = format!("{}:1", "x".repeat(64));
        assert!(listen_address(&nowhere).unwrap_err().contains("is not found"));
    }
}
