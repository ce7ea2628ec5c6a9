//! The two nodes that a study compares.

use rackpool_shm::host::{HostFiles, NumaNode};

use crate::{Side, StudyError};

/// The two nodes that a study compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The node of the card.
    pub local: StudyNode,
    /// The node that is compared with it.
    pub remote: StudyNode,
}

/// A node of a study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StudyNode {
    /// The number that the kernel gives it.
    pub id: u32,
    /// Its processors.
    pub cpus: Vec<u32>,
}

/// Which nodes to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelection {
    /// The RDMA device whose node is the local one; else the first device with an active port.
    pub device: Option<String>,
    /// The local node, whatever the devices say. Without it and without a device: the first node
    /// with processors, because the thread that posts then does the card's work.
    pub card_node: Option<u32>,
    /// The remote node. Without it: the nearest node to the local one that has memory, preferably
    /// one with processors.
    pub other_node: Option<u32>,
}

impl Topology {
    /// Finds the two nodes.
    ///
    /// # Errors
    /// If the machine has fewer than two nodes with memory, or a selected node is not there, has no
    /// memory, or (the local one) no processors.
    pub fn find(host: &HostFiles, selection: &NodeSelection) -> Result<Self, StudyError> {
        let nodes = host.nodes();
        let with_memory: Vec<&NumaNode> = nodes.iter().filter(|n| n.memory_bytes > 0).collect();
        if with_memory.len() < 2 {
            return Err(StudyError::OneNode { nodes: with_memory.len().max(1) });
        }
        let named = |id: u32, option: &'static str| {
            let found = with_memory.iter().copied().find(|node| node.id == id);
            found.ok_or(StudyError::Node {
                node: id,
                lacks: "is not there or has no memory",
                option,
            })
        };
        let of_device = || host.card_node(selection.device.as_deref(), None);
        let first = || with_memory.iter().find(|node| !node.cpus.is_empty()).map(|node| node.id);
        let card = selection.card_node.or_else(of_device).or_else(first).unwrap_or(0);
        let local = named(card, "--card-node")?;
        if local.cpus.is_empty() {
            let option = "--card-node";
            return Err(StudyError::Node { node: card, lacks: "has no processors", option });
        }
        let remote = match selection.other_node {
            Some(id) if id == card => {
                let (lacks, option) = ("is the card's own", "--other-node");
                return Err(StudyError::Node { node: id, lacks, option });
            }
            Some(id) => named(id, "--other-node")?,
            None => nearest(&nodes, local, &with_memory)
                .ok_or(StudyError::OneNode { nodes: with_memory.len() })?,
        };
        Ok(Self { local: StudyNode::of(local), remote: StudyNode::of(remote) })
    }

    /// The node of a side.
    #[must_use]
    pub const fn node(&self, side: Side) -> &StudyNode {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }
}

impl StudyNode {
    fn of(node: &NumaNode) -> Self {
        Self { id: node.id, cpus: node.cpus.clone() }
    }
}

/// The nearest other node; nodes with processors come first.
fn nearest<'a>(
    nodes: &[NumaNode],
    local: &NumaNode,
    with_memory: &[&'a NumaNode],
) -> Option<&'a NumaNode> {
    let distance = |other: &NumaNode| {
        let at = nodes.iter().position(|node| node.id == other.id)?;
        local.distances.get(at).copied()
    };
    let others = with_memory.iter().copied().filter(|node| node.id != local.id);
    others.min_by_key(|node| (node.cpus.is_empty(), distance(node).unwrap_or(u32::MAX), node.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with nodes of (processors, has memory).
    fn host(nodes: &[(&str, bool)], files: &[(&str, &str)]) -> (impl Drop + use<>, HostFiles) {
        let mut all: Vec<(String, String)> = Vec::new();
        for (id, (cpus, has_memory)) in nodes.iter().enumerate() {
            let file = |name: &str| format!("sys/devices/system/node/node{id}/{name}");
            let memory = if *has_memory { "Node 0 MemTotal: 1024 kB\n" } else { "" };
            all.push((file("cpulist"), (*cpus).to_owned()));
            all.push((file("meminfo"), memory.to_owned()));
            all.push((file("distance"), "10 21 14 21".to_owned()));
        }
        all.extend(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        let all: Vec<(&str, &str)> =
            all.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let folder = rackpool_testing::folder_of(&all);
        let host = HostFiles::at(folder.path());
        (folder, host)
    }

    fn ids(topology: &Topology) -> (u32, u32) {
        (topology.local.id, topology.remote.id)
    }

    #[test]
    fn a_machine_with_one_node_is_told_of_the_model() {
        for nodes in [&[("0-3", true)][..], &[("0-3", true), ("4-7", false)], &[]] {
            let (_folder, host) = host(nodes, &[]);
            let refused = Topology::find(&host, &NodeSelection::default()).unwrap_err();
            assert!(matches!(refused, StudyError::OneNode { nodes: 1 }), "{refused:?}");
            assert!(refused.to_string().contains("--model"), "{refused}");
        }
    }

    #[test]
    fn the_local_node_is_the_cards() {
        let card = [
            ("sys/class/infiniband/mlx5_0/device/numa_node", "1"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
        ];
        let nodes = [("0-1", true), ("2-3", true), ("", true)];
        let (_folder, machine) = host(&nodes, &card);
        let found = Topology::find(&machine, &NodeSelection::default()).unwrap();
        assert_eq!((ids(&found), &*found.local.cpus), ((1, 0), &[2, 3][..]));
        let chosen = NodeSelection { card_node: Some(0), ..NodeSelection::default() };
        assert_eq!(ids(&Topology::find(&machine, &chosen).unwrap()), (0, 1));
        let memory_only = NodeSelection { other_node: Some(2), ..NodeSelection::default() };
        assert_eq!(ids(&Topology::find(&machine, &memory_only).unwrap()), (1, 2));
        let (_folder, without) = host(&nodes, &[]);
        assert_eq!(ids(&Topology::find(&without, &NodeSelection::default()).unwrap()), (0, 1));
    }

    #[test]
    fn nodes_that_do_not_fit_are_refused() {
        let (_folder, host) = host(&[("0-1", true), ("2-3", true), ("", true)], &[]);
        let refused = |card_node, other_node| {
            let selection = NodeSelection { device: None, card_node, other_node };
            Topology::find(&host, &selection).unwrap_err().to_string()
        };
        assert!(refused(Some(7), None).contains("node 7 is not there"));
        assert!(refused(Some(2), None).contains("node 2 has no processors"));
        assert!(refused(Some(1), Some(1)).contains("the card's own"));
        assert!(refused(None, Some(9)).contains("--other-node"));
    }
}
