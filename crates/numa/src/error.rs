//! Why a study ended without a result.

use std::io;

use rackpool_fabric::{DisconnectReason, FabricError, FabricStartError, OutOfRange, Unsent};
use rackpool_fabric_verbs::VerbsStartError;

/// Why a study ended without a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// The machine has fewer than two NUMA nodes with memory.
    #[error(
        "this machine has {nodes} NUMA node with memory: a study compares two; --model runs it on \
         a model of the effects of NUMA and of the cache"
    )]
    OneNode {
        /// The number of nodes with memory.
        nodes: usize,
    },
    /// A chosen node is not there, or lacks memory or processors.
    #[error("NUMA node {node} {lacks}: choose another one for {option}")]
    Node {
        /// The node.
        node: u32,
        /// What it lacks.
        lacks: &'static str,
        /// The option that chooses it.
        option: &'static str,
    },
    /// Pages are on another node than the measurement needs.
    #[error("{what} must lie on NUMA node {wanted}, but its pages are on {found}")]
    Elsewhere {
        /// The memory.
        what: &'static str,
        /// The node that was asked for.
        wanted: u32,
        /// Counts of pages and their nodes.
        found: String,
    },
    /// An option is outside its range, or does not go with another one.
    #[error("{0}")]
    Option(String),
    /// A system call failed.
    #[error("cannot {step}: {source}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A fabric could not be started.
    #[error(transparent)]
    Start(#[from] FabricStartError),
    /// The verbs fabric could not be started.
    #[error(transparent)]
    Verbs(#[from] VerbsStartError),
    /// An operation of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A message was not taken.
    #[error(transparent)]
    Message(#[from] Unsent),
    /// A connection ended during a measurement.
    #[error("a connection ended during the measurement: {0}")]
    Disconnected(DisconnectReason),
    /// An access outside a buffer.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Nothing completed for this long.
    #[error("{what} took longer than {seconds} s: is the machine overloaded?")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// The time limit in seconds.
        seconds: u64,
    },
    /// A key returned another value than the one that was stored.
    #[error("the key-value server returned a wrong value for key {key}")]
    WrongValue {
        /// The key.
        key: String,
    },
    /// The other side of the key-value workload broke its protocol.
    #[error("the key-value workload received a message that it does not know: {0}")]
    Protocol(&'static str),
    /// A thread of the study panicked.
    #[error("a thread of the study failed: {0}")]
    Thread(&'static str),
    /// The measured values admit no ratio.
    #[error(
        "{pairs} pairs of measurements give no interval: at least 2 with operations are needed"
    )]
    NoInterval {
        /// The number of pairs.
        pairs: usize,
    },
}

impl StudyError {
    /// Creates the error for a `step` that failed.
    pub(crate) fn system(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { step, source }
    }
}
