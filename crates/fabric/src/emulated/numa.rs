//! A model of what NUMA nodes and the last-level cache do to one-sided operations, at the rack that
//! executes them. Off by default.
//!
//! `docs/design/numa-model.md` has the terms, the source of each constant, and what the model
//! leaves out. The measured values are those of two-socket servers with ConnectX-3 cards (Nelson
//! and Palmieri, SRDS 2020).

use std::fmt;

use super::model::transfer_ns;
use crate::{FabricError, FabricStartError, Operation};

/// Latency of a load that the last-level cache of the own node answers.
pub const L3_NS: u64 = 38;
/// Latency of a load of memory of the other node.
pub const REMOTE_MEMORY_NS: u64 = 122;
/// Latency of a read of 64 B from memory of the card's node, without other load.
pub const BASE_READ_NS: u64 = 2300;
/// The latency to give the fabric, so that such a read takes [`BASE_READ_NS`]: the card executes it
/// in the rest.
pub const LATENCY_NS: u64 = BASE_READ_NS - READ.execution_ps / 1000;
/// Bandwidth of the cards that were measured, in Gbit/s.
pub const LINK_GBPS: f64 = 56.0;
/// Payload of a packet in bytes. Longer operations are fragmented.
pub const MTU_BYTES: u64 = 256;
/// The highest [`NumaModel::dilation`].
pub const MAX_DILATION: u32 = 1000;

/// What a read of memory of the other node takes longer: it is not answered by the cache of the
/// card's node but by memory behind the sockets' link.
const REMOTE_EXTRA_PS: u64 = (REMOTE_MEMORY_NS - L3_NS) * 1000;
/// Reads that a card has in execution at a time, so that each delays the card by this part of its
/// extra time. Calibrated: 5.51 instead of 5.91 million reads a second.
const READS_IN_EXECUTION: u64 = 7;
/// Local threads that write a line from which on each operation of the card waits for one of them.
const SATURATING_WRITERS: u64 = 8;
/// Cache lines that the model keeps apart; further ones share their words.
pub(super) const LINES: u64 = 256;
const LINE_BYTES: u64 = 64;

/// Constants of a kind of operation, in ps.
struct Terms {
    /// The card executes an operation in this time.
    execution_ps: u64,
    /// The time of an operation's packets is this and [`packet_ps`](Self::packet_ps) for each.
    fragmentation_ps: u64,
    packet_ps: u64,
    /// Time for which an operation occupies a line that enough local threads write: memory of the
    /// card's node.
    contended_ps: u64,
    /// The same for memory of the other node.
    contended_remote_ps: u64,
}

const READ: Terms = Terms {
    execution_ps: 169_200,
    fragmentation_ps: 154_000,
    packet_ps: 14_000,
    contended_ps: 283_300,
    contended_remote_ps: 213_700,
};

const WRITE: Terms = Terms {
    execution_ps: 165_300,
    fragmentation_ps: 143_000,
    packet_ps: 22_000,
    contended_ps: 293_300,
    // A write is acknowledged when the card has it; it goes to memory past the caches.
    contended_remote_ps: 0,
};

/// NUMA nodes and caches of a rack's host, modelled by the emulated fabric. Every rack of a pool
/// has the same `dilation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaModel {
    /// The exported memory lies on another node than the card.
    pub is_remote: bool,
    /// Threads of the rack that write the exported memory all the time.
    pub writers: u32,
    /// All modelled times take this many times as long, 1 to [`MAX_DILATION`], so that a host that
    /// is slower than the modelled one keeps up (time dilation; Gupta et al., NSDI 2006).
    pub dilation: u32,
}

/// Times that an operation takes at the rack that executes it, in ns, dilated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Time for which it occupies the card.
    pub(super) card_ns: u64,
    /// Time for which it occupies each of its lines.
    pub(super) line_ns: u64,
    /// Further latency, in which the card executes other operations.
    pub(super) latency_ns: u64,
}

impl NumaModel {
    pub(super) fn check(self) -> Result<Self, FabricStartError> {
        if (1..=MAX_DILATION).contains(&self.dilation) {
            return Ok(self);
        }
        Err(FabricStartError::Option {
            option: "numa.dilation",
            value: self.dilation.to_string(),
            expected: "1 to 1000",
        })
    }

    /// The words of a card's header.
    pub(super) fn to_words(self) -> [u64; 3] {
        [self.dilation.into(), self.is_remote.into(), self.writers.into()]
    }

    /// Checks the words of a peer's card. A dilation of 0 means that it has no model.
    pub(super) fn from_words(words: [u64; 3]) -> Result<Option<Self>, FabricError> {
        if words[0] == 0 {
            return Ok(None);
        }
        let model = || {
            let [dilation, is_remote, writers] = words.map(u32::try_from);
            let (dilation, writers) = (dilation.ok()?, writers.ok()?);
            let is_remote = match is_remote.ok()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            Self { is_remote, writers, dilation }.check().ok()
        };
        model().map(Some).ok_or_else(|| FabricError::misbehaved("its NUMA model cannot be"))
    }

    /// What an operation costs.
    pub(super) fn cost(&self, operation: &Operation) -> Cost {
        let (terms, is_read) = match operation {
            Operation::Read(_) => (&READ, true),
            Operation::Write(_) => (&WRITE, false),
        };
        let bytes = u64::from(operation.transfer().len);
        let extra_ps = if is_read && self.is_remote { REMOTE_EXTRA_PS } else { 0 };
        let execution_ps = terms.execution_ps + extra_ps / READS_IN_EXECUTION;
        let packets_ps = terms.fragmentation_ps + bytes.div_ceil(MTU_BYTES) * terms.packet_ps;
        Cost {
            card_ns: self.dilated_ns(execution_ps.max(packets_ps)),
            line_ns: self.dilated_ns(self.line_ps(terms, execution_ps)),
            latency_ns: self.dilated_ns(extra_ps - extra_ps / READS_IN_EXECUTION),
        }
    }

    /// Two of the threads that use a line must meet to delay each other, so the wait grows with the
    /// square of their number, until each operation meets one.
    fn line_ps(&self, terms: &Terms, execution_ps: u64) -> u64 {
        let contended_ps =
            if self.is_remote { terms.contended_remote_ps } else { terms.contended_ps };
        let writers = u64::from(self.writers).min(SATURATING_WRITERS);
        if writers == 0 || contended_ps == 0 {
            return 0;
        }
        let wait_ps = contended_ps.saturating_sub(execution_ps);
        execution_ps + wait_ps * writers.pow(2) / SATURATING_WRITERS.pow(2)
    }

    const fn dilated_ns(&self, ps: u64) -> u64 {
        transfer_ns(self.dilation as u64, ps)
    }
}

impl fmt::Display for NumaModel {
    /// The text says that this is a model.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = if self.is_remote { "another node than the card" } else { "the card's node" };
        write!(f, "NUMA model: frames on {node}, {} local writers", self.writers)?;
        match self.dilation {
            1 => Ok(()),
            times => write!(f, ", times dilated {times} times"),
        }
    }
}

impl Default for NumaModel {
    /// Memory of the card's node, no local writers, real time.
    fn default() -> Self {
        Self { is_remote: false, writers: 0, dilation: 1 }
    }
}

/// The lines that an operation of at most one packet touches, below [`LINES`]. The rate of longer
/// operations is bounded by their packets.
pub(super) fn lines_of(operation: &Operation) -> impl Iterator<Item = u64> {
    let transfer = operation.transfer();
    let len = u64::from(transfer.len);
    let first = transfer.remote_offset / LINE_BYTES;
    let last = transfer.remote_offset.saturating_add(len.saturating_sub(1)) / LINE_BYTES;
    let count = if len <= MTU_BYTES { last - first + 1 } else { 0 };
    (first..).take(usize::try_from(count).unwrap_or(0)).map(|line| line % LINES)
}

#[cfg(test)]
mod tests;
