use std::os::unix::fs::FileExt;

use super::{HostFiles, names_in};

/// The model-specific register with the ways that devices write into, a bit for each
/// (`IIO LLC WAYS` of Intel's server processors, Farshin et al., USENIX ATC 2020, section 4.4).
pub const IIO_LLC_WAYS: u64 = 0xC8B;
/// Number of ways into which devices write by the processors' default (the same, section 4.1).
const DEFAULT_WAYS: u32 = 2;

/// The last-level cache of a processor.
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

/// The ways of a last-level cache into which devices write (Intel's DDIO, AMD's and Arm's
/// stashing). Data that arrives there faster than programs read it is evicted to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceWays {
    /// The number of ways that devices write into. Programs use them, too.
    pub shared: u32,
    /// The number of all ways.
    pub all: u32,
}

impl HostFiles {
    /// The last-level cache of a node's processors; of the first processor if `node` is `None` or
    /// has none. Returns `None` if the kernel does not report the cache.
    ///
    /// ```
    /// use rackpool_shm::host::HostFiles;
    /// if let Some(cache) = HostFiles::here().last_level_cache(None) {
    ///     assert!(cache.bytes > 0);
    /// }
    /// ```
    #[must_use]
    pub fn last_level_cache(&self, node: Option<u32>) -> Option<LastLevelCache> {
        let base = format!("devices/system/cpu/cpu{}/cache", self.first_cpu(node));
        let cache = |name: &String| {
            let file = |file: &str| self.sys_text(format!("{base}/{name}/{file}"));
            if file("type")? == "Instruction" {
                return None;
            }
            Some(LastLevelCache {
                level: file("level")?.parse().ok()?,
                bytes: file("size")?.parse::<rackpool_model::ByteSize>().ok()?.0,
                ways: file("ways_of_associativity")
                    .and_then(|ways| ways.parse().ok())
                    .filter(|ways| *ways > 0),
                shared_by: file("shared_cpu_list").unwrap_or_default(),
            })
        };
        names_in(&self.sys(&base)).iter().filter_map(cache).max_by_key(|cache| cache.level)
    }

    /// The ways into which devices write, of the last-level cache of a node's processors: from the
    /// processor's register, else from resctrl. The error says why they are unknown.
    pub fn device_ways(&self, node: Option<u32>) -> Result<DeviceWays, String> {
        self.ways_of_register(node).map_or_else(|| self.ways_of_resctrl(), Ok)
    }

    /// Bytes of a node's last-level cache that writes of devices may fill. If more bytes are in
    /// flight, arriving data is evicted to memory before it is used. Two ways count as the share if
    /// neither the processor nor the kernel names them: the default of processors that have such a
    /// limit. Returns 0 if the kernel does not describe the cache.
    #[must_use]
    pub fn device_share(&self, node: Option<u32>) -> u64 {
        let Some(cache) = self.last_level_cache(node) else { return 0 };
        let Some(all) = cache.ways else { return 0 };
        let shared = self.device_ways(node).map_or(DEFAULT_WAYS, |ways| ways.shared);
        (cache.bytes / u64::from(all)).saturating_mul(shared.into()).min(cache.bytes)
    }

    fn first_cpu(&self, node: Option<u32>) -> u32 {
        let of = |node| self.nodes().into_iter().find(|found| found.id == node);
        node.and_then(of).and_then(|node| node.cpus.first().copied()).unwrap_or(0)
    }

    /// Reads register [`IIO_LLC_WAYS`] of the socket of a processor, which must
    /// [have it](super::Processor::has_device_ways_register). It takes root and the module `msr`.
    pub fn device_ways_register(&self, cpu: u32) -> std::io::Result<u64> {
        let mut value = [0; 8];
        let file = std::fs::File::open(self.dev(format!("cpu/{cpu}/msr")))?;
        file.read_exact_at(&mut value, IIO_LLC_WAYS)?;
        Ok(u64::from_le_bytes(value))
    }

    fn ways_of_register(&self, node: Option<u32>) -> Option<DeviceWays> {
        if !self.processor()?.has_device_ways_register() {
            return None;
        }
        let all = self.last_level_cache(node)?.ways?;
        let mask = self.device_ways_register(self.first_cpu(node)).ok()?;
        let is_mask = mask != 0 && mask.checked_shr(all).unwrap_or(0) == 0;
        is_mask.then_some(DeviceWays { shared: mask.count_ones(), all })
    }

    fn ways_of_resctrl(&self) -> Result<DeviceWays, String> {
        let mask = |file: &str| {
            let text = self.sys_text(format!("fs/resctrl/info/L3/{file}"))?;
            u64::from_str_radix(&text, 16).ok().filter(|mask| *mask != 0)
        };
        match (mask("shareable_bits"), mask("cbm_mask")) {
            (Some(shared), Some(all)) => {
                Ok(DeviceWays { shared: shared.count_ones(), all: all.count_ones() })
            }
            (None, Some(_)) => Err("resctrl names no ways that hardware uses, too".into()),
            _ if self.sys("fs/resctrl").is_dir() => {
                Err("resctrl is not mounted or has no L3: mount -t resctrl resctrl /sys/fs/resctrl"
                    .into())
            }
            _ => Err("this kernel or processor has no resctrl".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    fn cache(cpu: u32, size: &'static str, ways: &'static str) -> Vec<(String, &'static str)> {
        let base = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        let file = |path: &str| format!("{base}/{path}");
        vec![
            (file("index0/type"), "Data"),
            (file("index0/level"), "1"),
            (file("index0/size"), "48K"),
            (file("index3/type"), "Unified\n"),
            (file("index3/level"), "3\n"),
            (file("index3/size"), size),
            (file("index3/ways_of_associativity"), ways),
            (file("index3/shared_cpu_list"), "0-7\n"),
        ]
    }

    fn with(files: &[Vec<(String, &'static str)>]) -> (tempfile::TempDir, HostFiles) {
        let files: Vec<(&str, &str)> =
            files.iter().flatten().map(|(path, text)| (path.as_str(), *text)).collect();
        fixture(&files)
    }

    fn resctrl(shareable: &'static str) -> Vec<(String, &'static str)> {
        let file = |file: &str| format!("sys/fs/resctrl/info/L3/{file}");
        vec![(file("cbm_mask"), "7ff\n"), (file("shareable_bits"), shareable)]
    }

    #[test]
    fn the_largest_level_is_found_and_the_devices_share_of_it() {
        let (_folder, machine) = with(&[cache(0, "32768K\n", "16\n"), resctrl("600\n")]);
        let found = machine.last_level_cache(None).unwrap();
        assert_eq!((found.level, found.bytes, found.ways), (3, 32 << 20, Some(16)));
        assert_eq!(found.shared_by, "0-7");
        assert_eq!(machine.device_ways(None), Ok(DeviceWays { shared: 2, all: 11 }));
        assert_eq!(machine.device_share(None), 4 << 20);
    }

    #[test]
    fn the_share_is_of_the_cards_node() {
        let node = |id: u32| format!("sys/devices/system/node/node{id}/cpulist");
        let nodes = vec![(node(0), "0-3\n"), (node(1), "4-7\n"), (node(2), "\n")];
        let (_folder, machine) =
            with(&[nodes, cache(0, "32768K\n", "16\n"), cache(4, "8M", "8"), resctrl("7\n")]);
        assert_eq!(machine.device_share(Some(0)), 6 << 20);
        assert_eq!(machine.device_share(Some(1)), 3 << 20);
        // Memory without processors has no cache of its own.
        assert_eq!(machine.device_share(Some(2)), 6 << 20);
    }

    #[test]
    fn the_register_of_an_intel_processor_says_more_than_the_kernel() {
        for (vendor, mask, shared) in [
            ("GenuineIntel", 0x7f0_u64, 7),
            // No mask of ways.
            ("GenuineIntel", 0, 2),
            ("GenuineIntel", 1 << 20, 2),
            ("AuthenticAMD", 0x7f0, 2),
        ] {
            let cpuinfo = if vendor == "GenuineIntel" {
                "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n"
            } else {
                "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
            };
            let (folder, machine) = with(&[
                cache(0, "32768K\n", "16\n"),
                resctrl("600\n"),
                vec![("proc/cpuinfo".into(), cpuinfo)],
            ]);
            let registers = folder.path().join("dev/cpu/0");
            std::fs::create_dir_all(&registers).unwrap();
            let file = std::fs::File::create(registers.join("msr")).unwrap();
            file.write_all_at(&mask.to_le_bytes(), IIO_LLC_WAYS).unwrap();
            assert_eq!(machine.device_ways(None).unwrap().shared, shared, "{vendor} {mask:#x}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_guessed() {
        let (_folder, machine) = fixture(&[]);
        assert_eq!((machine.last_level_cache(None), machine.device_share(None)), (None, 0));
        assert!(machine.device_ways(None).unwrap_err().contains("no resctrl"));
        let (_folder, machine) = fixture(&[("sys/fs/resctrl/.keep", "")]);
        assert!(machine.device_ways(None).unwrap_err().contains("mount -t resctrl"));
        let (_folder, machine) = with(&[cache(0, "32768K\n", "0\n"), resctrl("0\n")]);
        assert_eq!(machine.device_share(None), 0, "no ways are known");
        assert!(machine.device_ways(None).unwrap_err().contains("names no ways"));
    }

    #[test]
    fn two_ways_are_the_default() {
        let (_folder, machine) = with(&[cache(0, "32M\n", "16\n")]);
        assert_eq!(machine.device_share(None), 4 << 20);
        let (_folder, machine) = with(&[cache(0, "32M\n", "1\n")]);
        assert_eq!(machine.device_share(None), 32 << 20);
    }
}
