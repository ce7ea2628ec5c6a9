use std::net::SocketAddr;

use crate::FabricError;

pub(super) const SCHEME: &str = "tcp:";

/// Parses the address given to `connect`.
pub(super) fn parse(address: &str) -> Result<SocketAddr, FabricError> {
    let socket = address.strip_prefix(SCHEME).and_then(|rest| rest.parse::<SocketAddr>().ok());
    socket.filter(|socket| socket.port() != 0 && !socket.ip().is_unspecified()).ok_or_else(|| {
        FabricError::BadAddress {
            address: address.into(),
            provider: "tcp",
            expected: "tcp: and an IP address with a port, like tcp:192.0.2.7:7500",
        }
    })
}

/// Returns true if the address is a loopback address, which only this host can have.
pub(super) fn is_this_host(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ip_addresses_with_a_port() {
        for good in ["tcp:127.0.0.1:1", "tcp:[::1]:7500", "tcp:192.0.2.7:65535"] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "tcp:",
            "127.0.0.1:1",
            "tcp:localhost:1",
            "tcp:127.0.0.1",
            "tcp:127.0.0.1:0",
            "tcp:0.0.0.0:1",
            "emulated:/a",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_loopback_is_this_host() {
        for (address, this_host) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("10.0.0.1:1", false),
            ("[::]:1", false),
        ] {
            assert_eq!(is_this_host(&address.parse().unwrap()), this_host, "{address}");
        }
    }
}
