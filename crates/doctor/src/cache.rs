//! The last-level cache, and the ways of it that devices write to.
//!
//! A network card that writes into the cache (Intel's DDIO, AMD's and Arm's stashing) may use a few
//! of its ways. Data that arrives there faster than programs read it is evicted to memory.
//! `resctrl` reports the ways that hardware shares with programs.

use rackpool_shm::host::{HostFiles, names_in};

/// The last-level cache of the first processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastLevelCache {
    /// The cache level; usually 3.
    pub level: u32,
    /// The size in bytes.
    pub bytes: u64,
    /// The number of ways, if the kernel reports it.
    pub ways: Option<u32>,
    /// The processors that share the cache, in the kernel's notation.
    pub shared_by: String,
}

/// Returns the last-level cache; `None` if the kernel does not report it.
#[must_use]
pub fn last_level(machine: &HostFiles) -> Option<LastLevelCache> {
    const BASE: &str = "devices/system/cpu/cpu0/cache";
    let cache = |name: &String| {
        let file = |file: &str| machine.sys_text(format!("{BASE}/{name}/{file}"));
        if file("type")? == "Instruction" {
            return None;
        }
        Some(LastLevelCache {
            level: file("level")?.parse().ok()?,
            bytes: kernel_size(&file("size")?)?,
            ways: file("ways_of_associativity").and_then(|ways| ways.parse().ok()),
            shared_by: file("shared_cpu_list").unwrap_or_default(),
        })
    };
    names_in(&machine.sys(BASE)).iter().filter_map(cache).max_by_key(|cache| cache.level)
}

/// Parses a cache size in the kernel's notation: `32768K`, `1M`.
fn kernel_size(text: &str) -> Option<u64> {
    text.parse::<rackpool_model::ByteSize>().ok().map(|size| size.0)
}

/// The ways of the last-level cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoWays {
    /// The number of ways that I/O shares.
    pub shared: u32,
    /// The number of all ways.
    pub all: u32,
}

/// Returns the ways of the last-level cache, or why they are unknown.
pub fn io_ways(machine: &HostFiles) -> Result<IoWays, String> {
    let mask = |file: &str| {
        let text = machine.sys_text(format!("fs/resctrl/info/L3/{file}"))?;
        u64::from_str_radix(&text, 16).ok()
    };
    match (mask("shareable_bits"), mask("cbm_mask")) {
        (Some(shared), Some(all)) if all != 0 => {
            Ok(IoWays { shared: shared.count_ones(), all: all.count_ones() })
        }
        _ if machine.sys("fs/resctrl").is_dir() => {
            Err("resctrl is not mounted or has no L3: mount -t resctrl resctrl /sys/fs/resctrl"
                .into())
        }
        _ => Err("this kernel or processor has no resctrl".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::fixture;
    use super::*;

    const CACHE: &str = "sys/devices/system/cpu/cpu0/cache";

    #[test]
    fn the_largest_level_is_found_and_its_io_share() {
        let file = |path: &str| format!("{CACHE}/{path}");
        let files = [
            (file("index0/type"), "Data"),
            (file("index0/level"), "1"),
            (file("index0/size"), "48K"),
            (file("index3/type"), "Unified\n"),
            (file("index3/level"), "3\n"),
            (file("index3/size"), "32768K\n"),
            (file("index3/ways_of_associativity"), "16"),
            (file("index3/shared_cpu_list"), "0-7\n"),
            ("sys/fs/resctrl/info/L3/cbm_mask".into(), "7ff\n"),
            ("sys/fs/resctrl/info/L3/shareable_bits".into(), "600\n"),
        ];
        let (_folder, machine) = fixture(&files);
        let found = last_level(&machine).unwrap();
        assert_eq!((found.level, found.bytes, found.ways), (3, 32 << 20, Some(16)));
        assert_eq!(found.shared_by, "0-7");
        assert_eq!(io_ways(&machine), Ok(IoWays { shared: 2, all: 11 }));
    }

    #[test]
    fn what_is_not_there_is_not_guessed() {
        let (_folder, machine) = fixture(&[]);
        assert_eq!(last_level(&machine), None);
        assert!(io_ways(&machine).unwrap_err().contains("no resctrl"));
        let (_folder, machine) = fixture(&[("sys/fs/resctrl/.keep".into(), "")]);
        assert!(io_ways(&machine).unwrap_err().contains("mount -t resctrl"));
    }
}
