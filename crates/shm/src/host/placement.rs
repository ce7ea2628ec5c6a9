use std::collections::BTreeMap;
use std::time::Duration;

use super::{HostFiles, NumaNode, list_text};

/// Share of the time from which on a node's processors count as loaded. The measurements behind the
/// rule load all processors of a node or none; half is this project's choice.
pub const LOADED: f64 = 0.5;
/// The time over which the load of the nodes is measured before frames are placed.
pub const LOAD_WINDOW: Duration = Duration::from_millis(100);

/// The NUMA node that the rules choose, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenNode {
    /// The node; `None` leaves the choice to the kernel.
    pub node: Option<u32>,
    /// The reason, for operators.
    pub reason: String,
}

impl ChosenNode {
    fn at(node: u32, reason: impl Into<String>) -> Self {
        Self { node: Some(node), reason: reason.into() }
    }

    /// Leaves the choice to the kernel.
    pub fn anywhere(reason: impl Into<String>) -> Self {
        Self { node: None, reason: reason.into() }
    }
}

/// What the rules for placement look at. docs/design/placement.md has the rules and their source.
///
/// ```
/// use rackpool_shm::host::{NumaNode, Placing};
/// let nodes = [0, 1].map(|id| NumaNode { id, cpus: vec![id], ..NumaNode::default() });
/// let placing = Placing { nodes: &nodes, card: Some(1), memory: None };
/// assert_eq!(placing.thread().node, Some(1));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Placing<'a> {
    /// The host's NUMA nodes.
    pub nodes: &'a [NumaNode],
    /// The node of the card of the fabric, if it is known.
    pub card: Option<u32>,
    /// The node that the kind of memory names (`numa:N`).
    pub memory: Option<u32>,
}

impl Placing<'_> {
    /// The node of the data plane's thread, the clients' files and the request buffers (R1).
    #[must_use]
    pub fn thread(&self) -> ChosenNode {
        if self.nodes.len() < 2 {
            return ChosenNode::anywhere("this machine has one NUMA node");
        }
        match (self.card, self.memory) {
            (Some(card), _) => ChosenNode::at(card, "the RDMA card's"),
            (None, Some(memory)) => match nearest_with_cpus(self.nodes, memory) {
                Some(id) => ChosenNode::at(id, format!("the nearest to memory node {memory}")),
                None => ChosenNode::anywhere("no node has processors"),
            },
            (None, None) => {
                ChosenNode::anywhere("no RDMA card says its node, no memory is bound to one")
            }
        }
    }

    /// The node of the frames, for memory of a kind that has no node of its own (R1, R2). `load`
    /// returns the share of the time in which the processors of each node are busy; it is called
    /// only if a choice depends on it.
    pub fn frames(&self, load: impl FnOnce() -> BTreeMap<u32, f64>) -> ChosenNode {
        if self.nodes.len() < 2 {
            return ChosenNode::anywhere("this machine has one NUMA node");
        }
        let Some(card) = self.card else {
            return ChosenNode::anywhere("no RDMA card says its node");
        };
        let has_memory = |node: &&NumaNode| node.memory_bytes > 0;
        if !self.nodes.iter().filter(has_memory).any(|node| node.id == card) {
            return ChosenNode::anywhere(format!("the RDMA card's node {card} has no memory"));
        }
        let mut others = self
            .nodes
            .iter()
            .filter(has_memory)
            .filter(|node| node.id != card && !node.cpus.is_empty())
            .peekable();
        if others.peek().is_none() {
            return ChosenNode::at(card, "the RDMA card's");
        }
        let load = load();
        let busy = |node: u32| load.get(&node).copied().unwrap_or(0.0);
        let percent = busy(card) * 100.0;
        let least = others.min_by(|a, b| busy(a.id).total_cmp(&busy(b.id)));
        match least.filter(|other| busy(card) >= LOADED && busy(other.id) < LOADED) {
            Some(other) => ChosenNode::at(
                other.id,
                format!(
                    "not the RDMA card's node {card}, whose processors are {percent:.0} % busy"
                ),
            ),
            None => {
                ChosenNode::at(card, format!("the RDMA card's, processors {percent:.0} % busy"))
            }
        }
    }

    /// Fails, with the nodes to choose from, if the node has no memory.
    pub fn require_memory(&self, node: u32) -> Result<(), String> {
        let with_memory: Vec<u32> =
            self.nodes.iter().filter(|node| node.memory_bytes > 0).map(|node| node.id).collect();
        if with_memory.contains(&node) {
            return Ok(());
        }
        Err(format!(
            "node {node} has no memory or is not there, nodes with memory are {}",
            list_text(&with_memory)
        ))
    }
}

/// The nearest node with processors, which is `node` itself if it has some.
fn nearest_with_cpus(nodes: &[NumaNode], node: u32) -> Option<u32> {
    let from = nodes.iter().find(|found| found.id == node)?;
    let distance = |other: &NumaNode| {
        let at = nodes.iter().position(|found| found.id == other.id)?;
        from.distances.get(at).copied()
    };
    nodes
        .iter()
        .filter(|other| !other.cpus.is_empty())
        .min_by_key(|other| (distance(other).unwrap_or(u32::MAX), other.id))
        .map(|other| other.id)
}

impl HostFiles {
    /// The NUMA node of a card: of the named device, of the device with this address, or of the
    /// first one with an active port.
    #[must_use]
    pub fn card_node(
        &self,
        device: Option<&str>,
        address: Option<std::net::IpAddr>,
    ) -> Option<u32> {
        let ports = self.rdma_ports();
        if let Some(device) = device {
            return ports.iter().find(|port| port.device == device)?.node;
        }
        let has_address = |port: &&super::RdmaPort| {
            port.gids_v2.iter().any(|(_, gid)| address.is_some_and(|address| is(gid, address)))
        };
        let active = || ports.iter().find(|port| port.is_active());
        ports.iter().find(has_address).or_else(active)?.node
    }
}

/// Returns true if a GID is this address; the kernel writes IPv4 addresses as mapped ones.
fn is(gid: &str, address: std::net::IpAddr) -> bool {
    gid.parse::<std::net::Ipv6Addr>().is_ok_and(|gid| gid.to_canonical() == address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::super::tests::fixture;
    use super::*;

    /// Two sockets and memory without processors, which is nearer to the second.
    fn nodes() -> Vec<NumaNode> {
        let node = |id, cpus: &[u32], distances: [u32; 3]| NumaNode {
            id,
            cpus: cpus.to_vec(),
            memory_bytes: 1 << 30,
            free_bytes: 1 << 29,
            distances: distances.to_vec(),
        };
        vec![
            node(0, &[0, 1], [10, 21, 30]),
            node(1, &[2, 3], [21, 10, 14]),
            node(2, &[], [30, 14, 10]),
        ]
    }

    fn frames(nodes: &[NumaNode], card: Option<u32>, busy: [f64; 2]) -> ChosenNode {
        Placing { nodes, card, memory: None }
            .frames(|| BTreeMap::from([(0, busy[0]), (1, busy[1])]))
    }

    #[test]
    fn threads_are_at_the_card_else_near_the_memory() {
        let nodes = nodes();
        let thread = |card, memory| Placing { nodes: &nodes, card, memory }.thread().node;
        assert_eq!(thread(Some(0), Some(2)), Some(0));
        assert_eq!(thread(None, Some(2)), Some(1));
        assert_eq!(thread(None, Some(0)), Some(0));
        assert_eq!((thread(None, None), thread(None, Some(9))), (None, None));
        let one = Placing { nodes: &nodes[..1], card: Some(0), memory: Some(0) };
        assert_eq!(one.thread().node, None);
    }

    #[test]
    fn frames_are_at_the_card_unless_programs_compute_there() {
        let nodes = nodes();
        assert_eq!(frames(&nodes, Some(0), [0.1, 0.0]).node, Some(0));
        let moved = frames(&nodes, Some(0), [0.9, 0.2]);
        assert_eq!(moved.node, Some(1));
        assert!(moved.reason.contains("node 0, whose processors are 90 % busy"), "{moved:?}");
        assert_eq!(frames(&nodes, Some(1), [0.2, LOADED]).node, Some(0));
        // Everything is loaded: nothing is gained.
        assert_eq!(frames(&nodes, Some(1), [0.6, 0.9]).node, Some(1));
    }

    #[test]
    fn nobody_looks_at_the_load_if_nothing_depends_on_it() {
        let nodes = nodes();
        let unasked = |nodes: &[NumaNode], card| {
            Placing { nodes, card, memory: None }.frames(|| panic!("not needed")).node
        };
        assert_eq!(unasked(&nodes, None), None);
        assert_eq!(unasked(&nodes[..1], Some(0)), None);
        assert_eq!(unasked(&[nodes[0].clone(), nodes[2].clone()], Some(0)), Some(0));
        let mut empty = nodes.clone();
        empty[1].memory_bytes = 0;
        assert_eq!(unasked(&empty, Some(1)), None, "the card's node has no memory");
        assert_eq!(unasked(&empty, Some(0)), Some(0), "no other node has memory and processors");
    }

    #[test]
    fn a_node_without_memory_is_refused_with_those_that_have_some() {
        let nodes = nodes();
        let placing = Placing { nodes: &nodes, card: None, memory: None };
        assert_eq!(placing.require_memory(2), Ok(()));
        let refused = placing.require_memory(7).unwrap_err();
        assert!(refused.contains("nodes with memory are 0-2"), "{refused}");
    }

    #[test]
    fn the_card_is_that_of_the_fabric() {
        let base = "sys/class/infiniband";
        let file = |path: &str| format!("{base}/{path}");
        let files = [
            (file("mlx5_0/device/numa_node"), "0"),
            (file("mlx5_0/ports/1/state"), "4: ACTIVE"),
            (file("mlx5_1/device/numa_node"), "1"),
            (file("mlx5_1/ports/1/state"), "4: ACTIVE"),
            (file("mlx5_1/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            (file("mlx5_1/ports/1/gid_attrs/types/3"), "RoCE v2"),
        ];
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (_folder, machine) = fixture(&files);
        assert_eq!(machine.card_node(None, None), Some(0));
        assert_eq!(machine.card_node(Some("mlx5_1"), None), Some(1));
        assert_eq!(machine.card_node(None, Some([10, 0, 0, 1].into())), Some(1));
        assert_eq!(machine.card_node(None, Some([10, 0, 0, 2].into())), Some(0));
        assert_eq!(machine.card_node(Some("mlx5_9"), None), None);
    }
}
