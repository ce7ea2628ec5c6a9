//! The binomial pipeline: blocks spread over a hypercube, along another dimension in each step.
//!
//! For `n = 2^l` members are vertices. At step j vertex v talks to `v xor 2^d`, `d = j mod l`. Let
//! r be v rotated right by d in l bits. The root sends block `min(j, B - 1)`; r = 1 sends nothing;
//! any other vertex sends block `min(j - l + tz(r), B - 1)` if it is not negative, tz being the
//! number of trailing zeros.
//!
//! For other n the cube has `2^l < n` vertices, and member `i >= 2^l` is the *twin* of member
//! `i + 1 - 2^l`: both are one vertex. One of the two receives the vertex's block and passes the
//! block that it got last to the other, which sends the vertex's block. They change places after
//! each step whose dimension is set in the vertex's number. In one more step twins exchange what
//! each lacks; if B = 1, a member may lack the block together with its twin or be without one: it
//! gets it from vertex `v xor 1`.

use alloc::vec::Vec;

use super::Transfer;
use crate::multicast::Block;
use crate::multicast::block_map::BlockMap;

/// The hypercube of a group.
#[derive(Clone, Copy)]
struct Cube {
    /// Its dimensions, at least 1.
    l: u32,
    members: u16,
    blocks: u32,
}

/// A vertex: one member, or two that are twins.
#[derive(Clone, Copy)]
struct Vertex {
    low: u16,
    high: Option<u16>,
}

/// The number of steps for at least two members and a block.
pub(super) fn steps(members: u16, blocks: u32) -> u64 {
    let cube = Cube::new(members, blocks);
    cube.cube_steps() + u64::from(!members.is_power_of_two())
}

/// What a member other than the root receives.
pub(super) fn receives(members: u16, blocks: u32, member: u16) -> Vec<Transfer> {
    if blocks == 0 {
        return Vec::new();
    }
    let cube = Cube::new(members, blocks);
    let mut all = cube.transfers_to(cube.vertex_of(member));
    all.retain(|transfer| transfer.to == member);
    all
}

impl Cube {
    const fn new(members: u16, blocks: u32) -> Self {
        Self { l: members.ilog2(), members, blocks }
    }

    const fn vertices(self) -> u16 {
        1 << self.l
    }

    /// The steps of the cube, without that of the twins.
    fn cube_steps(self) -> u64 {
        u64::from(self.blocks) + u64::from(self.l) - 1
    }

    const fn vertex_of(self, member: u16) -> u16 {
        if member < self.vertices() { member } else { member + 1 - self.vertices() }
    }

    fn vertex(self, v: u16) -> Vertex {
        let high = v.checked_add(self.vertices() - 1);
        Vertex { low: v, high: high.filter(|high| v > 0 && *high < self.members) }
    }

    /// The dimension along which blocks go at a step.
    fn dimension(self, step: u64) -> u32 {
        u32::try_from(step % u64::from(self.l)).unwrap_or(0)
    }

    /// The block that vertex `v` sends at a step.
    fn sent(self, v: u16, step: u64) -> Option<Block> {
        let (d, last) = (self.dimension(step), self.blocks - 1);
        let at_most_last = |block: u64| Block(u32::try_from(block).map_or(last, |b| b.min(last)));
        if v == 0 {
            return Some(at_most_last(step));
        }
        let rotated = ((u32::from(v) >> d) | (u32::from(v) << (self.l - d))) & ((1 << self.l) - 1);
        if rotated == 1 {
            return None;
        }
        let earlier = u64::from(self.l - rotated.trailing_zeros());
        step.checked_sub(earlier).map(at_most_last)
    }

    /// The members of vertex `v` that receive and that send the vertex's blocks at a step.
    fn roles(self, v: u16, step: u64) -> (u16, u16) {
        let Vertex { low, high } = self.vertex(v);
        let Some(high) = high else { return (low, low) };
        let (rounds, rest) = (step / u64::from(self.l), self.dimension(step));
        let changes =
            rounds * u64::from(v.count_ones()) + u64::from((v & ((1 << rest) - 1)).count_ones());
        if changes % 2 == 1 { (high, low) } else { (low, high) }
    }

    /// All transfers to the members of vertex `v`, in order.
    fn transfers_to(self, v: u16) -> Vec<Transfer> {
        let Vertex { low, high } = self.vertex(v);
        let mut twins = [low, high.unwrap_or(low)].map(|member| Twin::new(member, self.blocks));
        let mut all = Vec::new();
        for step in 0..self.cube_steps() {
            let (receiver, sender) = self.roles(v, step);
            let (to, other) = if receiver == low { (0, 1) } else { (1, 0) };
            let passed =
                twins[to].last.filter(|block| high.is_some() && twins[other].lacks(*block));
            if let Some(block) = passed {
                twins[other].map.add(block);
                all.push(Transfer { step, from: receiver, to: sender, block });
            }
            let from = v ^ (1 << self.dimension(step));
            if let Some(block) = self.sent(from, step).filter(|_| v != 0) {
                twins[to].map.add(block);
                twins[to].last = Some(block);
                let (_, from) = self.roles(from, step);
                all.push(Transfer { step, from, to: receiver, block });
            }
        }
        if !self.members.is_power_of_two() {
            self.exchange(v, &twins, &mut all);
        }
        all
    }

    /// The last step: what each twin lacks.
    fn exchange(self, v: u16, [low, high]: &[Twin; 2], all: &mut Vec<Transfer>) {
        let step = self.cube_steps();
        let mut give = |one: &Twin, other: &Twin| {
            for block in one.map.missing() {
                let from = if other.lacks(block) { v ^ 1 } else { other.member };
                all.push(Transfer { step, from, to: one.member, block });
            }
        };
        if v != 0 {
            give(low, high);
            if low.member != high.member {
                give(high, low);
            }
        }
    }
}

/// A member while its vertex is followed.
struct Twin {
    member: u16,
    map: BlockMap,
    /// The block that it last received from another vertex.
    last: Option<Block>,
}

impl Twin {
    fn new(member: u16, blocks: u32) -> Self {
        Self { member, map: BlockMap::empty(blocks), last: None }
    }

    fn lacks(&self, block: Block) -> bool {
        !self.map.has(block)
    }
}
