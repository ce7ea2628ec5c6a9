//! What is sent in an epoch: a function of the survivors and their block maps.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use bincode::{Decode, Encode};
use rackpool_model::RackId;

use super::block_map::BlockMap;
use super::schedule::{Schedule, Shape};
use super::{Block, Group, GroupMember};

/// A rack that takes part in an epoch, and what it had when the epoch began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// The rack and its pod.
    pub member: GroupMember,
    /// Its blocks. It was reading none.
    pub map: BlockMap,
}

/// One read of a member: a block, and the rack that has it or will get it earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Receive {
    /// The block.
    pub block: Block,
    /// The rack to read from.
    pub from: RackId,
}

/// The transfers of an epoch. A member derives its own from the plan and its block map.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Plan {
    schedule: Schedule,
    /// The racks in rank order. The first is the epoch's root: it has every block, or fetches what
    /// it lacks before anything else.
    members: Vec<GroupMember>,
    /// The blocks that some member lacks. The schedule is that of an object of these blocks alone.
    missing: Vec<Block>,
    /// What the epoch's root fetches.
    fetches: Vec<Receive>,
    /// Pairs of a reader and a rack that it can't read: it reads from the epoch's root instead.
    unreadable: BTreeSet<(RackId, RackId)>,
}

/// No plan completes the survivors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum PlanError {
    /// A block is in no survivor that the epoch's root can read.
    #[error("no reachable rack has block {}", block.0)]
    BlockLost {
        /// The first such block.
        block: Block,
    },
    /// Nobody is left.
    #[error("no rack of the group is left")]
    NobodyLeft,
}

impl Plan {
    /// The plan for these survivors, in rank order. The first that is complete becomes the epoch's
    /// root; if none is, the one with the most blocks, which fetches the others.
    pub fn new(
        schedule: Schedule,
        survivors: &[Survivor],
        unreadable: &BTreeSet<(RackId, RackId)>,
    ) -> Result<Self, PlanError> {
        let most = survivors.iter().map(|survivor| survivor.map.count()).max();
        let root = survivors.iter().find(|survivor| Some(survivor.map.count()) == most);
        let root = root.ok_or(PlanError::NobodyLeft)?;
        let missing = (0..root.map.blocks()).map(Block);
        let missing =
            missing.filter(|block| survivors.iter().any(|survivor| !survivor.map.has(*block)));
        let fetch = |block: Block| {
            let readable = |rack| !unreadable.contains(&(root.member.rack, rack));
            let source = survivors
                .iter()
                .find(|survivor| survivor.map.has(block) && readable(survivor.member.rack));
            let from = source.ok_or(PlanError::BlockLost { block })?.member.rack;
            Ok(Receive { block, from })
        };
        Ok(Self {
            schedule,
            members: in_rank_order(root.member, survivors),
            missing: missing.collect(),
            fetches: root.map.missing().map(fetch).collect::<Result<_, _>>()?,
            unreadable: unreadable.clone(),
        })
    }

    /// The racks, the epoch's root first.
    #[must_use]
    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    /// Returns true if the plan is one for racks and blocks of this group. A plan that another
    /// process sent may be for none.
    #[must_use]
    pub fn fits(&self, group: &Group) -> bool {
        let racks: BTreeSet<_> = group.members.iter().map(|member| member.rack).collect();
        let named: BTreeSet<_> = self.members.iter().map(|member| member.rack).collect();
        let fetched = self.fetches.iter().map(|fetch| fetch.block);
        named.len() == self.members.len()
            && named.is_subset(&racks)
            && self.fetches.iter().all(|fetch| named.contains(&fetch.from))
            && self.missing.iter().copied().chain(fetched).all(|block| block.0 < group.blocks)
    }

    /// What a rack with this block map reads, in order. Blocks of the map are left out: whatever a
    /// rack has got, its peers need not send again.
    #[must_use]
    pub fn receives(&self, rack: RackId, map: &BlockMap) -> Vec<Receive> {
        let Some(rank) = self.members.iter().position(|member| member.rack == rack) else {
            return Vec::new();
        };
        let mut all = if rank == 0 { self.fetches.clone() } else { self.scheduled(rank) };
        all.retain(|receive| !map.has(receive.block));
        all
    }

    /// What the schedule says for a member other than the root.
    fn scheduled(&self, rank: usize) -> Vec<Receive> {
        let (Ok(rank), Some(root)) = (u16::try_from(rank), self.members.first()) else {
            return Vec::new();
        };
        let own = self.members.get(usize::from(rank)).map(|member| member.rack);
        let receives = self.shape().receives(rank).into_iter().filter_map(|transfer| {
            let block = *self.missing.get(transfer.block.0 as usize)?;
            let from = self.members.get(usize::from(transfer.from))?.rack;
            let is_unreadable = self.unreadable.contains(&(own?, from));
            Some(Receive { block, from: if is_unreadable { root.rack } else { from } })
        });
        receives.collect()
    }

    /// The schedule of the missing blocks.
    fn shape(&self) -> Shape {
        let mut pods: Vec<u16> = Vec::new();
        let mut last = None;
        for member in &self.members {
            match pods.last_mut() {
                Some(size) if last == Some(member.pod) => *size += 1,
                _ => pods.push(1),
            }
            last = Some(member.pod);
        }
        Shape::in_pods(self.schedule, &pods, u32::try_from(self.missing.len()).unwrap_or(u32::MAX))
    }
}

/// The epoch's root, the others of its pod, then the rest, each in the order given.
fn in_rank_order(root: GroupMember, survivors: &[Survivor]) -> Vec<GroupMember> {
    let others = survivors.iter().map(|survivor| survivor.member);
    let others = others.filter(|member| member.rack != root.rack);
    let (same, rest): (Vec<_>, Vec<_>) = others.partition(|member| member.pod == root.pod);
    [root].into_iter().chain(same).chain(rest).collect()
}
