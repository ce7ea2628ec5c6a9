use alloc::vec::Vec;

use rackpool_model::{PageId, PageSize, RackId};
use rackpool_wire::bounds::check_name;
use rackpool_wire::metadata::{
    DirectoryEntry, LastMove, Member, MetadataReply, PoolStatus, Refusal,
};

use super::swaps::Swaps;
use super::{RackState, Records};
use crate::directory::Lookup;
use crate::membership::Membership;
use crate::planted_bugs::Bugs;

/// The answers to requests that read.
pub(super) struct View<'a> {
    pub(super) records: &'a Records,
    pub(super) membership: &'a Membership,
}

impl View<'_> {
    pub(super) fn locate(&self, page: PageId) -> MetadataReply {
        match self.records.directory.lookup(page) {
            Lookup::Home { pages, rack } => MetadataReply::Located { pages, home: rack },
            Lookup::Lost => MetadataReply::PageLost,
            Lookup::NeverHandedOut => MetadataReply::NoSuchPage,
        }
    }

    pub(super) fn explain<B: Bugs>(&self, page: PageId, swaps: &Swaps<B>) -> MetadataReply {
        let directory = &self.records.directory;
        let Some(born) = directory.born(page) else { return MetadataReply::NoSuchPage };
        let moved = directory.moved(page);
        MetadataReply::Explained(DirectoryEntry {
            page,
            born: born.rack,
            memory: moved.map_or(born.memory, |moved| moved.memory),
            home: directory.home(page),
            moved: moved.map(|moved| LastMove { swap: moved.swap, epoch: moved.epoch }),
            locked: swaps.server().lock_of(page),
            waiting: swaps.server().waiting_for(page).collect(),
        })
    }

    pub(super) fn root(&self, name: &str) -> MetadataReply {
        match check_name(name) {
            Ok(()) => MetadataReply::Root { addr: self.records.roots.get(name), changed: false },
            Err(reason) => MetadataReply::Refused(Refusal::OutOfBounds(reason)),
        }
    }

    pub(super) fn members(&self) -> Vec<Member> {
        let racks = self.records.racks.iter();
        // A rack's record is never written before its run, so no rack is omitted.
        let member = racks.filter_map(|(&rack, record)| {
            let run = self.records.directory.served_by(rack)?;
            Some(Member {
                rack,
                incarnation: record.incarnation,
                memory: record.memory,
                alive: self.membership.is_alive(rack),
                pages: run.pages,
                free_frames: self.membership.free_frames(rack),
                control_path: record.control_path.clone(),
                fabric_address: record.fabric_address.clone(),
            })
        });
        member.collect()
    }

    /// The racks whose daemons have stopped regularly.
    fn left(&self) -> impl Iterator<Item = RackId> {
        let racks = self.records.racks.iter();
        racks.filter(|(_, record)| record.left).map(|(&rack, _)| rack)
    }

    /// All racks that ever registered.
    pub(super) fn rack_states(&self) -> impl Iterator<Item = (RackId, RackState)> {
        self.records.racks.iter().map(|(&rack, record)| {
            let state = match (self.membership.is_alive(rack), record.left) {
                (true, _) => RackState::Up,
                (false, true) => RackState::Left,
                (false, false) => RackState::Down,
            };
            (rack, state)
        })
    }

    /// The pool's state; the shell fills in `store_bytes`.
    pub(super) fn status(&self) -> PoolStatus {
        let lease_ms = self.membership.lease().as_millis();
        PoolStatus {
            page_bytes: self.records.page_size.map_or(0, PageSize::bytes),
            lease_ms: u64::try_from(lease_ms).unwrap_or(u64::MAX),
            version: self.membership.version(),
            members: self.members(),
            left: self.left().collect(),
            roots: self.records.roots.iter().map(|(name, addr)| (name.into(), addr)).collect(),
            lost_pages: self.records.directory.lost_pages(),
            store_bytes: 0,
        }
    }
}
