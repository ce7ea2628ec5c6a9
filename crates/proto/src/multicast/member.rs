//! A member: reads the blocks that the plan of the epoch names. The table of its states, with what
//! a kill leaves in each, is in docs/design/multicast.md.
//!
//! | state | invariant |
//! |---|---|
//! | wedged | begins no read; those of an earlier epoch may be under way |
//! | receiving | at most two reads and one look under way; what is read or listed the map lacks |
//! | stuck | begins no read, because a source can't be read |
//! | verifying | the map is full |
//! | complete | the bytes have the object's checksum |
//! | failed | the bytes have another checksum |
//! | ended | no read under way; coordinators that ask are told the result |

mod receiving;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rackpool_model::RackId;

use super::block_map::BlockMap;
use super::event::{Failure, MulticastAction, MulticastMessage, Status};
use super::plan::{Plan, Receive};
use super::{Epoch, Group, MulticastRules, Version, Visibility};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// What a rack has of an object when it begins to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The object that the bytes belong to.
    pub version: Version,
    /// The blocks whose bytes are there.
    pub map: BlockMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Wedged,
    Receiving,
    Stuck(RackId),
    Verifying,
    Complete,
    Failed(Failure),
    Ended(Result<(), Failure>),
}

/// The member of one rack. [`Participant`](super::participant::Participant) runs it.
#[derive(Debug)]
pub struct Member<B> {
    own: RackId,
    version: Version,
    visibility: Visibility,
    rules: MulticastRules,
    bugs: B,
    epoch: Epoch,
    state: State,
    map: BlockMap,
    is_verified: bool,
    is_shown: bool,
    /// What is still to be read, in order.
    list: VecDeque<Receive>,
    /// The reads under way.
    reading: Vec<Receive>,
    /// The rack and word of the look under way.
    looking: Option<(RackId, u32)>,
    /// The blocks that other racks are known to have.
    known: BTreeMap<RackId, BlockMap>,
    /// When a map that lacked the next block is read again, and the wait until then.
    look_at: Option<Time>,
    wait: core::time::Duration,
    /// When the report is repeated.
    report_at: Time,
    /// The end that came while reads were under way.
    ending: Option<Result<(), Failure>>,
    actions: VecDeque<MulticastAction>,
}

impl<B: Bugs> Member<B> {
    /// A member of an epoch before the first. `stored` is what an earlier multicast has left.
    pub fn new(
        own: RackId,
        group: &Group,
        stored: Option<Stored>,
        rules: MulticastRules,
        bugs: B,
    ) -> Self {
        let is_any = bugs.has(Bug::ResumeAnyVersion);
        let stored = stored.filter(|stored| stored.version == group.version || is_any);
        let map = stored.map_or_else(
            || BlockMap::empty(group.blocks),
            |stored| BlockMap::from_words(group.blocks, stored.map.words()),
        );
        Self {
            own,
            version: group.version,
            visibility: group.visibility,
            rules,
            bugs,
            epoch: Epoch { number: 0, coordinator: RackId(0) },
            state: State::Wedged,
            map,
            is_verified: false,
            is_shown: false,
            list: VecDeque::new(),
            reading: Vec::new(),
            looking: None,
            known: BTreeMap::new(),
            look_at: None,
            wait: rules.first_look,
            report_at: Time::ZERO,
            ending: None,
            actions: VecDeque::new(),
        }
    }

    /// The epoch that the member is in.
    pub(super) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) const fn map(&self) -> &BlockMap {
        &self.map
    }

    pub(super) fn poll(&mut self) -> Option<MulticastAction> {
        self.actions.pop_front()
    }

    /// Returns true if the member has ended.
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// The time at which the member has something to do.
    pub(super) fn deadline(&self) -> Option<Time> {
        let reports = (!self.has_ended() && self.epoch.number > 0).then_some(self.report_at);
        [reports, self.look_at].into_iter().flatten().min()
    }

    pub(super) fn wedge(&mut self, now: Time, epoch: Epoch) {
        if epoch < self.epoch && !self.bugs.has(Bug::TakeAnyEpoch) {
            self.send(epoch.coordinator, MulticastMessage::Overtaken(self.epoch));
            return;
        }
        if epoch != self.epoch {
            self.epoch = epoch;
            self.enter_wedged();
        }
        self.report(now);
    }

    pub(super) fn plan(&mut self, now: Time, epoch: Epoch, plan: &Plan) {
        let is_any = self.bugs.has(Bug::TakeAnyEpoch);
        let is_awaited = epoch == self.epoch && self.state == State::Wedged;
        if !is_awaited && !is_any || self.ending.is_some() || self.has_ended() {
            return;
        }
        self.epoch = epoch;
        self.known.clear();
        self.list = plan.receives(self.own, &self.map).into();
        self.go_on(now);
        self.report(now);
    }

    pub(super) fn end(&mut self, now: Time, epoch: Epoch, result: Result<(), Failure>) {
        if self.has_ended() || epoch < self.epoch {
            return;
        }
        self.ending = Some(result);
        self.end_when_idle(now);
    }

    pub(super) fn verified(&mut self, now: Time, is_right: bool) {
        if self.has_ended() {
            return;
        }
        self.is_verified = is_right;
        if !is_right {
            self.state = State::Failed(Failure::Damaged);
        } else if self.state == State::Verifying {
            self.state = State::Complete;
        }
        if is_right && self.visibility == Visibility::Each {
            self.show();
        }
        self.report(now);
    }

    pub(super) fn deadline_passed(&mut self, now: Time) {
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            self.advance(now);
        }
        if self.report_at <= now {
            self.report(now);
        }
    }

    fn enter_wedged(&mut self) {
        if !self.bugs.has(Bug::ReadWhileWedged) {
            self.list.clear();
            self.look_at = None;
            self.looking = None;
        }
        if !matches!(self.state, State::Failed(_) | State::Ended(_)) {
            self.state = State::Wedged;
        }
    }

    /// Goes on after a plan, or after a block.
    fn go_on(&mut self, now: Time) {
        if !self.list.is_empty() || !self.reading.is_empty() {
            self.state = State::Receiving;
            self.wait = self.rules.first_look;
            self.advance(now);
        } else if !self.map.is_full() {
            // The plan leaves this rack out.
            self.state = State::Wedged;
        } else if self.is_verified {
            self.state = State::Complete;
        } else {
            self.state = State::Verifying;
            self.actions.push_back(MulticastAction::Verify);
        }
    }

    fn end_when_idle(&mut self, now: Time) {
        let Some(result) = self.ending else { return };
        self.list.clear();
        self.look_at = None;
        if !self.reading.is_empty() {
            self.report_at = now.after(self.rules.beat);
            return;
        }
        self.ending = None;
        // A rack that shows the object has it, also if its coordinator gave it up meanwhile.
        let result = if self.is_shown { Ok(()) } else { result };
        self.state = State::Ended(result);
        if result.is_ok() {
            self.show();
        }
        self.actions.push_back(MulticastAction::End(result));
    }

    fn show(&mut self) {
        if !self.is_shown {
            self.is_shown = true;
            self.actions.push_back(MulticastAction::Show);
        }
    }

    fn send(&mut self, to: RackId, message: MulticastMessage) {
        self.actions.push_back(MulticastAction::Send(to, message));
    }

    /// Reports the state. A wedged member says nothing while a read is under way, since its map may
    /// grow.
    fn report(&mut self, now: Time) {
        self.report_at = now.after(self.rules.beat);
        let status = match self.state {
            State::Wedged if !self.reading.is_empty() && !self.bugs.has(Bug::ReadWhileWedged) => {
                return;
            }
            State::Wedged => Status::Wedged(self.map.clone()),
            State::Receiving | State::Verifying => Status::Receiving(self.map.count()),
            State::Stuck(source) => Status::Stuck(source),
            State::Complete | State::Ended(Ok(())) => Status::Complete,
            State::Failed(failure) | State::Ended(Err(failure)) => Status::Failed(failure),
        };
        self.send(self.epoch.coordinator, MulticastMessage::Report(self.epoch, status));
    }
}
