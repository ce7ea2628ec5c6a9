//! The fabrics that this computer can use, and what is missing for the others.

use std::net::SocketAddr;

use rackpool_model::ByteSize;
use rackpool_shm::host::RdmaPort;
use rackpool_sync::KernelCopy;

use super::advice::{Choice, Warning};
use super::credentials_check::CredentialsCheck;
use super::facts::Facts;

/// The least memory in bytes that RDMA must be able to lock: a small rack.
const MEMLOCK: u64 = 1 << 30;
/// The fabric's port in advice.
const PORT: u16 = 7500;
/// A fabric, as this computer can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricSupport {
    /// The value of `--fabric`.
    pub name: &'static str,
    /// What it can be used for here; `None` if it can't be used.
    pub serves: Option<String>,
    /// What is missing for it or for a wider use, and how to fix that.
    pub lacks: Vec<Warning>,
}

fn lack(what: impl Into<String>, fix: impl Into<String>) -> Warning {
    Warning { what: what.into(), fix: fix.into() }
}

/// Returns all fabrics; the last one is preferred if nothing is missing for it.
#[must_use]
pub fn all(facts: &Facts, credentials: &CredentialsCheck) -> Vec<FabricSupport> {
    let emulated = FabricSupport {
        name: "emulated",
        serves: Some("racks on this host, through shared memory".into()),
        lacks: Vec::new(),
    };
    vec![emulated, tcp(facts, credentials), verbs(facts, credentials)]
}

/// Chooses the fabric for the daemons: the fastest that lacks nothing.
#[must_use]
pub fn choose(fabrics: &[FabricSupport]) -> Choice {
    let ready = |fabric: &&FabricSupport| fabric.serves.is_some() && fabric.lacks.is_empty();
    let Some(best) = fabrics.iter().rev().find(ready) else {
        return Choice { what: "none".into(), why: "nothing here can be used".into() };
    };
    let after = fabrics.iter().rev().take_while(|fabric| fabric.name != best.name);
    let missing = after.filter_map(|fabric| {
        let first = fabric.lacks.first()?;
        Some(format!("; not {}: {}", fabric.name, first.what))
    });
    let why = best.serves.clone().unwrap_or_default() + &missing.collect::<String>();
    Choice { what: format!("--fabric {}", best.name), why }
}

fn tcp(facts: &Facts, credentials: &CredentialsCheck) -> FabricSupport {
    let mut lacks = Vec::new();
    let addresses = &facts.reach.addresses;
    if addresses.is_empty() {
        lacks.push(lack(
            "no interface that is up has an address that other hosts reach",
            "ip link set IFACE up; ip address add A.B.C.D/N dev IFACE",
        ));
    }
    lacks.extend(what_credentials_lack(credentials));
    let named = addresses
        .iter()
        .map(|(interface, address)| format!("{} ({interface})", SocketAddr::new(*address, PORT)));
    let named: Vec<String> = named.collect();
    let serves = match credentials {
        CredentialsCheck::Good { party, .. } if !named.is_empty() => {
            format!(
                "racks on any host, with the credentials of {party}; --fabric-listen {}",
                named.join(" or ")
            )
        }
        _ => "racks on this host".into(),
    };
    FabricSupport { name: "tcp", serves: Some(serves), lacks }
}

/// Returns what is missing for mutual authentication with racks on other hosts.
fn what_credentials_lack(credentials: &CredentialsCheck) -> Option<Warning> {
    match credentials {
        CredentialsCheck::None => Some(lack(
            "other hosts need credentials",
            "rackpool credentials init DIR; then name this host's folder: rackpool doctor --credentials DIR/rack-0",
        )),
        CredentialsCheck::Bad(why) => Some(lack("these credentials can't be used", why)),
        CredentialsCheck::Good { expiring: true, party } => Some(lack(
            format!("the credentials of {party} expire within 30 days"),
            format!("rackpool credentials add --renew DIR {party}"),
        )),
        CredentialsCheck::Good { .. } => None,
    }
}

fn verbs(facts: &Facts, credentials: &CredentialsCheck) -> FabricSupport {
    let mut lacks = Vec::new();
    if facts.rdma.is_empty() {
        lacks.push(lack(
            "there is no RDMA card here",
            "soft-RoCE makes one of any network card: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev IFACE",
        ));
    } else if !facts.reach.uverbs_module {
        lacks.push(lack("the kernel's ib_uverbs is not loaded", "modprobe ib_uverbs"));
    }
    if !facts.reach.libibverbs {
        lacks.push(lack(
            "libibverbs.so.1 is not installed",
            "apt-get install libibverbs1 ibverbs-providers",
        ));
    }
    for (name, _) in facts.reach.uverbs.iter().filter(|(_, may)| !may) {
        lacks.push(lack(
            format!("this user may not use /dev/infiniband/{name}"),
            format!("chmod a+rw /dev/infiniband/{name}, or a udev rule that does"),
        ));
    }
    let port = usable_port(facts);
    if port.is_some_and(|port| port.is_software) && !facts.kernel_copy.keeps_words_whole() {
        let why = format!("soft-RoCE would tear 8-byte words: {}", facts.kernel_copy);
        lacks.push(lack(why, KernelCopy::REMEDY));
    }
    if port.is_none() {
        lacks.extend(facts.rdma.iter().filter_map(what_a_port_lacks));
    }
    if let (false, Ok(Some(bytes))) = (facts.rdma.is_empty(), &facts.memlock_bytes)
        && *bytes < MEMLOCK
    {
        lacks.push(lack(
            format!("this user may lock {} of memory, RDMA locks all of it", ByteSize(*bytes)),
            "raise the limit: `ulimit -l unlimited`, LimitMEMLOCK=infinity in systemd",
        ));
    }
    let serves = port.filter(|_| lacks.is_empty()).map(|port| {
        let whose = match credentials {
            CredentialsCheck::Good { .. } => "racks on any host",
            _ => "racks on this host",
        };
        let (number, device, rate) = (port.port, &port.device, &port.rate);
        let usable = facts.rdma.iter().filter(|port| what_a_port_lacks(port).is_none()).count();
        let chosen = if usable > 1 {
            format!(", one of {usable}: --rdma-device {device} --rdma-port {number}")
        } else {
            String::new()
        };
        format!("{whose} by RDMA, through port {number} of {device} ({rate}){chosen}")
    });
    lacks.extend(what_credentials_lack(credentials));
    FabricSupport { name: "verbs", serves, lacks }
}

/// Returns a port that RDMA can use: it is active, and has an address if it is Ethernet. Hardware
/// is preferred.
fn usable_port(facts: &Facts) -> Option<&RdmaPort> {
    let usable = || facts.rdma.iter().filter(|port| what_a_port_lacks(port).is_none());
    usable().find(|port| !port.is_software).or_else(|| usable().next())
}

fn what_a_port_lacks(port: &RdmaPort) -> Option<Warning> {
    let name = format!("port {} of {}", port.port, port.device);
    if !port.is_active() {
        let fix = "see that its cable and its network interface are up (rdma link, ip link)";
        return Some(lack(format!("{name} is {}", port.state), fix));
    }
    let has_address = port.link == "InfiniBand" || !port.gids_v2.is_empty();
    (!has_address).then(|| {
        lack(
            format!("{name} has no address of RoCE v2"),
            "give its network interface an IP address",
        )
    })
}

#[cfg(test)]
mod tests {
    use rackpool_shm::host::HostFiles;

    use super::super::fixture::{fixture, port};
    use super::super::reach::Reach;
    use super::*;

    fn bare() -> Facts {
        let mut facts = Facts::gather(&HostFiles::at("/nonexistent"));
        facts.reach = Reach::default();
        facts
    }

    fn good() -> CredentialsCheck {
        CredentialsCheck::Good { party: "rack-3".into(), expiring: false }
    }

    fn lacks(fabric: &FabricSupport, what: &str) -> bool {
        fabric.lacks.iter().any(|lack| lack.what.contains(what) && !lack.fix.is_empty())
    }

    #[test]
    fn tcp_leaves_the_host_with_an_address_and_credentials() {
        let mut facts = bare();
        let alone = tcp(&facts, &CredentialsCheck::None);
        assert_eq!(alone.serves.as_deref(), Some("racks on this host"));
        assert!(lacks(&alone, "no interface") && lacks(&alone, "need credentials"));
        assert_eq!(choose(&all(&facts, &CredentialsCheck::None)).what, "--fabric emulated");
        facts.reach.addresses = vec![("eth0".into(), [192, 0, 2, 7].into())];
        let bad = tcp(&facts, &CredentialsCheck::Bad("the key is not secret".into()));
        assert!(bad.lacks[0].fix.contains("not secret"));
        let ready = tcp(&facts, &good());
        assert_eq!(ready.lacks, []);
        assert!(ready.serves.unwrap().contains("192.0.2.7:7500 (eth0)"));
        let choice = choose(&all(&facts, &good()));
        assert_eq!(choice.what, "--fabric tcp");
        assert!(choice.why.contains("not verbs: there is no RDMA card"), "{}", choice.why);
        let old = CredentialsCheck::Good { party: "rack-3".into(), expiring: true };
        assert!(lacks(&tcp(&facts, &old), "expire within 30 days"));
    }

    #[test]
    fn verbs_names_everything_that_is_missing() {
        let mut facts = bare();
        let none = verbs(&facts, &good());
        assert!(lacks(&none, "no RDMA card") && lacks(&none, "libibverbs.so.1"));
        assert!(!lacks(&none, "may lock"), "nobody locks memory without a card");
        facts.rdma = vec![port("DOWN", &["::1"], None), port("ACTIVE", &[], None)];
        facts.memlock_bytes = Ok(Some(8 << 20));
        facts.reach.uverbs = vec![("uverbs0".into(), false)];
        let some = verbs(&facts, &good());
        for what in [
            "ib_uverbs is not loaded",
            "libibverbs.so.1",
            "may not use /dev/infiniband/uverbs0",
            "is DOWN",
            "no address of RoCE v2",
            "may lock 8 MiB",
        ] {
            assert!(lacks(&some, what), "{what}");
        }
        assert_eq!(some.serves, None);
        facts.rdma.push(port("ACTIVE", &["::ffff:10.0.0.1"], None));
        facts.memlock_bytes = Ok(None);
        facts.reach.uverbs[0].1 = true;
        (facts.reach.uverbs_module, facts.reach.libibverbs) = (true, true);
        let ready = verbs(&facts, &good());
        assert_eq!(ready.lacks, [], "one usable port is enough");
        let serves = ready.serves.unwrap();
        assert!(serves.starts_with("racks on any host by RDMA, through port 1 of"), "{serves}");
        assert!(!serves.contains("--rdma-port"), "there is no choice: {serves}");
        let mut two = facts.clone();
        two.rdma.push(RdmaPort { port: 2, ..port("ACTIVE", &["::ffff:10.0.1.1"], None) });
        let serves = verbs(&two, &good()).serves.unwrap();
        assert!(serves.contains(", one of 2: --rdma-device mlx5_0 --rdma-port 1"), "{serves}");
        assert_eq!(choose(&all(&facts, &good())).what, "--fabric verbs");
        let alone = verbs(&facts, &CredentialsCheck::None);
        assert!(lacks(&alone, "need credentials"));
        assert!(alone.serves.unwrap().starts_with("racks on this host by RDMA"));
        assert_eq!(choose(&all(&facts, &CredentialsCheck::None)).what, "--fabric emulated");
    }

    #[test]
    fn soft_roce_is_not_offered_where_the_kernel_copies_by_bytes() {
        let mut facts = bare();
        facts.memlock_bytes = Ok(None);
        (facts.reach.uverbs_module, facts.reach.libibverbs) = (true, true);
        facts.rdma = vec![port("ACTIVE", &["::ffff:10.0.0.1"], None)];
        facts.rdma[0].is_software = true;
        facts.kernel_copy = KernelCopy::Bytes("erms");
        let torn = verbs(&facts, &good());
        assert!(lacks(&torn, "soft-RoCE would tear 8-byte words") && torn.serves.is_none());
        assert!(torn.lacks.iter().any(|lack| lack.fix.contains("clearcpuid=erms,fsrm")));
        facts.kernel_copy = KernelCopy::Words;
        assert_eq!(verbs(&facts, &good()).lacks, []);
        facts.kernel_copy = KernelCopy::Bytes("erms");
        facts.rdma.push(port("ACTIVE", &["::ffff:10.0.0.2"], None));
        assert_eq!(verbs(&facts, &good()).lacks, [], "there is a card as well");
    }

    #[test]
    fn the_software_for_rdma_is_found() {
        let (_folder, machine) = fixture(&[
            ("sys/module/ib_uverbs/refcnt".into(), "0"),
            ("sys/class/infiniband_verbs/uverbs7/ibdev".into(), "rxe0"),
            ("sys/class/infiniband_verbs/abi_version".into(), "6"),
        ]);
        let reach = Reach::gather(&machine);
        assert!(reach.uverbs_module);
        assert_eq!(reach.uverbs, [("uverbs7".to_owned(), false)]);
        assert!(reach.addresses.iter().all(|(_, address)| !address.is_loopback()));
    }
}
