//! When each transfer of a schedule ends, in virtual time.
//!
//! Each member receives and sends one block at a time, in the order of steps. A transfer begins
//! when its sender has the block and both sides have ended their earlier transfers.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::schedule::{Shape, Transfer};

/// A transfer with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedTransfer {
    /// The transfer.
    pub transfer: Transfer,
    /// When it begins, in ns.
    pub begin_ns: u64,
    /// When it ends, in ns.
    pub end_ns: u64,
}

/// The transfers of a schedule with their times. `duration_ns` returns how long one takes that
/// begins at the given time.
#[must_use]
pub fn run(shape: &Shape, duration_ns: impl Fn(&Transfer, u64) -> u64) -> Vec<TimedTransfer> {
    let members = usize::from(shape.members());
    let (mut receiving_until, mut sending_until) = (vec![0; members], vec![0; members]);
    let mut arrived_at = BTreeMap::new();
    let mut timed = Vec::new();
    for transfer in shape.transfers() {
        let (from, to) = (usize::from(transfer.from), usize::from(transfer.to));
        let has_at = arrived_at.get(&(transfer.from, transfer.block)).copied().unwrap_or(0);
        let begin_ns: u64 = has_at.max(receiving_until[to]).max(sending_until[from]);
        let end_ns = begin_ns.saturating_add(duration_ns(&transfer, begin_ns));
        (receiving_until[to], sending_until[from]) = (end_ns, end_ns);
        arrived_at.insert((transfer.to, transfer.block), end_ns);
        timed.push(TimedTransfer { transfer, begin_ns, end_ns });
    }
    timed
}

/// When the last transfer ends, in ns.
#[must_use]
pub fn end_ns(timed: &[TimedTransfer]) -> u64 {
    timed.iter().map(|one| one.end_ns).max().unwrap_or(0)
}
