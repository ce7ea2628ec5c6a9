//! The coordinator of a group: begins epochs and says how the multicast has ended. The table of
//! its states, with what ends each, is in docs/design/multicast.md.
//!
//! | state | invariant |
//! |---|---|
//! | collecting | each survivor that has answered is wedged, with the map that it reported |
//! | running | the plan follows from the maps; a survivor is told it until it has begun |
//! | publishing | every survivor is complete |
//! | ended | every rack that reports is told how the multicast ended |
//!
//! A coordinator that hears of a later epoch stops: another rack coordinates. A kill leaves
//! nothing: the lowest surviving rack begins a later epoch.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rackpool_model::RackId;

use super::block_map::BlockMap;
use super::event::{Failure, MulticastAction, MulticastMessage, Status};
use super::plan::{Plan, Survivor};
use super::{Epoch, Group, MulticastRules, Visibility};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

#[derive(Debug)]
enum State {
    Collecting { until: Time, call_at: Time },
    Running(Plan),
    Publishing,
    Ended,
}

/// What the coordinator knows of a rack.
#[derive(Debug)]
struct Known {
    /// The blocks that the rack reported in this epoch before the plan.
    map: Option<BlockMap>,
    is_complete: bool,
    /// When the rack last reported.
    heard_at: Time,
    failure: Option<Failure>,
}

/// The coordinator of a group. [`Participant`](super::participant::Participant) runs it.
#[derive(Debug)]
pub struct Coordinator<B> {
    group: Group,
    rules: MulticastRules,
    bugs: B,
    epoch: Epoch,
    state: State,
    racks: BTreeMap<RackId, Known>,
    unreadable: BTreeSet<(RackId, RackId)>,
    actions: VecDeque<MulticastAction>,
}

impl<B: Bugs> Coordinator<B> {
    /// Begins the epoch after `last`, without the lost racks.
    pub(super) fn new(
        now: Time,
        own: RackId,
        group: &Group,
        last: Epoch,
        lost: &BTreeSet<RackId>,
        (rules, bugs): (MulticastRules, B),
    ) -> Self {
        let racks = group.members.iter().map(|member| {
            let failure = lost.contains(&member.rack).then_some(Failure::Lost);
            let known = Known { map: None, is_complete: false, heard_at: now, failure };
            (member.rack, known)
        });
        let mut coordinator = Self {
            group: group.clone(),
            rules,
            bugs,
            epoch: Epoch { number: last.number, coordinator: own },
            state: State::Ended,
            racks: racks.collect(),
            unreadable: BTreeSet::new(),
            actions: VecDeque::new(),
        };
        coordinator.begin_epoch(now);
        coordinator
    }

    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn poll(&mut self) -> Option<MulticastAction> {
        self.actions.pop_front()
    }

    /// The time at which the coordinator has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.state {
            State::Collecting { until, call_at } => Some(*until.min(call_at)),
            State::Running(_) => {
                let heard = self.survivors().map(|(_, known)| known.heard_at).min();
                heard.map(|at| at.after(self.rules.grace))
            }
            State::Publishing | State::Ended => None,
        }
    }

    /// Handles the report of a rack.
    pub(super) fn reported(&mut self, now: Time, rack: RackId, epoch: Epoch, status: Status) {
        let Some(known) = self.racks.get_mut(&rack) else { return };
        known.heard_at = now;
        if let Some(failure) = known.failure {
            self.send(rack, MulticastMessage::End(self.epoch, Err(failure)));
            return;
        }
        if let State::Ended = self.state {
            self.send(rack, MulticastMessage::End(self.epoch, Ok(())));
            return;
        }
        if epoch != self.epoch && !self.bugs.has(Bug::TakeAnyEpoch) {
            return;
        }
        match status {
            Status::Wedged(map) => self.wedged(rack, map),
            Status::Receiving(_) => {}
            Status::Stuck(source) => self.stuck(now, rack, source),
            Status::Complete => self.complete(rack),
            Status::Failed(failure) => self.failed(now, rack, failure),
        }
    }

    /// A rack has ended.
    pub(super) fn lost(&mut self, now: Time, rack: RackId) {
        self.failed(now, rack, Failure::Lost);
    }

    pub(super) fn published(&mut self) {
        if let State::Publishing = self.state {
            self.end();
        }
    }

    pub(super) fn deadline_passed(&mut self, now: Time) {
        match &mut self.state {
            State::Collecting { until, .. } if *until <= now => {
                for known in self.racks.values_mut() {
                    if known.map.is_none() && known.failure.is_none() {
                        known.failure = Some(Failure::Silent);
                    }
                }
                self.plan();
            }
            State::Collecting { call_at, .. } if *call_at <= now => {
                *call_at = now.after(self.rules.beat);
                self.call();
            }
            State::Running(_) => {
                let grace = self.rules.grace;
                let silent: Vec<_> = self
                    .survivors()
                    .filter(|(_, known)| now.since(known.heard_at) >= grace)
                    .map(|(rack, _)| rack)
                    .collect();
                for rack in silent {
                    self.failed(now, rack, Failure::Silent);
                }
            }
            _ => {}
        }
    }

    fn survivors(&self) -> impl Iterator<Item = (RackId, &Known)> {
        let alive = self.racks.iter().filter(|(_, known)| known.failure.is_none());
        alive.map(|(rack, known)| (*rack, known))
    }

    fn begin_epoch(&mut self, now: Time) {
        self.epoch.number = self.epoch.number.saturating_add(1);
        for known in self.racks.values_mut() {
            (known.map, known.is_complete) = (None, false);
        }
        let (until, call_at) = (now.after(self.rules.grace), now.after(self.rules.beat));
        self.state = State::Collecting { until, call_at };
        self.call();
    }

    /// Calls the racks that have not answered to the new epoch.
    fn call(&mut self) {
        let silent = self.survivors().filter(|(_, known)| known.map.is_none());
        for rack in silent.map(|(rack, _)| rack).collect::<Vec<_>>() {
            self.send(rack, MulticastMessage::Wedge(self.epoch));
        }
    }

    fn wedged(&mut self, rack: RackId, map: BlockMap) {
        match &self.state {
            State::Collecting { .. } => {
                if let Some(known) = self.racks.get_mut(&rack) {
                    known.map = Some(BlockMap::from_words(self.group.blocks, map.words()));
                }
                self.plan_if_all_answered();
            }
            // The plan was lost on its way.
            State::Running(plan) => {
                let message = MulticastMessage::Plan(self.epoch, plan.clone());
                self.send(rack, message);
            }
            State::Publishing | State::Ended => {}
        }
    }

    fn stuck(&mut self, now: Time, rack: RackId, source: RackId) {
        if let State::Running(plan) = &self.state {
            let is_root = plan.members().first().is_some_and(|member| member.rack == source);
            let is_new = self.unreadable.insert((rack, source));
            // The next plan has another source for it, except for what only the root has.
            if is_new || !is_root {
                self.begin_epoch(now);
            } else {
                self.failed(now, rack, Failure::Unreachable);
            }
        }
    }

    fn complete(&mut self, rack: RackId) {
        let blocks = self.group.blocks;
        if let Some(known) = self.racks.get_mut(&rack) {
            known.is_complete = true;
            if let State::Collecting { .. } = self.state {
                // It has ended by the word of an earlier coordinator.
                known.map = Some(BlockMap::full(blocks));
                self.plan_if_all_answered();
            }
        }
        self.end_if_complete();
    }

    fn failed(&mut self, now: Time, rack: RackId, failure: Failure) {
        let Some(known) = self.racks.get_mut(&rack) else { return };
        if known.failure.is_some() || matches!(self.state, State::Ended) {
            return;
        }
        known.failure = Some(failure);
        match self.state {
            State::Collecting { .. } => self.plan_if_all_answered(),
            State::Running(_) => {
                let is_complete = self.survivors().all(|(_, known)| known.is_complete);
                if is_complete { self.end_if_complete() } else { self.begin_epoch(now) }
            }
            State::Publishing | State::Ended => {}
        }
    }

    fn plan_if_all_answered(&mut self) {
        let is_collecting = matches!(self.state, State::Collecting { .. });
        if is_collecting && self.survivors().all(|(_, known)| known.map.is_some()) {
            self.plan();
        }
    }

    fn plan(&mut self) {
        let survivors = self.group.members.iter().filter_map(|member| {
            let known = self.racks.get(&member.rack)?;
            let map = known.map.clone().filter(|_| known.failure.is_none())?;
            Some(Survivor { member: *member, map })
        });
        let survivors: Vec<_> = survivors.collect();
        match Plan::new(self.group.schedule, &survivors, &self.unreadable) {
            Ok(plan) => {
                for Survivor { member, .. } in survivors {
                    let message = MulticastMessage::Plan(self.epoch, plan.clone());
                    self.send(member.rack, message);
                }
                self.state = State::Running(plan);
            }
            Err(error) => {
                for known in self.racks.values_mut() {
                    known.failure.get_or_insert(Failure::NoPlan(error));
                }
                self.end();
            }
        }
    }

    fn end_if_complete(&mut self) {
        let State::Running(_) = self.state else { return };
        let is_early =
            self.bugs.has(Bug::ShowEarly) && self.survivors().any(|(_, known)| known.is_complete);
        if !is_early && !self.survivors().all(|(_, known)| known.is_complete) {
            return;
        }
        match self.group.visibility {
            Visibility::Each => self.end(),
            Visibility::Together => {
                self.state = State::Publishing;
                self.actions.push_back(MulticastAction::Publish);
            }
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        let results =
            self.racks.iter().map(|(rack, known)| (*rack, known.failure.map_or(Ok(()), Err)));
        let results: BTreeMap<_, _> = results.collect();
        for (rack, result) in &results {
            self.send(*rack, MulticastMessage::End(self.epoch, *result));
        }
        self.actions.push_back(MulticastAction::Report(results));
    }

    fn send(&mut self, to: RackId, message: MulticastMessage) {
        self.actions.push_back(MulticastAction::Send(to, message));
    }
}
