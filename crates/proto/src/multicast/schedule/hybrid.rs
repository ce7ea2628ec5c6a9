//! The hybrid schedule: a binomial pipeline among the leaders of pods, the first member of each,
//! and one inside each pod.
//!
//! The leader of a pod passes the blocks on in the order in which it gets them. Its pod begins as
//! early as that allows: with the first block if no later one delays it. So a leader sends in both
//! pipelines, two blocks a step; every other member sends and receives at most one.

use alloc::vec::Vec;

use super::{Transfer, pipeline};
use crate::multicast::Block;

/// The number of steps.
pub(super) fn steps(pods: &[u16], blocks: u32) -> u64 {
    let ends = (0..pods.len()).map(|pod| {
        let arrivals = leader_receives(pods, blocks, pod);
        let inside = if pods[pod] < 2 { 0 } else { pipeline::steps(pods[pod], blocks) };
        let leader_end = arrivals.last().map_or(0, |last| last.step + 1);
        leader_end.max(if inside == 0 { 0 } else { pod_begin(&arrivals) + inside })
    });
    ends.max().unwrap_or(0)
}

/// What a member other than the root receives.
pub(super) fn receives(pods: &[u16], blocks: u32, member: u16) -> Vec<Transfer> {
    let mut leader = 0;
    for (pod, size) in pods.iter().enumerate() {
        let Some(inside) = member.checked_sub(leader).filter(|inside| inside < size) else {
            leader += size;
            continue;
        };
        let arrivals = leader_receives(pods, blocks, pod);
        if inside == 0 {
            return arrivals;
        }
        let begin = pod_begin(&arrivals);
        let in_order = |block: Block| arrivals.get(block.0 as usize).map_or(block, |at| at.block);
        let of_pod =
            pipeline::receives(*size, blocks, inside).into_iter().map(|transfer| Transfer {
                step: begin + transfer.step,
                from: leader + transfer.from,
                to: member,
                block: in_order(transfer.block),
            });
        return of_pod.collect();
    }
    Vec::new()
}

/// What the leader of a pod receives; nothing if it is the root.
fn leader_receives(pods: &[u16], blocks: u32, pod: usize) -> Vec<Transfer> {
    let (Ok(count), Ok(rank)) = (u16::try_from(pods.len()), u16::try_from(pod)) else {
        return Vec::new();
    };
    if rank == 0 {
        return Vec::new();
    }
    let leader = |rank: u16| pods[..usize::from(rank)].iter().sum();
    let arrivals = pipeline::receives(count, blocks, rank).into_iter();
    arrivals
        .map(|transfer| Transfer { from: leader(transfer.from), to: leader(rank), ..transfer })
        .collect()
}

/// The step at which a pod begins: its leader sends the k-th block k steps later, and must have got
/// it before.
fn pod_begin(arrivals: &[Transfer]) -> u64 {
    let begins = (0..).zip(arrivals).map(|(k, arrival)| (arrival.step + 1).saturating_sub(k));
    begins.max().unwrap_or(0)
}
