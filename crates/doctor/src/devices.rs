//! CXL memory: the expanders, and the dax devices backed by their memory.

use rackpool_shm::host::{HostFiles, names_in};

/// A CXL memory expander.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CxlMemory {
    /// A name like `mem0`.
    pub name: String,
    /// Volatile bytes.
    pub ram_bytes: u64,
    /// Persistent bytes.
    pub pmem_bytes: u64,
    /// The NUMA node of the expander's slot.
    pub node: Option<u32>,
    /// Whether part of the memory has an address, so that a node or a dax device can use it; `None`
    /// if the kernel does not report it.
    pub is_mapped: Option<bool>,
}

/// A device of the kernel's dax subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaxDevice {
    /// A name like `dax0.0`.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The alignment of mappings in bytes.
    pub align: u64,
    /// The NUMA node of the memory.
    pub node: Option<u32>,
    /// The driver: `device_dax` gives the memory to programs, `kmem` to the kernel as a NUMA node.
    pub driver: Option<String>,
}

impl DaxDevice {
    /// Whether a program can map the device.
    #[must_use]
    pub fn is_mappable(&self) -> bool {
        self.driver.as_deref() == Some("device_dax")
    }

    /// The device's path.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }
}

const BASE: &str = "bus/cxl/devices";

/// Returns the CXL memory expanders.
#[must_use]
pub fn cxl_memory(machine: &HostFiles) -> Vec<CxlMemory> {
    let memory = |name: String| {
        let is_memory = name.strip_prefix("mem")?.parse::<u32>().is_ok();
        let size = |file: &str| machine.sys_number(format!("{BASE}/{name}/{file}")).unwrap_or(0);
        let (ram_bytes, pmem_bytes) = (size("ram/size"), size("pmem/size"));
        let node = node(machine, &format!("{BASE}/{name}/numa_node"));
        let is_mapped = is_mapped(machine, &name);
        is_memory.then_some(CxlMemory { name, ram_bytes, pmem_bytes, node, is_mapped })
    };
    names_in(&machine.sys(BASE)).into_iter().filter_map(memory).collect()
}

/// Returns whether one of the expander's decoders has an address range. The decoders of
/// `endpoint4`, whose `uport` is the expander, are `decoder4.0` and so on.
fn is_mapped(machine: &HostFiles, memory: &str) -> Option<bool> {
    let names = names_in(&machine.sys(BASE));
    let endpoint =
        names.iter().filter_map(|name| name.strip_prefix("endpoint")).find(|number| {
            let port = std::fs::read_link(machine.sys(format!("{BASE}/endpoint{number}/uport")));
            port.is_ok_and(|port| port.ends_with(memory))
        })?;
    let decoders = format!("decoder{endpoint}.");
    let size = |name: &String| machine.sys_number(format!("{BASE}/{name}/size"));
    let mut sizes = names.iter().filter(|name| name.starts_with(&decoders)).filter_map(size);
    Some(sizes.any(|size| size > 0))
}

/// Returns the dax devices.
#[must_use]
pub fn dax_devices(machine: &HostFiles) -> Vec<DaxDevice> {
    const BASE: &str = "bus/dax/devices";
    let device = |name: String| {
        let number = |file: &str| machine.sys_number(format!("{BASE}/{name}/{file}"));
        let driver = std::fs::read_link(machine.sys(format!("{BASE}/{name}/driver"))).ok();
        DaxDevice {
            bytes: number("size").unwrap_or(0),
            align: number("align").unwrap_or(0),
            node: node(machine, &format!("{BASE}/{name}/target_node")),
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
            name,
        }
    };
    names_in(&machine.sys(BASE)).into_iter().map(device).collect()
}

/// Reads a node's number; the kernel writes -1 for an unknown node.
fn node(machine: &HostFiles, file: &str) -> Option<u32> {
    machine.sys_text(file)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::fixture::fixture;
    use super::*;

    #[test]
    fn an_expander_is_mapped_when_a_decoder_of_its_endpoint_is() {
        let file = |path: &str| format!("sys/bus/cxl/devices/{path}");
        let (_folder, machine) = fixture(&[
            (file("mem0/pmem/size"), "0x10000000\n"),
            (file("mem1/pmem/size"), "0x10000000\n"),
            (file("mem2/pmem/size"), "0x10000000\n"),
            (file("endpoint2/devtype"), "cxl_port\n"),
            (file("endpoint3/devtype"), "cxl_port\n"),
            // The window of the host's addresses has a size in any case.
            (file("decoder0.0/size"), "0x100000000\n"),
            (file("decoder2.0/size"), "0x0\n"),
            (file("decoder3.0/size"), "0x0\n"),
            (file("decoder3.1/size"), "0x10000000\n"),
            (file("decoder22.0/size"), "0x10000000\n"),
        ]);
        for (endpoint, memory) in [(2, 1), (3, 0)] {
            let port = machine.sys(format!("bus/cxl/devices/endpoint{endpoint}/uport"));
            symlink(format!("../../../pci0000:0c/mem{memory}"), port).unwrap();
        }
        let mapped: Vec<_> = cxl_memory(&machine).iter().map(|memory| memory.is_mapped).collect();
        assert_eq!(mapped, [Some(true), Some(false), None]);
    }

    #[test]
    fn expanders_and_their_devices_are_found() {
        let (_folder, machine) = fixture(&[
            ("sys/bus/cxl/devices/mem0/ram/size".into(), "0x40000000\n"),
            ("sys/bus/cxl/devices/mem0/numa_node".into(), "-1"),
            ("sys/bus/cxl/devices/root0/uevent".into(), ""),
            ("sys/bus/dax/devices/dax0.0/size".into(), "1073741824\n"),
            ("sys/bus/dax/devices/dax0.0/align".into(), "2097152\n"),
            ("sys/bus/dax/devices/dax0.0/target_node".into(), "1\n"),
            ("sys/bus/dax/devices/dax1.0/size".into(), "4096"),
        ]);
        let driver = machine.sys("bus/dax/devices/dax0.0/driver");
        symlink("../../drivers/device_dax", driver).unwrap();
        let expanders = cxl_memory(&machine);
        assert_eq!(expanders.len(), 1);
        assert_eq!((expanders[0].ram_bytes, expanders[0].node), (1 << 30, None));
        let devices = dax_devices(&machine);
        assert_eq!((devices[0].align, devices[0].node), (2 << 20, Some(1)));
        assert!(devices[0].is_mappable() && !devices[1].is_mappable());
        assert_eq!(devices[0].path(), "/dev/dax0.0");
    }
}
