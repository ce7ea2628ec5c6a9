//! Sides of a machine as its card sees them, and the proof that memory lies where it should.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::str::FromStr;

use rackpool_shm::Mapping;

use crate::StudyError;

/// Bytes of a page of the processor.
pub(crate) const PAGE: u64 = 4096;

/// A NUMA node relative to the node of the card (Nelson and Palmieri, section IV-A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// "RDMA-local": the node to which the card is attached.
    Local,
    /// "RDMA-remote": the other node of the study.
    Remote,
}

/// A side, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// The card's node.
    Local,
    /// The other node.
    Remote,
    /// Not bound: the kernel chooses.
    Any,
}

/// Where the memory of the two ends lies during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The server's registered memory; the threads that work on it are on the same side.
    pub server: Side,
    /// The client's threads and memory.
    pub client: ClientPlacement,
}

/// Where the client's threads and memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPlacement {
    /// The threads that post and poll.
    pub threads: NodeChoice,
    /// The memory from which the client writes, and into which it reads.
    pub memory: NodeChoice,
}

impl ClientPlacement {
    /// Threads and memory on the same side.
    #[must_use]
    pub const fn on(side: NodeChoice) -> Self {
        Self { threads: side, memory: side }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Remote => "remote",
        })
    }
}

impl From<Side> for NodeChoice {
    fn from(side: Side) -> Self {
        match side {
            Side::Local => Self::Local,
            Side::Remote => Self::Remote,
        }
    }
}

impl NodeChoice {
    /// The side; `None` if the kernel chooses.
    #[must_use]
    pub const fn side(self) -> Option<Side> {
        match self {
            Self::Local => Some(Side::Local),
            Self::Remote => Some(Side::Remote),
            Self::Any => None,
        }
    }
}

/// The text names no choice of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no side: write local (the card's node), remote (the other node) or any")]
pub struct NodeChoiceError;

impl FromStr for NodeChoice {
    type Err = NodeChoiceError;

    fn from_str(text: &str) -> Result<Self, NodeChoiceError> {
        match text {
            "local" => Ok(Self::Local),
            "remote" => Ok(Self::Remote),
            "any" => Ok(Self::Any),
            _ => Err(NodeChoiceError),
        }
    }
}

impl fmt::Display for NodeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.side() {
            Some(side) => side.fmt(f),
            None => f.pad("any"),
        }
    }
}

/// Memory whose pages can be located.
pub trait NodeSurvey {
    /// The number of pages.
    fn pages(&self) -> u64;

    /// The NUMA node of a page, counted from 0.
    fn node_of(&self, page: u64) -> io::Result<u32>;
}

impl NodeSurvey for Mapping {
    fn pages(&self) -> u64 {
        self.len().div_ceil(PAGE)
    }

    fn node_of(&self, page: u64) -> io::Result<u32> {
        self.node_at(page * PAGE)
    }
}

/// Asks the kernel for the node of every page.
///
/// # Errors
/// If a page is on another node than `wanted`; the error names the nodes of all pages. If the
/// kernel cannot tell.
pub fn require_node(
    memory: &dyn NodeSurvey,
    what: &'static str,
    wanted: u32,
) -> Result<(), StudyError> {
    let mut counts = BTreeMap::<u32, u64>::new();
    for page in 0..memory.pages() {
        let node =
            memory.node_of(page).map_err(StudyError::system("find the NUMA node of a page"))?;
        *counts.entry(node).or_default() += 1;
    }
    if counts.keys().all(|node| *node == wanted) {
        return Ok(());
    }
    let found: Vec<String> =
        counts.iter().map(|(node, pages)| format!("node {node} ({pages} pages)")).collect();
    Err(StudyError::Elsewhere { what, wanted, found: found.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory whose pages are on these nodes.
    struct Pages(Vec<u32>);

    impl NodeSurvey for Pages {
        fn pages(&self) -> u64 {
            self.0.len() as u64
        }

        fn node_of(&self, page: u64) -> io::Result<u32> {
            let page = usize::try_from(page).map_err(|_| io::ErrorKind::InvalidInput)?;
            self.0.get(page).copied().ok_or_else(|| io::ErrorKind::InvalidInput.into())
        }
    }

    #[test]
    fn pages_elsewhere_are_refused_with_their_nodes() {
        require_node(&Pages(vec![1, 1, 1]), "the memory", 1).unwrap();
        let refused = require_node(&Pages(vec![1, 0, 1]), "the registered memory", 1);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("the registered memory must lie on NUMA node 1"), "{message}");
        assert!(message.contains("node 0 (1 pages), node 1 (2 pages)"), "{message}");
    }

    #[test]
    fn sides_are_read_as_they_are_shown() {
        for choice in [NodeChoice::Local, NodeChoice::Remote, NodeChoice::Any] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("near".parse::<NodeChoice>(), Err(NodeChoiceError));
    }
}
