//! Placement of the data plane's thread and of the files shared with clients: on the NUMA node of
//! the RDMA card, because remote operations read and write the clients' files.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};
use rackpool_shm::Mapping;
use rackpool_shm::host::{HostFiles, NumaNode, list_text};
use rackpool_shm::memory::MemoryKind;
use rackpool_shm::numa::NumaPolicy;
use rustix::process::Pid;

use crate::processor::{self, ChosenNode, Processor};

/// The NUMA node that an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// The node of the first RDMA card with an active port; without one, the node with processors
    /// that is nearest to the memory.
    Auto,
    /// No placement: the kernel chooses.
    Anywhere,
    /// This node.
    Node(u32),
}

/// A text that is no [`NodeChoice`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no choice of a NUMA node: write its number, auto or none")]
pub struct NodeChoiceError(String);

impl FromStr for NodeChoice {
    type Err = NodeChoiceError;

    fn from_str(text: &str) -> Result<Self, NodeChoiceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::Anywhere),
            number => number.parse().map(Self::Node).map_err(|_| NodeChoiceError(text.into())),
        }
    }
}

impl fmt::Display for NodeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Anywhere => f.write_str("none"),
            Self::Node(node) => write!(f, "{node}"),
        }
    }
}

/// Where the thread and the shared files are placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The node and its processors; `None` leaves the choice to the kernel.
    node: Option<NumaNode>,
    /// Why this node was chosen, for operators.
    reason: String,
    /// The dedicated processor of the data plane's thread, if it has one.
    processor: Option<Processor>,
}

impl Placement {
    /// Leaves all placement to the kernel.
    pub(crate) fn anywhere(reason: &str) -> Self {
        Self { node: None, reason: reason.into(), processor: None }
    }

    /// Chooses the node. Refuses a node of the operator that does not exist or has no processors.
    pub(crate) fn choose(
        choice: NodeChoice,
        kind: &MemoryKind,
        machine: &HostFiles,
    ) -> anyhow::Result<Self> {
        let nodes = machine.nodes();
        let anywhere = Self::anywhere;
        let (id, reason) = match choice {
            NodeChoice::Anywhere => return Ok(anywhere("as asked")),
            NodeChoice::Node(id) => (id, "as asked".to_owned()),
            NodeChoice::Auto if nodes.len() < 2 => {
                return Ok(anywhere("this machine has one NUMA node"));
            }
            NodeChoice::Auto => match (machine.rdma_node(), kind) {
                (Some(id), _) => (id, "the RDMA card's".to_owned()),
                (None, MemoryKind::Node(memory)) => match machine.nearest_with_cpus(*memory) {
                    Some(id) => (id, format!("the nearest to memory node {memory}")),
                    None => return Ok(anywhere("no node has processors")),
                },
                (None, _) => {
                    return Ok(anywhere("no RDMA card says its node, no memory is bound to one"));
                }
            },
        };
        let with_cpus: Vec<u32> =
            nodes.iter().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect();
        match nodes.into_iter().find(|node| node.id == id && !node.cpus.is_empty()) {
            Some(node) => Ok(Self { node: Some(node), reason, processor: None }),
            None => bail!(
                "--numa-node {choice}: node {id} has no processors or is not there, nodes with processors are {}: choose one of them, or none",
                list_text(&with_cpus)
            ),
        }
    }

    /// Gives the data plane's thread a dedicated processor, if the operator named one. The
    /// processor must belong to the node, also with `auto`: to use another node's processor, name
    /// that node.
    pub(crate) fn on(self, cpu: Option<u32>, machine: &HostFiles) -> anyhow::Result<Self> {
        let node = self.node.as_ref().map(|node| ChosenNode { node, reason: &self.reason });
        let processor = cpu.map(|cpu| Processor::choose(cpu, node, machine)).transpose()?;
        Ok(Self { processor, ..self })
    }

    /// Keeps the calling thread, the threads it will start, and the log thread off the data plane's
    /// dedicated processor.
    pub(crate) fn make_way(&self) -> anyhow::Result<()> {
        let Some(processor) = &self.processor else { return Ok(()) };
        for task in std::fs::read_dir("/proc/self/task")? {
            let number = task?.file_name().to_str().and_then(|number| number.parse().ok());
            processor.leave(number.and_then(Pid::from_raw))?;
        }
        Ok(())
    }

    /// Binds the calling thread, the data plane's, to its processor, or else to those of the node.
    pub(crate) fn bind_thread(&self) -> anyhow::Result<()> {
        if let Some(processor) = &self.processor {
            return processor.take();
        }
        let Some(node) = &self.node else { return Ok(()) };
        processor::bind(&node.cpus).with_context(|| {
            format!(
                "can't run on the processors {} of NUMA node {}: may this process use them (cpuset, taskset)? else --numa-node none",
                list_text(&node.cpus),
                node.id
            )
        })
    }

    /// Makes the kernel allocate the pages of `what` on the node while the node has free memory.
    /// More distant memory is only slower, so the node is preferred, not required.
    pub(crate) fn bind_memory(&self, what: &str, memory: &Mapping) -> anyhow::Result<()> {
        let Some(node) = &self.node else { return Ok(()) };
        memory.bind_to_node(node.id, NumaPolicy::Prefer).with_context(|| {
            format!(
                "can't place {what} on NUMA node {}: allow mbind(2), or --numa-node none",
                node.id
            )
        })
    }

    /// Returns true if the thread or memory is placed.
    pub(crate) const fn is_bound(&self) -> bool {
        self.node.is_some() || self.processor.is_some()
    }

    /// Returns true if the data plane shares its dedicated processor with other threads of the
    /// daemon.
    pub(crate) fn has_too_many(&self) -> bool {
        self.processor.as_ref().is_some_and(Processor::is_shared)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.processor, &self.node) {
            (Some(processor), _) => write!(f, "{processor}")?,
            (None, Some(node)) => write!(f, "thread (CPUs {})", list_text(&node.cpus))?,
            (None, None) => f.write_str("thread")?,
        }
        f.write_str(", client files and buffers ")?;
        match &self.node {
            None => write!(f, "anywhere ({})", self.reason),
            Some(node) => write!(f, "on NUMA node {} ({})", node.id, self.reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use rackpool_testing::{folder_of, skipped};

    use super::*;

    /// Creates a host description with these nodes' processors and an RDMA card at a node.
    fn machine(cpus: &[&str], card: Option<&str>) -> (tempfile::TempDir, HostFiles) {
        let mut files = Vec::new();
        for (id, cpus) in cpus.iter().enumerate() {
            let node = format!("sys/devices/system/node/node{id}");
            files.push((format!("{node}/cpulist"), (*cpus).to_owned()));
            files.push((format!("{node}/meminfo"), "Node 0 MemTotal: 1024 kB".into()));
            let distance: Vec<String> =
                (0..cpus.len().max(3)).map(|to| (10 + 5 * to.abs_diff(id)).to_string()).collect();
            files.push((format!("{node}/distance"), distance.join(" ")));
        }
        if let Some(node) = card {
            let card = "sys/class/infiniband/mlx5_0";
            files.push((format!("{card}/ports/1/state"), "4: ACTIVE".into()));
            files.push((format!("{card}/device/numa_node"), node.into()));
        }
        let folder = folder_of(&files);
        let machine = HostFiles::at(folder.path());
        (folder, machine)
    }

    fn chosen(choice: NodeChoice, kind: &MemoryKind, machine: &HostFiles) -> Option<u32> {
        let placement = Placement::choose(choice, kind, machine).unwrap();
        assert_eq!(placement.is_bound(), placement.node.is_some());
        placement.node.map(|node| node.id)
    }

    #[test]
    fn auto_is_the_cards_node_else_the_nearest_to_the_memory() {
        let (_folder, with_card) = machine(&["0-3", "4-7", ""], Some("0"));
        assert_eq!(chosen(NodeChoice::Auto, &MemoryKind::Node(2), &with_card), Some(0));
        assert_eq!(chosen(NodeChoice::Auto, &MemoryKind::Tmpfs, &with_card), Some(0));
        assert_eq!(chosen(NodeChoice::Anywhere, &MemoryKind::Tmpfs, &with_card), None);
        assert_eq!(chosen(NodeChoice::Node(1), &MemoryKind::Tmpfs, &with_card), Some(1));
        for card in [None, Some("-1")] {
            let (_folder, unknown) = machine(&["0-3", "4-7", ""], card);
            assert_eq!(chosen(NodeChoice::Auto, &MemoryKind::Node(2), &unknown), Some(1));
            assert_eq!(chosen(NodeChoice::Auto, &MemoryKind::Tmpfs, &unknown), None);
        }
        let (_folder, single) = machine(&["0-1"], Some("0"));
        assert_eq!(chosen(NodeChoice::Auto, &MemoryKind::Node(0), &single), None);
    }

    #[test]
    fn nodes_without_processors_are_refused() {
        let (_folder, machine) = machine(&["0-3", ""], None);
        for node in [1, 7] {
            let refused = Placement::choose(NodeChoice::Node(node), &MemoryKind::Tmpfs, &machine);
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("nodes with processors are 0: choose"), "{text}");
        }
    }

    #[test]
    fn the_thread_and_its_memory_go_to_a_real_node() {
        let machine = HostFiles::here();
        let Some(node) = machine.nodes().into_iter().find(|node| !node.cpus.is_empty()) else {
            return skipped("this kernel knows no NUMA nodes");
        };
        let choice = NodeChoice::Node(node.id);
        let placement = Placement::choose(choice, &MemoryKind::Tmpfs, &machine).unwrap();
        // In a separate thread, so that the affinity of the other tests does not change.
        std::thread::scope(|scope| {
            scope.spawn(|| placement.bind_thread().unwrap()).join().unwrap();
        });
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8192).unwrap();
        let memory = Mapping::new(&file, 8192).unwrap();
        placement.bind_memory("memory", &memory).unwrap();
        assert_eq!(memory.node_at(0).unwrap(), node.id);
        assert!(placement.to_string().contains("(as asked)"));
    }

    #[test]
    fn a_processor_of_its_own_is_one_of_the_node() {
        let (_folder, machine) = machine(&["", "0-4096"], Some("1"));
        let auto = || Placement::choose(NodeChoice::Auto, &MemoryKind::Tmpfs, &machine).unwrap();
        let refused = auto().on(Some(5000), &machine).unwrap_err().to_string();
        assert!(refused.contains("NUMA node 1 (the RDMA card's), which has 0-4096"), "{refused}");
        assert_eq!(auto().on(None, &machine).unwrap(), auto());
        // Any processor that this process may use.
        let may = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..4096).find(|cpu| may.is_set(usize::try_from(*cpu).unwrap())).unwrap();
        for placement in [auto(), Placement::anywhere("as asked")] {
            let node = placement.node.clone();
            let placement = placement.on(Some(cpu), &machine).unwrap();
            assert!(placement.is_bound());
            let said = placement.to_string();
            assert!(said.starts_with(&format!("thread on CPU {cpu} ")), "{said}");
            assert!(said.contains(", client files and buffers "), "{said}");
            assert_eq!(said.ends_with("on NUMA node 1 (the RDMA card's)"), node.is_some());
        }
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "none", "0", "12"] {
            assert_eq!(text.parse::<NodeChoice>().unwrap().to_string(), text);
        }
        assert!("x".parse::<NodeChoice>().unwrap_err().to_string().contains("auto or none"));
    }
}
