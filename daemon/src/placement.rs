//! Placement of the data plane's thread, of the files shared with clients and of the frames on NUMA
//! nodes. See docs/design/placement.md.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};
use rackpool_model::FabricKind;
use rackpool_shm::Mapping;
use rackpool_shm::host::{ChosenNode, HostFiles, LOAD_WINDOW, NumaNode, Placing, list_text};
use rackpool_shm::memory::{FramesNode, MemoryKind};
use rackpool_shm::numa::NumaPolicy;
use rustix::process::Pid;

use crate::DaemonOptions;
use crate::processor::{self, Processor};

/// The NUMA node that an operator chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// The node that the rules for placement choose.
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

/// Where the thread, the shared files and the frames are placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The node and its processors; `None` leaves the choice to the kernel.
    node: Option<NumaNode>,
    /// Why this node was chosen, for operators.
    reason: String,
    /// The node of the frames.
    frames: FramesNode,
    /// The node of the frames in words.
    frames_text: String,
    /// Bytes of the last-level cache at the card that devices may fill; 0 if unknown.
    device_share: u64,
    /// The dedicated processor of the data plane's thread, if it has one.
    processor: Option<Processor>,
}

impl Placement {
    /// Leaves all placement to the kernel.
    pub(crate) fn anywhere(reason: &str) -> Self {
        Self {
            node: None,
            reason: reason.into(),
            frames: FramesNode::Anywhere,
            frames_text: format!("anywhere ({reason})"),
            device_share: HostFiles::here().device_share(None),
            processor: None,
        }
    }

    /// Chooses the nodes. Refuses a node of the operator that can't be used.
    pub(crate) fn choose(options: &DaemonOptions, machine: &HostFiles) -> anyhow::Result<Self> {
        let nodes = machine.nodes();
        let memory = match options.memory_kind {
            MemoryKind::Node(node) => Some(node),
            _ => None,
        };
        let card = match options.fabric {
            FabricKind::Verbs => {
                let address = options.fabric_listen.map(|address| address.ip());
                machine.card_node(options.rdma_device.as_deref(), address)
            }
            FabricKind::Emulated | FabricKind::Tcp => machine.card_node(None, None),
        };
        let placing = Placing { nodes: &nodes, card, memory };
        let ChosenNode { node, reason } = match options.numa_node {
            NodeChoice::Anywhere => ChosenNode::anywhere("as asked"),
            NodeChoice::Node(id) => ChosenNode { node: Some(id), reason: "as asked".into() },
            NodeChoice::Auto => placing.thread(),
        };
        let (frames, frames_text) = choose_frames(options, machine, &placing)?;
        Ok(Self {
            node: node.map(|id| with_processors(&nodes, id, options.numa_node)).transpose()?,
            reason,
            frames,
            frames_text,
            device_share: machine.device_share(card),
            processor: None,
        })
    }

    /// The node of the frames, for kinds of memory that have none of their own.
    pub(crate) const fn frames(&self) -> FramesNode {
        self.frames
    }

    /// Notes the node that the pages of the frames come from. It differs from the chosen one if the
    /// memory has pages already, or if the chosen one can't be had.
    pub(crate) fn found_frames(&mut self, found: Option<u32>) {
        let (FramesNode::Suggested(chosen) | FramesNode::Asked(chosen)) = self.frames else {
            return;
        };
        match found {
            Some(node) if node == chosen => {}
            Some(node) => self.frames_text = on_node(node, "where the rack's memory is"),
            None => self.frames_text = "anywhere (the node can't be chosen)".into(),
        }
    }

    /// Bytes of the last-level cache of the card's node that devices may fill; 0 if unknown.
    pub(crate) const fn device_share(&self) -> u64 {
        self.device_share
    }

    /// Gives the data plane's thread a dedicated processor, if the operator named one. The
    /// processor must belong to the node, also with `auto`: to use another node's processor, name
    /// that node.
    pub(crate) fn on(self, cpu: Option<u32>, machine: &HostFiles) -> anyhow::Result<Self> {
        let node = self.node.as_ref().map(|node| processor::OwnNode { node, reason: &self.reason });
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
    pub(crate) fn is_bound(&self) -> bool {
        self.node.is_some() || self.processor.is_some() || self.frames != FramesNode::Anywhere
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
            None => write!(f, "anywhere ({})", self.reason)?,
            Some(node) => f.write_str(&on_node(node.id, &self.reason))?,
        }
        write!(f, ", frames {}", self.frames_text)
    }
}

fn on_node(node: u32, reason: &str) -> String {
    format!("on NUMA node {node} ({reason})")
}

/// The node of `--numa-node`, if it has processors.
fn with_processors(nodes: &[NumaNode], id: u32, choice: NodeChoice) -> anyhow::Result<NumaNode> {
    let with_cpus = nodes.iter().filter(|node| !node.cpus.is_empty());
    match with_cpus.clone().find(|node| node.id == id) {
        Some(node) => Ok(node.clone()),
        None => bail!(
            "--numa-node {choice}: node {id} has no processors or is not there, nodes with processors are {}: choose one of them, or none",
            list_text(&with_cpus.map(|node| node.id).collect::<Vec<_>>())
        ),
    }
}

/// The node of the frames, also in words. Refuses a node of the operator without memory, and one
/// that contradicts the kind of memory.
fn choose_frames(
    options: &DaemonOptions,
    machine: &HostFiles,
    placing: &Placing<'_>,
) -> anyhow::Result<(FramesNode, String)> {
    let kind = &options.memory_kind;
    let own = match kind {
        MemoryKind::Node(node) => Some((Some(*node), on_node(*node, "as the kind of memory says"))),
        MemoryKind::Dax(_) => Some((None, "where the device is".to_owned())),
        MemoryKind::Tmpfs | MemoryKind::Memfd | MemoryKind::Huge(_) => None,
    };
    let choice = options.frames_node;
    match (choice, own) {
        (NodeChoice::Node(node), Some((own, _))) if own != Some(node) => bail!(
            "--frames-node {node}: memory of kind {kind} has a node of its own: leave --frames-node out, or choose another --memory-kind"
        ),
        (_, Some((_, text))) => Ok((FramesNode::Anywhere, text)),
        (NodeChoice::Anywhere, None) => {
            Ok((FramesNode::Anywhere, "anywhere (as asked)".to_owned()))
        }
        (NodeChoice::Node(node), None) => match placing.require_memory(node) {
            Ok(()) => Ok((FramesNode::Asked(node), on_node(node, "as asked"))),
            Err(why) => bail!("--frames-node {node}: {why}: choose one of them, or none"),
        },
        (NodeChoice::Auto, None) => {
            let ChosenNode { node, reason } = placing.frames(|| machine.node_load(LOAD_WINDOW));
            Ok(match node {
                Some(node) => (FramesNode::Suggested(node), on_node(node, &reason)),
                None => (FramesNode::Anywhere, format!("anywhere ({reason})")),
            })
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

    fn options(more: &[&str]) -> DaemonOptions {
        let words = ["rackpool-daemon", "--rack", "0"].iter().chain(more);
        clap::Parser::try_parse_from(words).unwrap()
    }

    fn chosen(choice: NodeChoice, kind: &MemoryKind, machine: &HostFiles) -> Option<u32> {
        let (choice, kind) = (choice.to_string(), kind.to_string());
        let words = ["--numa-node", &choice, "--memory-kind", &kind, "--frames-node", "none"];
        let options = options(&words[..if kind.starts_with("numa") { 4 } else { 6 }]);
        let placement = Placement::choose(&options, machine).unwrap();
        assert_eq!(placement.is_bound(), placement.node.is_some());
        placement.node.map(|node| node.id)
    }

    /// The choice of `--frames-node` for a kind of memory, and what operators are told.
    fn frames(
        choice: &str,
        kind: &str,
        machine: &HostFiles,
    ) -> Result<(FramesNode, String), String> {
        let words = ["--numa-node", "none", "--memory-kind", kind, "--frames-node", choice];
        let placement = Placement::choose(&options(&words), machine);
        let placement = placement.map_err(|error| error.to_string())?;
        Ok((placement.frames(), placement.to_string()))
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
            let options = options(&["--numa-node", &node.to_string()]);
            let refused = Placement::choose(&options, &machine);
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
        let options = options(&["--numa-node", &node.id.to_string()]);
        let placement = Placement::choose(&options, &machine).unwrap();
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
        let auto = || Placement::choose(&options(&["--frames-node", "none"]), &machine).unwrap();
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
            assert_eq!(said.contains("on NUMA node 1 (the RDMA card's)"), node.is_some());
        }
    }

    #[test]
    fn frames_are_where_they_are_asked_for_else_at_the_card() {
        let (_folder, machine) = machine(&["0-3", "4-7", ""], Some("1"));
        for kind in ["tmpfs", "memfd", "huge:2M"] {
            let (node, said) = frames("auto", kind, &machine).unwrap();
            assert_eq!(node, FramesNode::Suggested(1));
            assert!(said.contains("frames on NUMA node 1 (the RDMA card's"), "{said}");
            let (node, said) = frames("2", kind, &machine).unwrap();
            assert_eq!(node, FramesNode::Asked(2));
            assert!(said.ends_with("frames on NUMA node 2 (as asked)"), "{said}");
            let (node, said) = frames("none", kind, &machine).unwrap();
            assert_eq!(node, FramesNode::Anywhere);
            assert!(said.ends_with("frames anywhere (as asked)"), "{said}");
            let refused = frames("7", kind, &machine).unwrap_err();
            assert!(refused.contains("nodes with memory are 0-2: choose one"), "{refused}");
        }
    }

    #[test]
    fn a_kind_of_memory_with_a_node_of_its_own_keeps_it() {
        let (_folder, machine) = machine(&["0-3", "4-7", ""], Some("1"));
        for (choice, kind) in [("auto", "numa:2"), ("none", "numa:2"), ("2", "numa:2")] {
            let (node, said) = frames(choice, kind, &machine).unwrap();
            assert_eq!(node, FramesNode::Anywhere, "the kind itself binds them");
            assert!(said.ends_with("frames on NUMA node 2 (as the kind of memory says)"), "{said}");
        }
        let (_, said) = frames("auto", "dax:/dev/dax0.0", &machine).unwrap();
        assert!(said.ends_with("frames where the device is"), "{said}");
        for kind in ["numa:2", "dax:/dev/dax0.0"] {
            let refused = frames("1", kind, &machine).unwrap_err();
            assert!(refused.contains("leave --frames-node out"), "{refused}");
        }
    }

    #[test]
    fn operators_are_told_where_the_frames_really_are() {
        let (_folder, machine) = machine(&["0-3", "4-7"], Some("1"));
        let told = |choice, found| {
            let options = options(&["--frames-node", choice]);
            let mut placement = Placement::choose(&options, &machine).unwrap();
            placement.found_frames(found);
            placement.to_string()
        };
        assert!(told("auto", Some(1)).contains("frames on NUMA node 1 (the RDMA card's"));
        assert!(
            told("auto", Some(0)).ends_with("frames on NUMA node 0 (where the rack's memory is)")
        );
        assert!(told("auto", None).ends_with("frames anywhere (the node can't be chosen)"));
        assert!(told("none", None).ends_with("frames anywhere (as asked)"));
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "none", "0", "12"] {
            assert_eq!(text.parse::<NodeChoice>().unwrap().to_string(), text);
        }
        assert!("x".parse::<NodeChoice>().unwrap_err().to_string().contains("auto or none"));
    }
}
