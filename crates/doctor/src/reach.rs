//! The network and the RDMA software of a machine.

use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::unistd::{AccessFlags, access};
use rackpool_shm::host::{HostFiles, names_in};

/// The library folders of distributions.
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// The network and the RDMA software of this computer.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Addresses of this host that other hosts can use, with their interfaces.
    pub addresses: Vec<(String, IpAddr)>,
    /// Whether the kernel's user-space RDMA interface is loaded.
    pub uverbs_module: bool,
    /// The devices of that interface, and whether this user may use them.
    pub uverbs: Vec<(String, bool)>,
    /// Whether libibverbs is installed.
    pub libibverbs: bool,
}

impl Reach {
    /// Reads them from the kernel.
    #[must_use]
    pub fn gather(machine: &HostFiles) -> Self {
        let rw = AccessFlags::R_OK | AccessFlags::W_OK;
        let may = |name: &String| access(format!("/dev/infiniband/{name}").as_str(), rw).is_ok();
        let uverbs = names_in(&machine.sys("class/infiniband_verbs"));
        let uverbs = uverbs.into_iter().filter(|name| name.starts_with("uverbs"));
        Self {
            addresses: addresses(),
            uverbs_module: machine.sys("module/ib_uverbs").exists(),
            uverbs: uverbs.map(|name| (name.clone(), may(&name))).collect(),
            libibverbs: LIBRARIES.iter().any(|dir| Path::new(dir).join("libibverbs.so.1").exists()),
        }
    }
}

/// Returns the addresses of interfaces that are up, without loopback and link-local addresses.
fn addresses() -> Vec<(String, IpAddr)> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let up = interfaces.filter(|interface| {
        interface.flags.contains(InterfaceFlags::IFF_UP)
            && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    });
    let address = up.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|found| IpAddr::V4(found.ip()));
        let v6 = address.as_sockaddr_in6().map(|found| IpAddr::V6(found.ip()));
        Some((interface.interface_name, v4.or(v6)?))
    });
    let only_here = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    address.filter(|(_, address)| !only_here(address)).collect()
}
