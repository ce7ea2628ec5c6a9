//! Schedules: the sender and the receiver of each block in each step. After RDMC ("RDMC: A
//! Reliable RDMA Multicast for Large Objects", section 4.4), completed where the paper is silent.
//!
//! Steps order transfers; they are no times. A transfer begins as soon as its sender has the block
//! and both sides have ended their transfers of earlier steps.
//!
//! For n members, B blocks and `l = floor(log2 n)`:
//!
//! | schedule | at step j | steps |
//! |---|---|---|
//! | sequential | the root sends block `j mod B` to member `1 + floor(j / B)` | `B (n - 1)` |
//! | chain | member i sends block `j - i` to `i + 1` | `B + n - 2` |
//! | tree | `i < 2^s` sends `j - s B` to `i + 2^s`, with `s = floor(j / B)` | `B ceil(log2 n)` |
//! | pipeline | module `pipeline` | `B + l - 1`; `B + l` if n is no power of two |
//! | interleaved | two pipelines of every other block take turns | `B + 2 l - 2`; `B + 2 l` |
//! | hybrid | module `hybrid`: a pipeline of the pods' leaders, one in each pod | by the pods |

mod hybrid;
mod interleaved;
mod pipeline;

use alloc::vec;
use alloc::vec::Vec;

use bincode::{Decode, Encode};

use super::Block;

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Schedule {
    /// The root sends everything to one member after the other.
    Sequential,
    /// Each member passes every block to the next.
    Chain,
    /// The members that have the whole object double in each stage.
    BinomialTree,
    /// Every member sends and receives a block in nearly every step.
    BinomialPipeline,
    /// Pipelines between and inside pods: the whole object enters each pod once.
    Hybrid,
    /// Two binomial pipelines, of the blocks of even and of odd number, take turns. So a member
    /// has a step of time between the arrival of a block and the step that sends it on. While it
    /// reads two blocks at once, its link stays busy although requests and copies take time.
    InterleavedPipelines,
}

/// A transfer of one block between two members, by rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// The step, from 0.
    pub step: u64,
    /// The sender.
    pub from: u16,
    /// The receiver.
    pub to: u16,
    /// The block.
    pub block: Block,
}

/// A schedule with the numbers that determine it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    schedule: Schedule,
    /// The number of members of each pod, none 0; one pod unless the schedule is hybrid.
    pods: Vec<u16>,
    members: u16,
    blocks: u32,
}

impl Schedule {
    /// All schedules.
    pub const ALL: [Self; 6] = [
        Self::Sequential,
        Self::Chain,
        Self::BinomialTree,
        Self::BinomialPipeline,
        Self::InterleavedPipelines,
        Self::Hybrid,
    ];

    /// The name, as in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Chain => "chain",
            Self::BinomialTree => "tree",
            Self::BinomialPipeline => "pipeline",
            Self::InterleavedPipelines => "interleaved",
            Self::Hybrid => "hybrid",
        }
    }
}

impl Shape {
    /// A schedule for members of one pod. With less than two members nothing is sent.
    #[must_use]
    pub fn new(schedule: Schedule, members: u16, blocks: u32) -> Self {
        Self { schedule, pods: vec![members], members, blocks }
    }

    /// A schedule for members in pods of these sizes, in rank order. Only the hybrid schedule
    /// distinguishes pods.
    #[must_use]
    pub fn in_pods(schedule: Schedule, pods: &[u16], blocks: u32) -> Self {
        let members = pods.iter().fold(0, |sum: u16, pod| sum.saturating_add(*pod));
        let pods = pods.iter().copied().filter(|pod| *pod > 0).collect();
        Self { schedule, pods, members, blocks }
    }

    /// The number of members.
    #[must_use]
    pub const fn members(&self) -> u16 {
        self.members
    }

    /// The number of blocks.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The number of steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let (n, blocks) = (u64::from(self.members), u64::from(self.blocks));
        if n < 2 || blocks == 0 {
            return 0;
        }
        match self.schedule {
            Schedule::Sequential => blocks * (n - 1),
            Schedule::Chain => blocks + n - 2,
            Schedule::BinomialTree => blocks * u64::from(n.next_power_of_two().ilog2()),
            Schedule::BinomialPipeline => pipeline::steps(self.members, self.blocks),
            Schedule::InterleavedPipelines => interleaved::steps(self.members, self.blocks),
            Schedule::Hybrid => hybrid::steps(&self.pods, self.blocks),
        }
    }

    /// The steps until the first block has reached every member, less one: steps that do not
    /// become fewer with fewer blocks. 0 where the number of blocks is only a factor.
    #[must_use]
    pub fn fill_steps(&self) -> u64 {
        match self.schedule {
            Schedule::Sequential | Schedule::BinomialTree => 0,
            Schedule::Chain
            | Schedule::BinomialPipeline
            | Schedule::InterleavedPipelines
            | Schedule::Hybrid => self.steps().saturating_sub(self.blocks.into()),
        }
    }

    /// What a member receives, in the order of steps; each block once, the root none.
    #[must_use]
    pub fn receives(&self, member: u16) -> Vec<Transfer> {
        if member == 0 || member >= self.members {
            return Vec::new();
        }
        let (blocks, to) = (u64::from(self.blocks), member);
        let each = (0..self.blocks).map(Block);
        let all = |from: u16, first: u64| {
            let at = (first..).zip(each);
            at.map(|(step, block)| Transfer { step, from, to, block }).collect()
        };
        match self.schedule {
            Schedule::Sequential => all(0, blocks * u64::from(member - 1)),
            Schedule::Chain => all(member - 1, u64::from(member - 1)),
            Schedule::BinomialTree => {
                let stage = member.ilog2();
                all(member - (1 << stage), blocks * u64::from(stage))
            }
            Schedule::BinomialPipeline => pipeline::receives(self.members, self.blocks, member),
            Schedule::InterleavedPipelines => {
                interleaved::receives(self.members, self.blocks, member)
            }
            Schedule::Hybrid => hybrid::receives(&self.pods, self.blocks, member),
        }
    }

    /// All transfers, in the order of steps.
    #[must_use]
    pub fn transfers(&self) -> Vec<Transfer> {
        let mut all: Vec<_> = (1..self.members).flat_map(|member| self.receives(member)).collect();
        all.sort_unstable();
        all
    }
}
