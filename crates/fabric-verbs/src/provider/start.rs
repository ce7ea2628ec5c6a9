//! The checks and the choice of a port before a fabric is started.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rackpool_sync::KernelCopy;

use rackpool_fabric::handshake::MAX_EXPORTS;
use rackpool_fabric::ip_socket::is_this_host;

use crate::port::{Candidate, Forced, Port, choose};
use crate::verbs::{Context, Devices, open_devices};
use crate::{DeviceLimits, VerbsOptions, VerbsStartError};

/// Refuses options that are invalid or unsafe.
pub(super) fn check(options: &VerbsOptions) -> Result<(), VerbsStartError> {
    if options.exports.is_empty() || options.exports.len() > MAX_EXPORTS {
        return Err(VerbsStartError::Option {
            option: "exports",
            value: format!("{} regions", options.exports.len()),
            expected: "1 to 16 regions",
        });
    }
    if options.listen.ip().is_unspecified() {
        return Err(VerbsStartError::Option {
            option: "listen",
            value: options.listen.to_string(),
            expected: "an address that peers can connect to",
        });
    }
    if !options.key.is_used() && !is_this_host(&options.listen) {
        return Err(VerbsStartError::KeyNeeded(options.listen));
    }
    Ok(())
}

/// Checks that a fabric listening on `address` would find a port that keeps words whole. Creates
/// nothing.
///
/// # Errors Those of [`VerbsFabric::new`](crate::VerbsFabric::new) that concern the library, the
/// devices and the ports.
pub fn check_port(
    address: IpAddr,
    device: Option<&str>,
    port: Option<u8>,
    gid_index: Option<u8>,
) -> Result<(), VerbsStartError> {
    open_port(address, Forced { device, port, gid_index }, DeviceLimits::ANY).map(drop)
}

/// The options that restrict the choice of the port.
pub(super) fn forced(options: &VerbsOptions) -> Forced<'_> {
    let VerbsOptions { device, port, gid_index, .. } = options;
    Forced { device: device.as_deref(), port: *port, gid_index: *gid_index }
}

/// Opens the device of the port that matches the address and the options. Returns the device, the
/// port, and the limits of its use, which are at most `most`.
pub(super) fn open_port(
    address: IpAddr,
    forced: Forced<'_>,
    most: DeviceLimits,
) -> Result<(Arc<Context>, Port, DeviceLimits), VerbsStartError> {
    let Devices { opened: mut devices, closed } = open_devices()?;
    if devices.is_empty() {
        return Err(VerbsStartError::NoDevice(why_no_device(&closed)));
    }
    let mut candidates = Vec::new();
    for (position, device) in devices.iter().enumerate() {
        let look = || -> std::io::Result<Vec<Candidate>> {
            let gids = device.gids()?;
            let port = |number| {
                Ok(Candidate {
                    device: position,
                    device_name: device.name().to_owned(),
                    number,
                    state: device.port(number)?,
                    gids: gids.iter().copied().filter(|gid| gid.port == number).collect(),
                })
            };
            let (ports, _) = device.limits()?;
            (1..=ports).map(port).collect()
        };
        candidates.extend(look().map_err(|error| VerbsStartError::Device {
            step: "look at the ports",
            device: device.name().to_owned(),
            cause: error.to_string(),
        })?);
    }
    let mut port = choose(&candidates, address, forced)?;
    port.is_software = is_software(&Path::new("/sys/class/infiniband").join(&port.device_name));
    if port.is_software {
        check_copies(&port.device_name)?;
    }
    let device = devices.swap_remove(port.device);
    let failed =
        |step, cause| VerbsStartError::Device { step, device: port.device_name.clone(), cause };
    let (_, limits) =
        device.limits().map_err(|error| failed("ask for the limits", error.to_string()))?;
    let limits = DeviceLimits { message: port.state.max_message, ..limits }.min(most);
    limits.check().map_err(|cause| failed("do what a connection needs", cause))?;
    Ok((Arc::new(device), port, limits))
}

/// Refuses a device whose payloads the kernel may copy byte by byte.
fn check_copies(device: &str) -> Result<(), VerbsStartError> {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let copy = KernelCopy::of(&text("/proc/sys/kernel/osrelease"), &text("/proc/cpuinfo"));
    if copy.keeps_words_whole() {
        return Ok(());
    }
    Err(VerbsStartError::TornWords { device: device.into(), copy })
}

/// Returns true if the kernel does the work of the device, given its folder in sysfs. Soft-RoCE has
/// a `parent`, the network interface on which it is based; other software devices have no `device`
/// entry.
fn is_software(folder: &Path) -> bool {
    folder.exists() && (folder.join("parent").exists() || !folder.join("device").exists())
}

/// The likely cause and remedy when no device can be opened.
fn why_no_device(closed: &[(String, std::io::Error)]) -> String {
    if let Some((name, error)) = closed.first() {
        return format!(
            "{name} can't be opened: {error}. May this user open /dev/infiniband/uverbs*?"
        );
    }
    let some_in =
        |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut found| found.next().is_some());
    explain_no_device(some_in("/sys/class/infiniband"), some_in("/sys/class/infiniband_verbs"))
}

fn explain_no_device(in_kernel: bool, has_verbs: bool) -> String {
    match (in_kernel, has_verbs) {
        (false, _) => {
            "the kernel has none. With a card, load its module (mlx5_ib, irdma, bnxt_re, ...); \
             without, use soft-RoCE: modprobe rdma_rxe, then rdma link add rxe0 type rxe netdev ETH"
        }
        (true, false) => "the kernel has one, but no verbs: modprobe ib_uverbs",
        (true, true) => {
            "the kernel has one, but libibverbs has no driver for it: apt-get install \
             ibverbs-providers (Debian, Ubuntu), dnf install libibverbs (Fedora, RHEL)"
        }
    }
    .into()
}

#[cfg(test)]
mod tests {
    use rackpool_fabric::conformance::memory::FileMemory;
    use rackpool_fabric::{Keyring, ReceiveRoom};

    use super::*;

    #[test]
    fn a_missing_device_is_explained_by_what_is_there() {
        for (in_kernel, has_verbs, expected) in [
            (false, false, "modprobe rdma_rxe"),
            (true, false, "modprobe ib_uverbs"),
            (true, true, "ibverbs-providers"),
        ] {
            let text = explain_no_device(in_kernel, has_verbs);
            assert!(text.contains(expected) && !text.contains("  "), "{text}");
        }
    }

    #[test]
    fn devices_made_of_software_are_told_from_cards() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = |name: &str, files: &[&str]| {
            let folder = sysfs.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            for file in files {
                std::fs::write(folder.join(file), "").unwrap();
            }
            is_software(&folder)
        };
        assert!(device("rxe0", &["parent"]) && device("rxe1", &["parent", "device"]));
        assert!(device("siw0", &["node_desc"]));
        assert!(!device("mlx5_0", &["device", "node_desc"]));
        assert!(!is_software(&sysfs.path().join("gone")));
    }

    #[test]
    fn the_refusal_of_a_device_says_what_to_do() {
        let error =
            VerbsStartError::TornWords { device: "rxe0".into(), copy: KernelCopy::Bytes("erms") };
        let text = error.to_string();
        for part in ["rxe0 is soft-RoCE", "with erms", "clearcpuid=erms,fsrm", "--fabric tcp"] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
    }

    #[test]
    fn addresses_that_cannot_be_connected_to_or_need_a_key_are_refused() {
        let options = |listen: &str| VerbsOptions {
            rack: rackpool_model::RackId(1),
            incarnation: rackpool_model::Incarnation(1),
            listen: listen.parse().unwrap(),
            exports: vec![Arc::new(FileMemory::anonymous(4096))],
            device: None,
            port: None,
            gid_index: None,
            key: Keyring::unused(),
            receive_room: ReceiveRoom::new(0),
            limits: crate::DeviceLimits::ANY,
        };
        assert!(matches!(check(&options("0.0.0.0:1")), Err(VerbsStartError::Option { .. })));
        assert!(matches!(check(&options("10.0.0.1:1")), Err(VerbsStartError::KeyNeeded(_))));
        assert!(check(&options("127.0.0.1:1")).is_ok());
        let with_key = VerbsOptions { key: Keyring::awaited(), ..options("10.0.0.1:1") };
        assert!(check(&with_key).is_ok());
        let nothing = VerbsOptions { exports: Vec::new(), ..options("127.0.0.1:1") };
        assert!(matches!(check(&nothing), Err(VerbsStartError::Option { .. })));
    }
}
