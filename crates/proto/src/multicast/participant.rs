//! A rack of a group: its member, and the coordinator while this rack is the one.
//!
//! The root begins as coordinator. A rack that finds all racks of lower rank lost becomes the
//! coordinator and begins a later epoch.

use alloc::collections::BTreeSet;

use rackpool_model::RackId;

use super::block_map::BlockMap;
use super::coordinator::Coordinator;
use super::event::{MulticastAction, MulticastEvent, MulticastMessage};
use super::member::{Member, Stored};
use super::{Epoch, Group, MulticastRules};
use crate::Time;
use crate::planted_bugs::{Bugs, Sound};

/// The machine of one rack in one multicast.
///
/// It counts as ended after [`MulticastAction::End`]. The shell keeps it for the grace time: it
/// answers racks that have not heard of the end.
#[derive(Debug)]
pub struct Participant<B = Sound> {
    now: Time,
    own: RackId,
    group: Group,
    rules: MulticastRules,
    bugs: B,
    member: Member<B>,
    coordinator: Option<Coordinator<B>>,
    lost: BTreeSet<RackId>,
}

impl<B: Bugs> Participant<B> {
    /// A rack begins to take part. `stored` is what it has of the object; the root has all of it.
    pub fn new(
        now: Time,
        own: RackId,
        group: Group,
        stored: Option<Stored>,
        rules: MulticastRules,
        bugs: B,
    ) -> Self {
        let member = Member::new(own, &group, stored, rules, bugs);
        let mut participant =
            Self { now, own, group, rules, bugs, member, coordinator: None, lost: BTreeSet::new() };
        participant.take_over();
        participant
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Time, event: MulticastEvent) {
        self.now = self.now.max(now);
        let now = self.now;
        match event {
            MulticastEvent::Message(from, message) => self.message(from, message),
            MulticastEvent::Looked { from, word, found } => {
                self.member.looked(now, from, word, found);
            }
            MulticastEvent::BlockRead { from, block, found } => {
                self.member.block_read(now, from, block, found);
            }
            MulticastEvent::Verified(is_right) => self.member.verified(now, is_right),
            MulticastEvent::Published => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.published();
                }
            }
            MulticastEvent::RackLost(rack) => {
                self.lost.insert(rack);
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.lost(now, rack);
                }
                self.take_over();
            }
            MulticastEvent::DeadlinePassed => {
                self.member.deadline_passed(now);
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.deadline_passed(now);
                }
            }
        }
    }

    /// Returns the next action.
    pub fn poll(&mut self) -> Option<MulticastAction> {
        loop {
            let of_coordinator = self.coordinator.as_mut().and_then(Coordinator::poll);
            let action = of_coordinator.or_else(|| self.member.poll())?;
            match action {
                MulticastAction::Send(to, message) if to == self.own => {
                    self.message(to, message);
                }
                action => return Some(action),
            }
        }
    }

    /// Returns the time when [`MulticastEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::deadline);
        [coordinator, self.member.deadline()].into_iter().flatten().min()
    }

    /// The blocks that the rack has. Before the first event the shell stores this map where peers
    /// read it, since not all that is stored there counts.
    #[must_use]
    pub const fn map(&self) -> &BlockMap {
        self.member.map()
    }

    /// The epoch that this rack is in.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.member.epoch()
    }

    /// Returns true if the multicast has ended for this rack.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.member.has_ended()
    }

    fn message(&mut self, from: RackId, message: MulticastMessage) {
        let now = self.now;
        match message {
            MulticastMessage::Wedge(epoch) if epoch.coordinator == from => {
                self.overtaken(epoch);
                self.member.wedge(now, epoch);
                // Its coordinator may be lost already.
                self.take_over();
            }
            MulticastMessage::Plan(epoch, plan) if epoch.coordinator == from => {
                if plan.fits(&self.group) {
                    self.member.plan(now, epoch, &plan);
                }
            }
            MulticastMessage::End(epoch, result) if epoch.coordinator == from => {
                self.member.end(now, epoch, result);
            }
            MulticastMessage::Report(epoch, status) => {
                if let Some(coordinator) = &mut self.coordinator {
                    coordinator.reported(now, from, epoch, status);
                }
            }
            MulticastMessage::Overtaken(epoch) => {
                self.overtaken(epoch);
                // The later epoch may have begun without this rack, which then hears so.
                if epoch > self.member.epoch() {
                    self.member.wedge(now, epoch);
                }
            }
            // A rack speaks for itself.
            MulticastMessage::Wedge(_) | MulticastMessage::Plan(..) | MulticastMessage::End(..) => {
            }
        }
    }

    /// Stops to coordinate if a later epoch has begun.
    fn overtaken(&mut self, epoch: Epoch) {
        if self.coordinator.as_ref().is_some_and(|coordinator| coordinator.epoch() < epoch) {
            self.coordinator = None;
        }
    }

    /// Begins to coordinate if all racks before this one are lost, and the rack that coordinates
    /// is one of them.
    fn take_over(&mut self) {
        let last = self.member.epoch();
        let is_led = last.number > 0 && !self.lost.contains(&last.coordinator);
        let racks = self.group.members.iter().map(|member| member.rack);
        let lowest = racks.into_iter().find(|rack| !self.lost.contains(rack));
        if self.coordinator.is_none()
            && !self.member.has_ended()
            && !is_led
            && lowest == Some(self.own)
        {
            let with = (self.rules, self.bugs);
            let coordinator =
                Coordinator::new(self.now, self.own, &self.group, last, &self.lost, with);
            self.coordinator = Some(coordinator);
        }
    }
}
