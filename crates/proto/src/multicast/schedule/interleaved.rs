//! Two binomial pipelines that take turns: one of the blocks of even number in even steps, one of
//! the others in odd steps.
//!
//! In one pipeline a member often sends a block in the step after that in which it has received
//! it, so whatever passes between two steps, such as a request, a copy or a wake-up, delays the
//! whole group. Here there is a step of the other pipeline between the two. This costs the other
//! pipeline's steps until its first block is everywhere.

use alloc::vec::Vec;

use super::{Transfer, pipeline};
use crate::multicast::Block;

/// The number of steps for at least two members and a block.
pub(super) fn steps(members: u16, blocks: u32) -> u64 {
    let even = 2 * pipeline::steps(members, blocks.div_ceil(2)) - 1;
    if blocks < 2 { even } else { even.max(2 * pipeline::steps(members, blocks / 2)) }
}

/// What a member other than the root receives.
pub(super) fn receives(members: u16, blocks: u32, member: u16) -> Vec<Transfer> {
    let strands = [(0, blocks.div_ceil(2)), (1, blocks / 2)];
    let mut all: Vec<_> = strands
        .into_iter()
        .flat_map(|(strand, blocks)| {
            let receives = pipeline::receives(members, blocks, member);
            receives.into_iter().map(move |transfer| Transfer {
                step: 2 * transfer.step + u64::from(strand),
                block: Block(2 * transfer.block.0 + strand),
                ..transfer
            })
        })
        .collect();
    all.sort_unstable();
    all
}
