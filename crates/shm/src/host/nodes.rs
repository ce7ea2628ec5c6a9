use super::{HostFiles, names_in, parse_list};

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Node number.
    pub id: u32,
    /// Its processors; none for a memory-only node, such as CXL memory.
    pub cpus: Vec<u32>,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// Free bytes, and bytes that the kernel frees on demand: caches of files on disks.
    pub free_bytes: u64,
    /// Distance to each node in the order of node numbers: 10 is the node itself, 20 twice that
    /// latency (ACPI's SLIT).
    pub distances: Vec<u32>,
}

impl NumaNode {
    /// Returns true for a node with memory and no processors.
    #[must_use]
    pub const fn is_memory_only(&self) -> bool {
        self.cpus.is_empty() && self.memory_bytes > 0
    }
}

impl HostFiles {
    /// The NUMA nodes in the order of their numbers; empty if the kernel reports none.
    #[must_use]
    pub fn nodes(&self) -> Vec<NumaNode> {
        let folder = self.sys("devices/system/node");
        let mut ids: Vec<u32> = names_in(&folder)
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(|id| self.node(id)).collect()
    }

    fn node(&self, id: u32) -> NumaNode {
        let file = |name: &str| {
            self.sys_text(format!("devices/system/node/node{id}/{name}")).unwrap_or_default()
        };
        let meminfo = file("meminfo");
        NumaNode {
            id,
            cpus: parse_list(&file("cpulist")),
            memory_bytes: field_bytes(&meminfo, "MemTotal:"),
            free_bytes: ["MemFree:", "Active(file):", "Inactive(file):"]
                .iter()
                .map(|field| field_bytes(&meminfo, field))
                .sum(),
            distances: file("distance").split_whitespace().filter_map(|d| d.parse().ok()).collect(),
        }
    }
}

/// The bytes of the field in a line `NumaNode 0 <field> 123 kB`, whose unit is KiB.
fn field_bytes(meminfo: &str, field: &str) -> u64 {
    let value = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != field).skip(1);
        words.next()?.parse::<u64>().ok()
    };
    meminfo.lines().find_map(value).unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;

    const NODE: &str = "sys/devices/system/node";

    #[test]
    fn a_socket_and_a_cxl_expander_are_told_apart() {
        let file = |node: u32, name: &str| format!("{NODE}/node{node}/{name}");
        let files = [
            (file(0, "cpulist"), "0-3\n"),
            (
                file(0, "meminfo"),
                "Node 0 MemTotal:  1024 kB\nNode 0 MemFree:  256 kB\nNode 0 Active(file): 256 kB\n",
            ),
            (file(0, "distance"), "10 21 14\n"),
            (file(1, "cpulist"), "4-7\n"),
            (file(1, "meminfo"), ""),
            (file(1, "distance"), "21 10 30"),
            (file(2, "cpulist"), "\n"),
            (file(2, "meminfo"), "Node 2 MemTotal: 2048 kB\n"),
            (file(2, "distance"), "14 30 10"),
            (format!("{NODE}/online"), "0-2"),
        ];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_folder, machine) = fixture(&files);
        let nodes = machine.nodes();
        assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((nodes[0].memory_bytes, nodes[0].free_bytes), (1 << 20, 512 << 10));
        assert_eq!(nodes[0].cpus, [0, 1, 2, 3]);
        assert!(nodes[2].is_memory_only() && !nodes[1].is_memory_only());
    }

    #[test]
    fn a_kernel_without_nodes_has_none() {
        let (_folder, machine) = fixture(&[]);
        assert!(machine.nodes().is_empty());
    }
}
