//! Chooses the device, port and GID of a fabric.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::error::VerbsStartError;
use crate::verbs::{GidEntry, PortState};

/// Prefix of the GID of an IPv4 address.
const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A port of a device, with its GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Index of the device.
    pub(crate) device: usize,
    pub(crate) device_name: String,
    pub(crate) number: u8,
    pub(crate) state: PortState,
    pub(crate) gids: Vec<GidEntry>,
}

/// The operator's restrictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forced<'a> {
    pub(crate) device: Option<&'a str>,
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u8>,
}

/// The port that serves a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) device: usize,
    pub(crate) device_name: String,
    pub(crate) number: u8,
    pub(crate) state: PortState,
    pub(crate) gid: GidEntry,
    /// True for soft-RoCE: the kernel does the work of the device.
    pub(crate) is_software: bool,
}

/// Chooses the active port with a RoCE v2 GID of the address; without one, the only active
/// InfiniBand port. A loopback address means that all racks are on this host: the first suitable
/// port is chosen.
///
/// # Errors
///
/// [`VerbsStartError::NoPort`], with a list of the ports that exist.
pub(crate) fn choose(
    candidates: &[Candidate],
    address: IpAddr,
    forced: Forced<'_>,
) -> Result<Port, VerbsStartError> {
    let wanted = |port: &&Candidate| {
        forced.device.is_none_or(|name| name == port.device_name)
            && forced.port.is_none_or(|number| number == port.number)
    };
    let ports: Vec<_> = candidates.iter().filter(wanted).collect();
    let active: Vec<_> = ports.iter().copied().filter(|port| port.state.active).collect();
    let of_address = gid_of(address);
    let exact = |gid: &&GidEntry| gid.roce_v2 && gid.gid == of_address;
    let infiniband: Vec<_> = active.iter().filter(|port| port.state.infiniband).collect();
    let fits = |port: &&&Candidate| port.gids.iter().any(|gid| exact(&gid));
    let chosen = match forced.gid_index {
        // If several ports have this GID index, the address decides.
        Some(index) => {
            let has = |port: &&&Candidate| port.gids.iter().any(|gid| gid.index == index);
            let having: Vec<_> = active.iter().filter(has).collect();
            let port = match having[..] {
                [only] => Some(only),
                _ => having.iter().copied().find(fits),
            };
            port.and_then(|port| Some((port, port.gids.iter().find(|gid| gid.index == index)?)))
        }
        None if address.to_canonical().is_loopback() => active.iter().find_map(|port| {
            // A link-local GID works too, but not every device reaches itself by one.
            let is_ipv4 = |gid: &&GidEntry| gid.roce_v2 && gid.gid[..12] == IPV4_MAPPED;
            let ethernet = port.gids.iter().find(is_ipv4);
            let any = || port.gids.iter().find(|gid| gid.roce_v2 || port.state.infiniband);
            Some((port, ethernet.or_else(any)?))
        }),
        None => match active.iter().find(fits) {
            Some(port) => port.gids.iter().find(exact).map(|gid| (port, gid)),
            None => match infiniband[..] {
                [only] => only.gids.first().map(|gid| (only, gid)),
                _ => None,
            },
        },
    };
    match chosen {
        Some((port, gid)) => Ok(Port {
            device: port.device,
            device_name: port.device_name.clone(),
            number: port.number,
            state: port.state,
            gid: *gid,
            is_software: false,
        }),
        None => Err(VerbsStartError::NoPort(explain(candidates, address, forced))),
    }
}

fn explain(candidates: &[Candidate], address: IpAddr, forced: Forced<'_>) -> String {
    let of_device = |name| candidates.iter().filter(move |port| port.device_name == name);
    let mut text = match forced {
        Forced { device: Some(name), .. } if of_device(name).next().is_none() => {
            format!("there is no RDMA device {name}")
        }
        Forced { device: Some(name), port: Some(number), .. }
            if of_device(name).all(|port| port.number != number) =>
        {
            format!("RDMA device {name} has no port {number}")
        }
        Forced { device, port, gid_index } => {
            let number = port.map_or_else(String::new, |number| format!(" {number}"));
            let which = match device {
                Some(name) => format!("port{number} of RDMA device {name}"),
                None => format!("RDMA port{number}"),
            };
            match (device, gid_index) {
                (Some(_), Some(index)) => {
                    format!("no active {which} has a GID {index} for {address}")
                }
                (None, Some(index)) => {
                    format!("no single active {which} has a GID {index}, or the one of {address}")
                }
                (_, None) => format!("no active {which} has a RoCE v2 GID of {address}"),
            }
        }
    };
    text.push_str(". There are:");
    for port in candidates {
        text.push_str(&format!("\n  {port}"));
    }
    text.push_str(
        "\nListen on an address of one of them, give its network interface this address, or name \
         the port with --rdma-device, --rdma-port and --gid-index",
    );
    text
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.state.active { "active" } else { "down" };
        write!(f, "{} port {} ({state}):", self.device_name, self.number)?;
        for gid in &self.gids {
            let kind = match (self.state.infiniband, gid.roce_v2) {
                (true, _) => "InfiniBand",
                (_, true) => "RoCE v2",
                (_, false) => "RoCE v1",
            };
            write!(f, " GID {} = {} ({kind})", gid.index, text_of(&gid.gid))?;
        }
        Ok(())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = text_of(&self.gid.gid);
        let mtu = mtu_bytes(self.state.mtu);
        let (device, port, index) = (&self.device_name, self.number, self.gid.index);
        write!(f, "{device} port {port}, GID {index} = {gid}, MTU {mtu} B")
    }
}

/// The RoCE v2 GID of an IP address.
fn gid_of(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A GID as text: the IP address that it encodes.
pub(crate) fn text_of(gid: &[u8; 16]) -> String {
    Ipv6Addr::from(*gid).to_canonical().to_string()
}

/// MTU in bytes for its number in the ABI; 0 for an invalid number.
pub(crate) const fn mtu_bytes(mtu: u8) -> u32 {
    match mtu {
        1..=5 => 128 << mtu,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(port: u8, index: u8, address: &str, roce_v2: bool) -> GidEntry {
        GidEntry { port, index, gid: gid_of(address.parse().unwrap()), roce_v2 }
    }

    fn port(device: usize, name: &str, infiniband: bool, gids: Vec<GidEntry>) -> Candidate {
        let state = PortState { active: true, infiniband, mtu: 5, lid: 0, max_message: 1 << 30 };
        Candidate { device, device_name: name.into(), number: 1, state, gids }
    }

    /// Two Ethernet ports as a device lists them: a link-local and an IP address, each in both
    /// versions.
    fn ethernet() -> Vec<Candidate> {
        let gids = |address: &str| {
            ["fe80::1", address]
                .iter()
                .flat_map(|text| [(text, false), (text, true)])
                .zip(0..)
                .map(|((text, v2), index)| gid(1, index, text, v2))
                .collect()
        };
        vec![port(0, "mlx5_0", false, gids("10.0.0.1")), port(1, "mlx5_1", false, gids("10.0.1.1"))]
    }

    fn chosen(candidates: &[Candidate], address: &str, forced: Forced<'_>) -> Option<(usize, u8)> {
        let port = choose(candidates, address.parse().unwrap(), forced).ok()?;
        Some((port.device, port.gid.index))
    }

    #[test]
    fn the_gid_is_the_roce_v2_one_of_the_address() {
        let none = Forced::default();
        assert_eq!(chosen(&ethernet(), "10.0.0.1", none), Some((0, 3)));
        assert_eq!(chosen(&ethernet(), "10.0.1.1", none), Some((1, 3)));
        assert_eq!(chosen(&ethernet(), "::ffff:10.0.1.1", none), Some((1, 3)));
        assert_eq!(chosen(&ethernet(), "10.0.2.1", none), None);
    }

    #[test]
    fn device_and_gid_can_be_forced() {
        let second = Forced { device: Some("mlx5_1"), ..Forced::default() };
        assert_eq!(chosen(&ethernet(), "10.0.1.1", second), Some((1, 3)));
        assert_eq!(chosen(&ethernet(), "10.0.0.1", second), None, "not another's address");
        let both = Forced { device: Some("mlx5_1"), gid_index: Some(1), port: None };
        assert_eq!(chosen(&ethernet(), "10.9.9.9", both), Some((1, 1)));
        let index = Forced { gid_index: Some(2), ..Forced::default() };
        assert_eq!(chosen(&ethernet(), "10.0.1.1", index), Some((1, 2)), "the address decides");
        assert_eq!(chosen(&ethernet(), "10.9.9.9", index), None, "two ports have it");
        let unknown = Forced { device: Some("mlx5_9"), ..Forced::default() };
        assert_eq!(chosen(&ethernet(), "10.0.0.1", unknown), None);
    }

    #[test]
    fn on_a_loopback_address_the_first_port_will_do() {
        for address in ["127.0.0.1", "::1"] {
            assert_eq!(chosen(&ethernet(), address, Forced::default()), Some((0, 3)));
            let second = Forced { device: Some("mlx5_1"), ..Forced::default() };
            assert_eq!(chosen(&ethernet(), address, second), Some((1, 3)));
            let infiniband = [port(0, "ib", true, vec![gid(1, 0, "fe80::2", false)])];
            assert_eq!(chosen(&infiniband, address, Forced::default()), Some((0, 0)));
            let only_v1 = [port(0, "old", false, vec![gid(1, 0, "10.0.0.1", false)])];
            assert_eq!(chosen(&only_v1, address, Forced::default()), None);
        }
    }

    #[test]
    fn a_port_that_is_down_is_not_taken() {
        let mut ports = ethernet();
        ports[0].state.active = false;
        assert_eq!(chosen(&ports, "10.0.0.1", Forced::default()), None);
    }

    #[test]
    fn the_only_infiniband_port_needs_no_address() {
        let infiniband = |device| port(device, "ib", true, vec![gid(1, 0, "fe80::2", false)]);
        let mut ports = ethernet();
        ports.push(infiniband(2));
        assert_eq!(chosen(&ports, "192.168.0.1", Forced::default()), Some((2, 0)));
        ports.push(infiniband(3));
        assert_eq!(chosen(&ports, "192.168.0.1", Forced::default()), None);
    }

    /// A card with two ports, each with the GIDs that it would have alone.
    fn card(infiniband: bool, addresses: [&str; 2]) -> Vec<Candidate> {
        let ports = (1..).zip(addresses).map(|(number, address)| {
            let gids = vec![gid(number, 0, "fe80::2", true), gid(number, 1, address, true)];
            Candidate { number, ..port(0, "mlx5_0", infiniband, gids) }
        });
        ports.collect()
    }

    fn number(candidates: &[Candidate], address: &str, forced: Forced<'_>) -> Result<u8, String> {
        let chosen = choose(candidates, address.parse().unwrap(), forced);
        chosen.map(|port| port.number).map_err(|error| error.to_string())
    }

    #[test]
    fn a_port_of_a_card_can_be_forced() {
        let none = Forced::default();
        let forced = |number| Forced { port: Some(number), ..none };
        let both = card(true, ["fe80::3", "fe80::4"]);
        assert!(number(&both, "10.0.0.1", none).is_err(), "either could be meant");
        for wanted in [1, 2] {
            assert_eq!(number(&both, "10.0.0.1", forced(wanted)), Ok(wanted));
            assert_eq!(number(&both, "127.0.0.1", forced(wanted)), Ok(wanted));
            let with_gid = Forced { gid_index: Some(1), ..forced(wanted) };
            assert_eq!(number(&both, "10.0.0.1", with_gid), Ok(wanted));
        }
        let ethernet = card(false, ["10.0.0.1", "10.0.1.1"]);
        assert_eq!(number(&ethernet, "10.0.1.1", none), Ok(2));
        assert_eq!(number(&ethernet, "10.0.1.1", forced(2)), Ok(2));
        let error = number(&ethernet, "10.0.1.1", forced(1)).unwrap_err();
        assert!(
            error.starts_with("no active RDMA port 1 has a RoCE v2 GID of 10.0.1.1"),
            "{error}"
        );
        let of_card = |number| Forced { device: Some("mlx5_0"), ..forced(number) };
        let error = number(&ethernet, "10.0.1.1", of_card(1)).unwrap_err();
        assert!(error.starts_with("no active port 1 of RDMA device mlx5_0 has"), "{error}");
        let error = number(&ethernet, "10.0.1.1", of_card(3)).unwrap_err();
        assert!(error.starts_with("RDMA device mlx5_0 has no port 3. There are:"), "{error}");
    }

    #[test]
    fn the_error_lists_what_there_is_and_what_to_do() {
        let error = choose(&ethernet(), "10.0.2.1".parse().unwrap(), Forced::default());
        let text = error.unwrap_err().to_string();
        assert!(text.contains("no active RDMA port has a RoCE v2 GID of 10.0.2.1"), "{text}");
        assert!(text.contains("mlx5_1 port 1 (active):"), "{text}");
        assert!(text.contains("GID 3 = 10.0.1.1 (RoCE v2)"), "{text}");
        assert!(text.contains("--rdma-device, --rdma-port and --gid-index"), "{text}");
    }

    #[test]
    fn an_unknown_device_is_named() {
        let forced = Forced { device: Some("mlx5_9"), ..Forced::default() };
        let error = choose(&ethernet(), "10.0.0.1".parse().unwrap(), forced);
        let text = error.unwrap_err().to_string();
        assert!(text.starts_with("there is no RDMA device mlx5_9. There are:\n  mlx5_0"), "{text}");
    }

    #[test]
    fn mtus_have_their_bytes() {
        assert_eq!([0, 1, 3, 5, 6].map(mtu_bytes), [0, 256, 1024, 4096, 0]);
    }
}
