use core::net::{IpAddr, SocketAddr};

/// The network of a peer, the unit that the admission limiter counts: an IPv4 address, or the upper
/// 64 bits of an IPv6 address, since one host can own all addresses below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network(u64);

impl From<SocketAddr> for Network {
    fn from(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits())),
            IpAddr::V6(address) => {
                let [high @ .., _, _, _, _] = address.segments();
                Self(high.iter().fold(0, |bits, part| bits << 16 | u64::from(*part)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_one(first: &str, second: &str) -> bool {
        let network = |text: &str| text.parse::<SocketAddr>().map(Network::from);
        network(first).unwrap() == network(second).unwrap()
    }

    #[test]
    fn one_host_has_many_addresses_of_ipv6_and_any_number_of_ports() {
        assert!(is_one("192.0.2.1:1", "192.0.2.1:2"));
        assert!(!is_one("192.0.2.1:1", "192.0.2.2:1"));
        assert!(is_one("192.0.2.1:1", "[::ffff:192.0.2.1]:1"));
        assert!(is_one("[2001:db8:0:2::1]:1", "[2001:db8:0:2:ffff::2]:1"));
        assert!(!is_one("[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1"));
    }
}
