use rackpool_shm::host::{HostFiles, names_in};

use crate::WayMask;

/// Folders of resctrl that are no groups.
const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// The kernel's interface to cache allocation (CAT), if it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resctrl {
    /// All ways of the last-level cache.
    pub all: WayMask,
    /// Ways that hardware uses, too, as the kernel knows it.
    pub shareable: WayMask,
    /// The fewest ways of a mask.
    pub min_ways: u32,
    /// The groups of programs; the first one has the programs that no other has.
    pub groups: Vec<Group>,
}

/// Programs with a mask for each cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of its folder; empty for the default group.
    pub name: String,
    /// Number and mask of each last-level cache.
    pub masks: Vec<(u32, WayMask)>,
}

impl Resctrl {
    /// Returns `None` if resctrl is not mounted or knows no last-level cache.
    #[must_use]
    pub fn of(machine: &HostFiles) -> Option<Self> {
        let mask = |file: &str| {
            let text = machine.sys_text(format!("fs/resctrl/info/L3/{file}"))?;
            u32::from_str_radix(&text, 16).ok().map(WayMask)
        };
        let all = mask("cbm_mask")?;
        let min_ways = machine.sys_number("fs/resctrl/info/L3/min_cbm_bits").unwrap_or(1);
        let folders = names_in(&machine.sys("fs/resctrl"));
        let group = |name: String| {
            let schemata = machine.sys_text(format!("fs/resctrl/{name}/schemata"))?;
            Some(Group { masks: masks(&schemata)?, name })
        };
        let named = folders.into_iter().filter(|name| !NO_GROUPS.contains(&name.as_str()));
        Some(Self {
            all,
            shareable: mask("shareable_bits").unwrap_or(WayMask(0)),
            min_ways: u32::try_from(min_ways).unwrap_or(1),
            groups: std::iter::once(String::new()).chain(named).filter_map(group).collect(),
        })
    }

    /// Names of the groups whose programs may use ways that devices write into.
    #[must_use]
    pub fn overlapping(&self, devices: WayMask) -> Vec<&str> {
        let overlaps = |group: &&Group| group.masks.iter().any(|(_, mask)| mask.overlaps(devices));
        self.groups.iter().filter(overlaps).map(|group| group.name.as_str()).collect()
    }
}

/// Parses the line `L3:0=7ff;1=07f`. The kernel pads masks with zeros.
pub(super) fn masks(schemata: &str) -> Option<Vec<(u32, WayMask)>> {
    let line = schemata.lines().find_map(|line| line.trim().strip_prefix("L3:"))?;
    line.split(';')
        .map(|part| {
            let (cache, mask) = part.split_once('=')?;
            let mask = u32::from_str_radix(mask.trim(), 16).ok()?;
            Some((cache.trim().parse().ok()?, WayMask(mask)))
        })
        .collect()
}
