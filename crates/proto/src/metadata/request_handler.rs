use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use rackpool_model::{GlobalAddr, Incarnation, MAX_RACKS, PageSize, RackId};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement, Refusal};

use super::batch::{Batch, LeaseChange};
use super::{Change, ConnectionToken, OperatorEvent, Records};
use crate::Time;
use crate::directory::{DirectoryError, Run};
use crate::membership::{Membership, RackRecord};
use crate::planted_bugs::{Bug, Bugs};

/// Decides requests that may change the records, in order. Each is checked completely before its
/// first change, so a refused request changes nothing.
pub(super) struct RequestHandler<'a, B> {
    pub(super) now: Time,
    /// The durable records with all changes of the batch so far.
    pub(super) records: &'a mut Records,
    pub(super) membership: &'a Membership,
    pub(super) batch: &'a mut Batch,
    /// The connection of the request.
    pub(super) from: ConnectionToken,
    pub(super) bugs: B,
}

impl<B: Bugs> RequestHandler<'_, B> {
    pub(super) fn decide(&mut self, request: MetadataRequest) -> MetadataReply {
        if let Err(reason) = request.check() {
            return MetadataReply::Refused(Refusal::OutOfBounds(reason));
        }
        let verdict = match request {
            MetadataRequest::Register(announced) => self.register(&announced),
            MetadataRequest::Leave { rack, incarnation } => self.leave(rack, incarnation),
            MetadataRequest::PutRoot { name, expected, new } => self.put_root(name, expected, new),
            // The machine handles these itself.
            MetadataRequest::Heartbeat { .. }
            | MetadataRequest::Locate { .. }
            | MetadataRequest::GetRoot { .. }
            | MetadataRequest::Status
            | MetadataRequest::Swap { .. }
            | MetadataRequest::Explain { .. } => {
                Err(Refusal::Invalid("this changes nothing".into()))
            }
        };
        verdict.unwrap_or_else(MetadataReply::Refused)
    }

    fn register(&mut self, announced: &RackAnnouncement) -> Result<MetadataReply, Refusal> {
        let rack = announced.rack;
        if let Some(seen) = announced.seen {
            self.records.lineage.check(seen)?;
        }
        let page_size = self.check_limits(announced)?;
        let known = self.records.racks.get(&rack);
        if let Some(known) = known {
            match known.admits(announced, self.lease_left(rack)) {
                Err(Refusal::Superseded { .. }) if self.bugs.has(Bug::RegisterTheDead) => {}
                admitted => admitted?,
            }
        } else if self.records.racks.len() >= usize::from(MAX_RACKS) {
            return Err(Refusal::Invalid(format!("a pool has at most {MAX_RACKS} racks")));
        }
        self.check_fabric(announced)?;
        let record = RackRecord::of(announced);
        let changed = known != Some(&record);
        let served = self.records.directory.served_by(rack).copied();
        let (run, is_new) = self.run_for(announced)?;

        if self.records.page_size.is_none() {
            self.change(Change::PoolFormatted { page_size });
        }
        if is_new {
            self.change(Change::RunHandedOut(run));
        }
        if changed {
            self.change(Change::RackRegistered { rack, record });
        }
        if changed || self.lease_left(rack).is_none() {
            let lost = served.filter(|served| served.memory != run.memory);
            let lost = lost.map_or(0, |run| self.records.directory.living_in(&run));
            let incarnation = announced.incarnation;
            self.batch.events.push(OperatorEvent::Joined {
                rack,
                incarnation,
                pages: run.pages,
                lost,
            });
        }
        self.set_lease(rack, LeaseChange { granted: true, changed });
        self.batch.registered.insert(rack, self.from);
        let lease_ms = u64::try_from(self.membership.lease().as_millis()).unwrap_or(u64::MAX);
        // The position before this batch; it is replaced when the batch is durable.
        let position = self.records.lineage.position();
        Ok(MetadataReply::Registered { pages: run.pages, lease_ms, position, fabric_key: None })
    }

    fn check_limits(&self, announced: &RackAnnouncement) -> Result<PageSize, Refusal> {
        let page_size = PageSize::from_bytes(announced.page_bytes)
            .map_err(|error| Refusal::Invalid(error.to_string()))?;
        if let Some(pool) = self.records.page_size
            && pool != page_size
        {
            return Err(Refusal::PageSize { pool: pool.bytes(), rack: page_size.bytes() });
        }
        if announced.frames == 0 {
            return Err(Refusal::Invalid("a rack without frames has nothing to share".into()));
        }
        Ok(page_size)
    }

    /// Refuses a rack that uses another kind of fabric than a rack with a valid lease: they could
    /// not reach each other.
    fn check_fabric(&self, announced: &RackAnnouncement) -> Result<(), Refusal> {
        let own = fabric_of(&announced.fabric_address);
        let others = self.records.racks.iter().filter(|(rack, _)| **rack != announced.rack);
        for (rack, record) in others {
            let theirs = fabric_of(&record.fabric_address);
            if theirs != own && !record.left && self.lease_left(*rack).is_some() {
                let (theirs, own) = (theirs.to_string(), own.to_string());
                return Err(Refusal::OtherFabric { rack: *rack, theirs, own });
            }
        }
        Ok(())
    }

    /// Returns the memory's run, and true if it is a new one.
    fn run_for(&self, announced: &RackAnnouncement) -> Result<(Run, bool), Refusal> {
        let RackAnnouncement { rack, memory, frames, .. } = *announced;
        if let Some(run) = self.records.directory.run_of(memory) {
            if run.rack != rack {
                return Err(Refusal::Invalid(format!(
                    "memory {memory} belongs to {0}: start the daemon with --rack {1}",
                    run.rack, run.rack.0
                )));
            }
            if run.pages.count != frames {
                return Err(Refusal::FramesChanged { before: run.pages.count, now: frames });
            }
            return Ok((*run, false));
        }
        match self.records.directory.next_run(rack, memory, frames) {
            Ok(run) => Ok((run, true)),
            Err(DirectoryError::Exhausted { .. }) => Err(Refusal::PageIdsExhausted),
            Err(error) => Err(Refusal::Invalid(error.to_string())),
        }
    }

    fn leave(&mut self, rack: RackId, incarnation: Incarnation) -> Result<MetadataReply, Refusal> {
        let known = self.records.racks.get(&rack).ok_or(Refusal::NotMember(rack))?;
        known.check(rack, incarnation)?;
        if !known.left {
            self.change(Change::RackLeft { rack });
            self.batch.events.push(OperatorEvent::Left { rack });
            self.set_lease(rack, LeaseChange { granted: false, changed: false });
        }
        Ok(MetadataReply::Left)
    }

    fn put_root(
        &mut self,
        name: String,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<MetadataReply, Refusal> {
        let addr = self.records.roots.get(&name);
        if addr != expected {
            return Ok(MetadataReply::Root { addr, changed: false });
        }
        match new {
            _ if new == addr => {}
            Some(addr) => {
                self.records.roots.check_room(&name)?;
                self.change(Change::RootPut { name, addr });
            }
            None => self.change(Change::RootRemoved { name }),
        }
        Ok(MetadataReply::Root { addr: new, changed: true })
    }

    /// Returns the rest of the rack's lease once this batch is durable.
    fn lease_left(&self, rack: RackId) -> Option<Duration> {
        match self.batch.leases.get(&rack) {
            Some(change) => change.granted.then(|| self.membership.lease()),
            None => self.membership.lease_left(rack, self.now),
        }
    }

    fn set_lease(&mut self, rack: RackId, mut lease: LeaseChange) {
        // A change earlier in the batch still has to be announced to other racks.
        lease.changed |= self.batch.leases.get(&rack).is_some_and(|earlier| earlier.changed);
        self.batch.leases.insert(rack, lease);
    }

    fn change(&mut self, change: Change) {
        let applied = self.records.apply(&change);
        debug_assert!(applied.is_ok(), "a change that was checked before: {applied:?}");
        self.batch.changes.push(change);
    }
}

/// The kind of fabric in an address: the text before the first colon.
fn fabric_of(address: &str) -> &str {
    address.split_once(':').map_or("", |(kind, _)| kind)
}
