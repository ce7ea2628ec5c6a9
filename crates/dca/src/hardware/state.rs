use std::collections::BTreeMap;

use rackpool_shm::host::{HostFiles, LastLevelCache, Processor, names_in};

use super::{HardwareError, Registers, Resctrl};
use crate::WayMask;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its number.
    pub id: u32,
    /// One of its processors.
    pub cpu: u32,
}

/// What a machine has.
#[derive(Clone, Debug)]
pub struct State {
    /// The processor, if the kernel names it.
    pub processor: Option<Processor>,
    /// The last-level cache of a socket, if the kernel describes it.
    pub cache: Option<LastLevelCache>,
    /// The sockets, with a processor of each.
    pub sockets: Vec<Socket>,
    /// Cache allocation; `None` if resctrl is not mounted.
    pub resctrl: Option<Resctrl>,
    /// The NUMA node of the RDMA card, if there is one and the kernel says it.
    pub card_node: Option<u32>,
}

impl State {
    /// Reads what the kernel says; no register.
    #[must_use]
    pub fn of(machine: &HostFiles) -> Self {
        Self {
            processor: machine.processor(),
            cache: machine.last_level_cache(None),
            sockets: sockets(machine),
            resctrl: Resctrl::of(machine),
            card_node: machine.card_node(None, None),
        }
    }

    /// Fails unless the machine is known to have the register.
    pub fn check_known(&self) -> Result<(), HardwareError> {
        let processor = self.processor.as_ref().ok_or(HardwareError::NoProcessor)?;
        if processor.has_device_ways_register() {
            return Ok(());
        }
        Err(HardwareError::UnknownProcessor(processor.to_string()))
    }

    /// The ways into which devices write, for each socket.
    pub fn ways(
        &self,
        registers: &mut dyn Registers,
    ) -> Result<Vec<(Socket, WayMask)>, HardwareError> {
        self.check_known()?;
        let ways = |socket: &Socket| {
            let value = registers.read(socket.cpu)?;
            let mask = u32::try_from(value).map_err(|_| {
                HardwareError::Refused(format!(
                    "register 0xC8B of CPU {} has {value:#x}, which is no mask of ways",
                    socket.cpu
                ))
            })?;
            Ok((*socket, WayMask(mask)))
        };
        self.sockets.iter().map(ways).collect()
    }
}

fn sockets(machine: &HostFiles) -> Vec<Socket> {
    let mut first = BTreeMap::new();
    for name in names_in(&machine.sys("devices/system/cpu")) {
        let Some(cpu): Option<u32> =
            name.strip_prefix("cpu").and_then(|number| number.parse().ok())
        else {
            continue;
        };
        let file = format!("devices/system/cpu/{name}/topology/physical_package_id");
        let Some(id) = machine.sys_number(file).and_then(|id| u32::try_from(id).ok()) else {
            continue;
        };
        first.entry(id).and_modify(|least: &mut u32| *least = cpu.min(*least)).or_insert(cpu);
    }
    first.into_iter().map(|(id, cpu)| Socket { id, cpu }).collect()
}
