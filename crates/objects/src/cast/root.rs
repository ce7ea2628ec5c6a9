//! Casts, from the program that begins one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use rackpool_client::RackId;
use rackpool_kv::now_ms;
use rackpool_proto::multicast::block_size;
use rackpool_proto::multicast::schedule::Shape;
use rackpool_proto::multicast::{Group, GroupMember, Version};

use super::board::{Boards, Key, is_of_another_rack};
use super::link::Link;
use super::options::{CastFailure, CastOptions, CastProgress, CastReport, CastSchedule};
use super::records::{Alive, BLOCK_UNIT, CastNumber, CastRecord, Invitation, Request};
use super::session::{Has, Session};
use crate::error::StoreError;
use crate::layout::keys::Keys;
use crate::store::{PlacedHead, Store};
use crate::view::View;

/// The most blocks of an object, so that messages stay short. Larger objects have larger blocks.
const MOST_BLOCKS: u64 = 4096;

impl Store {
    /// Copies an object into other racks, in each of which an agent must run. Racks pass on the
    /// blocks that they have received, so this rack's link carries the object about once. Returns
    /// what became of each rack; `None` if there is no object of this id. A rack that fails does
    /// not disturb the others. A rack that is named twice counts once; one that has the object
    /// already is done.
    ///
    /// ```no_run
    /// # use rackpool_client::RackId;
    /// # use rackpool_objects::{CastOptions, Store, StoreError};
    /// fn distribute(store: &Store) -> Result<(), StoreError> {
    ///     let racks = [RackId(1), RackId(2), RackId(3)];
    ///     if let Some(report) = store.cast(b"weights", &racks, &CastOptions::default(), |_| ())? {
    ///         for (rack, result) in report.racks {
    ///             println!("rack {}: {result:?}", rack.0);
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// `progress` is called with the blocks that a rack has, about ten times a second for each.
    /// The object is first brought into the own rack if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Option`] for a size of blocks that is no multiple of 64 KiB, and as
    /// [`get`](Self::get).
    pub fn cast(
        &self,
        id: &[u8],
        racks: &[RackId],
        options: &CastOptions,
        mut progress: impl FnMut(CastProgress),
    ) -> Result<Option<CastReport>, StoreError> {
        let begin = Instant::now();
        let keys = Keys::of(id)?;
        let Some((view, object)) = self.get_placed(id, &keys)? else { return Ok(None) };
        let mut boards = Boards::open(self.pool())?;
        boards.sweep()?;
        let own = self.pool().rack();
        let mut results = BTreeMap::new();
        let (mut targets, mut inboxes, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for rack in racks.iter().copied().collect::<BTreeSet<_>>() {
            if rack == own {
                results.insert(rack, Ok(()));
                continue;
            }
            match boards.agent_of(rack)? {
                Ok(agent) => {
                    targets.push(rack);
                    inboxes.push(Key::Inbox(rack, agent.inbox));
                    links.push(agent.link);
                }
                Err(failure) => drop(results.insert(rack, Err(failure))),
            }
        }
        let members = members(own, &targets, &options.pods);
        let block_bytes = block_bytes(&members, object.head.len(), Link::slowest(links), options)?;
        let blocks = block_size::blocks(object.head.len(), block_bytes);
        if !targets.is_empty() {
            let cast = CastNumber(rand::random());
            let (schedule, visibility) = (options.schedule, options.visible);
            let group = Group { members, version: Version(cast.0), blocks, schedule, visibility };
            let (store, stamp) = self.header();
            let record = CastRecord {
                store,
                stamp,
                id: id.to_vec(),
                version: object.place.version.to_bytes(),
                head: object.head.encode(),
                block_bytes,
                group,
                grace_ms: u64::try_from(options.grace.as_millis()).unwrap_or(u64::MAX),
            };
            boards.write(Key::Alive(cast, own), &Alive { at_ms: now_ms() })?;
            boards.write(Key::Cast { cast, root: own }, &record)?;
            let invitation = Request::Join(Invitation { cast, root: own });
            for inbox in inboxes {
                match boards.ask(inbox, &invitation) {
                    // The session finds that the rack is away.
                    Err(error) if is_of_another_rack(&error) => {}
                    invited => invited?,
                }
            }
            let copy = (view.head(), view.extents());
            let mut session = Session::new(self, boards, cast, record, copy, Has::Everything)?;
            session.serve(&mut progress)?;
            let taken_over = || targets.iter().map(|rack| (*rack, Err(CastFailure::TakenOver)));
            let mut report = session.report().unwrap_or_else(|| taken_over().collect());
            report.remove(&own);
            let done = report.iter().filter(|(_, result)| result.is_ok());
            let done: Vec<_> = done.map(|(rack, _)| *rack).collect();
            for (rack, failure) in session.wait_until_shown(done)? {
                report.insert(rack, Err(failure));
            }
            // Racks may have received an object that was deleted meanwhile; it is in none of them.
            if !self.is_there(&keys, object)? {
                report.values_mut().for_each(|result| *result = Err(CastFailure::Deleted));
            }
            results.extend(report);
        }
        let (bytes, took) = (object.head.len(), begin.elapsed());
        Ok(Some(CastReport { racks: results, bytes, blocks, block_bytes, took }))
    }

    /// Returns true if the object was not deleted. If a killed rack keeps the entry from being
    /// read, what the racks report stands.
    fn is_there(&self, keys: &Keys, object: PlacedHead) -> Result<bool, StoreError> {
        match self.with(|handles| handles.find(keys.object())) {
            Err(error) if is_of_another_rack(&error) => Ok(true),
            found => Ok(found? == Some(object)),
        }
    }

    /// The racks that agents serve. A rack that is away is not among them.
    ///
    /// # Errors
    /// That of the pool.
    pub fn cast_racks(&self) -> Result<BTreeSet<RackId>, StoreError> {
        Boards::open(self.pool())?.agents()
    }

    /// An object in this rack, and its entry in the object table.
    fn get_placed(&self, id: &[u8], keys: &Keys) -> Result<Option<(View, PlacedHead)>, StoreError> {
        loop {
            let Some(view) = self.get(id)? else { return Ok(None) };
            let Some(object) = self.with(|handles| handles.find(keys.object()))? else {
                return Ok(None);
            };
            // Another object may have been stored under the id since, or it was moved to a file.
            if view.is_copy_of(&object.head) && !object.head.is_spilled() {
                return Ok(Some((view, object)));
            }
        }
    }
}

/// The racks of a group, the root first, then pod by pod.
fn members(own: RackId, targets: &[RackId], pods: &[Vec<RackId>]) -> Vec<GroupMember> {
    let pod_of = |rack: RackId| {
        let at = pods.iter().position(|pod| pod.contains(&rack));
        at.unwrap_or(pods.len() + usize::from(rack.0))
    };
    let root = pod_of(own);
    let mut racks: Vec<_> = targets.iter().map(|rack| (pod_of(*rack), *rack)).collect();
    racks.sort_by_key(|(pod, rack)| (*pod != root, *pod, *rack));
    let all = std::iter::once((root, own)).chain(racks);
    let pod = |pod| if pods.is_empty() { 0 } else { u16::try_from(pod).unwrap_or(u16::MAX) };
    all.map(|(at, rack)| GroupMember { rack, pod: pod(at) }).collect()
}

fn block_bytes(
    members: &[GroupMember],
    len: u64,
    link: Link,
    options: &CastOptions,
) -> Result<u64, StoreError> {
    let least = len.div_ceil(MOST_BLOCKS).next_multiple_of(BLOCK_UNIT).max(BLOCK_UNIT);
    match options.block_bytes {
        Some(bytes) if bytes == 0 || !bytes.is_multiple_of(BLOCK_UNIT) => {
            let allowed = "multiples of 64 KiB";
            Err(StoreError::Option { name: "the block size for casts", allowed })
        }
        Some(bytes) => Ok(bytes.max(least)),
        None => {
            let count = u16::try_from(members.len()).unwrap_or(u16::MAX);
            let schedule = match options.schedule {
                // Its shape depends on the number of blocks; the pipeline's is close to it.
                CastSchedule::Hybrid => CastSchedule::BinomialPipeline,
                schedule => schedule,
            };
            let shape = Shape::new(schedule, count, 1);
            Ok(block_size::block_bytes(&shape, len, link.step(), link.bytes_per_second())
                .max(least))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member((rack, pod): (u16, u16)) -> GroupMember {
        GroupMember { rack: RackId(rack), pod }
    }

    #[test]
    fn racks_of_a_pod_are_neighbours_and_the_root_is_first() {
        let racks = [1, 2, 3, 4, 9].map(RackId);
        let plain = members(RackId(5), &racks, &[]);
        assert_eq!(plain, [(5, 0), (1, 0), (2, 0), (3, 0), (4, 0), (9, 0)].map(member));
        let pods = [vec![RackId(1), RackId(4)], vec![RackId(2), RackId(5)]];
        let in_pods = members(RackId(5), &racks, &pods);
        assert_eq!(in_pods, [(5, 1), (2, 1), (1, 0), (4, 0), (3, 5), (9, 11)].map(member));
    }

    #[test]
    fn blocks_are_chosen_or_checked() {
        let (two, link) = ([(0, 0), (1, 0)].map(member), Link::slowest([]));
        let with = |bytes| CastOptions { block_bytes: Some(bytes), ..CastOptions::default() };
        assert_eq!(block_bytes(&two, 1 << 30, link, &with(1 << 20)).unwrap(), 1 << 20);
        // No more than 4,096 blocks.
        assert_eq!(block_bytes(&two, 1 << 40, link, &with(1 << 20)).unwrap(), 1 << 28);
        for bytes in [0, 1, 1000, (64 << 10) + 1] {
            assert!(matches!(
                block_bytes(&two, 1, link, &with(bytes)),
                Err(StoreError::Option { .. })
            ));
        }
        let eight: Vec<_> = (0..8).map(|rack| member((rack, 0))).collect();
        let chosen = block_bytes(&eight, 256 << 20, link, &CastOptions::default()).unwrap();
        assert!((1 << 20..=2 << 20).contains(&chosen), "{chosen}");
        assert!(chosen.is_multiple_of(BLOCK_UNIT));
    }
}
