//! A guest: one rack, one process of QEMU.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::accelerator::Accelerator;
use super::ctrl_c::Running;
use super::kernel::Boot;

/// The program that runs guests.
pub(super) const QEMU: &str = "qemu-system-x86_64";

/// The guest's hardware: three NUMA nodes, 0 and 1 with a processor each, 2 without; a network card
/// on a host bridge of node 0; a CXL expander behind one of a host bridge's two ports; the host's
/// files; and entropy.
///
/// Without `bus=` a device would be placed on the CXL host bridge. With a single port the host
/// bridge would have no decoder, which QEMU 7.2 needs to reach the expander's memory.
const MACHINE: &str = "\
    -nodefaults -no-user-config -display none -no-reboot -smp 2 \
    -machine q35,cxl=on,cxl-fmw.0.targets.0=cxl.0,cxl-fmw.0.size=4G \
    -m 1792M,maxmem=8G,slots=4 \
    -object memory-backend-ram,id=near,size=768M \
    -object memory-backend-ram,id=far,size=512M \
    -object memory-backend-ram,id=other,size=512M \
    -numa node,nodeid=0,cpus=0,memdev=near -numa node,nodeid=1,cpus=1,memdev=other \
    -numa node,nodeid=2,memdev=far \
    -numa dist,src=0,dst=1,val=20 -numa dist,src=0,dst=2,val=20 -numa dist,src=1,dst=2,val=20 \
    -device pxb-pcie,bus=pcie.0,bus_nr=64,numa_node=0,id=socket0 \
    -device pcie-root-port,bus=socket0,chassis=1,slot=4,id=card0 \
    -object memory-backend-ram,id=expander,size=256M,share=on \
    -object memory-backend-ram,id=labels,size=256M,share=on \
    -device pxb-cxl,bus=pcie.0,bus_nr=12,id=cxl.0 \
    -device cxl-rp,bus=cxl.0,port=0,chassis=0,slot=2,id=port0 \
    -device cxl-rp,bus=cxl.0,port=1,chassis=0,slot=3,id=port1 \
    -device cxl-type3,bus=port0,memdev=expander,lsa=labels,id=mem0 \
    -device virtio-9p-pci,bus=pcie.0,fsdev=host,mount_tag=host \
    -device virtio-9p-pci,bus=pcie.0,fsdev=lab,mount_tag=lab \
    -netdev socket,id=cable,fd=0 \
    -object rng-random,id=entropy,filename=/dev/urandom \
    -device virtio-rng-pci,bus=pcie.0,rng=entropy";

/// The paths of a guest's files on the host.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// 0 or 1.
    pub(super) rack: usize,
    /// The folder that the guests and the host share.
    pub(super) shared: PathBuf,
    /// The guest's serial console.
    pub(super) console: PathBuf,
}

/// The two ends of the cable between the guests: a pair of sockets. It takes no port, and when it
/// is full the sender waits instead of losing packets.
pub(super) fn cable() -> Result<[OwnedFd; 2]> {
    let (one, other) = UnixDatagram::pair().context("no pair of sockets")?;
    Ok([one.into(), other.into()])
}

/// Starts a guest. It ends when the value is dropped, or with this program, however that ends.
pub(super) fn start(
    place: &Place,
    boot: &Boot,
    accelerator: Accelerator,
    cable: OwnedFd,
) -> Result<Running> {
    plug_in(command(place, boot, accelerator), cable)
}

/// Starts a program that gets the end of a cable as its standard input.
pub(super) fn plug_in(mut program: Command, cable: OwnedFd) -> Result<Running> {
    let child = program.stdin(Stdio::from(cable)).spawn();
    child.map(Running).with_context(|| format!("{program:?} did not start"))
}

/// A program that is killed when this one ends, however that happens.
pub(super) fn mortal(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

fn command(place: &Place, boot: &Boot, accelerator: Accelerator) -> Command {
    let rack = place.rack;
    let mut command = mortal(QEMU);
    command
        .args(MACHINE.split_whitespace())
        .args(accelerator.options())
        .args(["-fsdev", &shared("host", Path::new("/"), ",readonly=on")])
        .args(["-fsdev", &shared("lab", &place.shared, "")])
        .args([
            "-device",
            &format!("virtio-net-pci,bus=card0,netdev=cable,romfile=,mac=52:54:00:00:00:0{rack}"),
        ])
        .args(["-serial", &format!("file:{}", option(&place.console))])
        .arg("-kernel")
        .arg(&boot.kernel)
        .arg("-initrd")
        .arg(&boot.initramfs)
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 lab.rack={rack}")]);
    command
}

fn shared(id: &str, folder: &Path, more: &str) -> String {
    let folder = option(folder);
    format!("local,id={id},path={folder},security_model=none,multidevs=remap{more}")
}

/// A path inside one of QEMU's options, in which a comma is doubled.
fn option(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(rack: usize) -> Vec<String> {
        let place = Place { rack, shared: "/a,b/share".into(), console: "/a,b/console".into() };
        let boot = Boot { kernel: "/c,d/vmlinuz".into(), initramfs: "/c,d/initramfs".into() };
        let command = command(&place, &boot, Accelerator::Tcg);
        command.get_args().map(|argument| argument.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_device_names_its_bus() {
        let arguments = arguments(1);
        let after = |option: &str| {
            arguments
                .windows(2)
                .filter(|pair| pair[0] == option)
                .map(|pair| pair[1].clone())
                .collect()
        };
        let devices: Vec<String> = after("-device");
        assert_eq!(devices.len(), 10);
        assert!(devices.iter().all(|device| device.contains(",bus=")), "{devices:?}");
    }

    #[test]
    fn the_hosts_files_can_not_be_written() {
        let all = arguments(0).join(" ");
        assert!(all.contains("id=host,path=/,security_model=none,multidevs=remap,readonly=on"));
    }

    #[test]
    fn commas_in_paths_reach_qemu() {
        let all = arguments(0).join(" ");
        assert!(all.contains("path=/a,,b/share,"), "{all}");
        assert!(all.contains("file:/a,,b/console"), "{all}");
        assert!(all.contains("-kernel /c,d/vmlinuz"), "{all}");
    }

    #[test]
    fn the_guests_differ_in_number_and_address() {
        let [zero, one] = [0, 1].map(|rack| arguments(rack).join(" "));
        assert!(zero.contains("lab.rack=0") && one.contains("lab.rack=1"));
        assert!(zero.contains("mac=52:54:00:00:00:00") && one.contains("mac=52:54:00:00:00:01"));
    }
}
