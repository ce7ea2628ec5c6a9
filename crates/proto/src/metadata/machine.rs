mod swapping;

use alloc::collections::VecDeque;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use rackpool_model::{RackId, StorePosition};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};

use super::batch::{Answer, Batch};
use super::request_handler::RequestHandler;
use super::swaps::Swaps;
use super::view::View;
use super::{
    Action, BatchId, Change, ConnectionToken, Event, OperatorEvent, RackState, RecordError, Records,
};
use crate::Time;
use crate::membership::{Heartbeat, Membership, RackRecord};
use crate::planted_bugs::{Bug, Bugs, Sound};
use crate::swap::{ServerEvent, SwapRules};

/// The metadata server without its sockets, store and clock.
///
/// Reads and heartbeats are answered at once from the durable records, and so are registrations
/// that change nothing. Requests that may change something are decided together in a batch and
/// answered when it is durable. Commits of swaps are changes like others; the other messages about
/// swaps depend on no change, or on durable ones.
#[derive(Debug)]
pub struct MetadataMachine<B = Sound> {
    now: Time,
    rules: SwapRules,
    bugs: B,
    /// The random id of this start.
    server: u64,
    /// The durable records: all that any process is shown.
    settled: Records,
    /// The durable records with the changes of the batch in progress.
    ahead: Records,
    membership: Membership,
    /// The membership version that was last pushed to racks.
    told: u64,
    startup: Startup,
    /// The swaps of this boot; `None` until the boot number is durable.
    swaps: Option<Swaps<B>>,
    waiting: VecDeque<Asked>,
    in_flight: Option<Batch>,
    last_batch: BatchId,
    actions: VecDeque<Action>,
}

/// Whether the boot number is durable. Before that no request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Startup {
    Due,
    Underway,
    Done,
    /// The boot number could not be written; the next request makes it due again.
    Failed,
}

#[derive(Debug)]
struct Asked {
    from: ConnectionToken,
    tag: u64,
    request: MetadataRequest,
}

impl MetadataMachine {
    /// [`Self::restore_with`] [`SwapRules::DEFAULT`] and without bugs.
    ///
    /// # Errors
    /// When the records contradict each other.
    pub fn restore(
        now: Time,
        lease: Duration,
        server: u64,
        records: impl IntoIterator<Item = Change>,
    ) -> Result<Self, RecordError> {
        Self::restore_with(now, lease, SwapRules::DEFAULT, server, records, Sound)
    }
}

impl<B: Bugs> MetadataMachine<B> {
    /// Restores the machine from its records. Every rack that has not left gets a whole `lease`,
    /// which begins when this boot is durable: no request is answered before.
    ///
    /// `records` is the content of the store: the durable changes of [`Action::Persist`], or their
    /// sum in the order that [`Change`] prescribes.
    ///
    /// # Errors
    /// When the records contradict each other.
    pub fn restore_with(
        now: Time,
        lease: Duration,
        rules: SwapRules,
        server: u64,
        records: impl IntoIterator<Item = Change>,
        bugs: B,
    ) -> Result<Self, RecordError> {
        let mut settled = Records::default();
        for change in records {
            settled.apply(&change)?;
        }
        let boot = Self::boot_after(&settled, bugs);
        let membership = Membership::new(lease, u64::from(boot) << 32);
        let mut machine = Self {
            now,
            rules,
            bugs,
            server: server.max(1),
            ahead: settled.clone(),
            settled,
            told: membership.version(),
            membership,
            startup: Startup::Due,
            swaps: None,
            waiting: VecDeque::new(),
            in_flight: None,
            last_batch: BatchId(0),
            actions: VecDeque::new(),
        };
        machine.grant_all();
        Ok(machine)
    }

    /// Returns the boot number after these records.
    fn boot_after(records: &Records, bugs: B) -> u32 {
        if bugs.has(Bug::ForgetBoot) { 1 } else { records.next_boot() }
    }

    /// Grants a whole lease to every rack that has not left.
    fn grant_all(&mut self) {
        for (rack, record) in &self.settled.racks {
            if !record.left {
                self.membership.grant(self.now, *rack, false);
            }
        }
    }

    /// Handles an event. If `now` is earlier than before, time counts as standing still.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.now = self.now.max(now);
        if matches!(event, Event::StoodStill) {
            self.membership.stood_still(self.now);
        }
        // Before the boot is durable no rack could renew its lease.
        if self.startup == Startup::Done {
            for rack in self.membership.expire(self.now) {
                self.actions.push_back(Action::Report(OperatorEvent::Expired { rack }));
            }
        }
        match event {
            Event::Requested { from, tag, request } => {
                if self.startup == Startup::Failed {
                    self.startup = Startup::Due;
                }
                self.requested(Asked { from, tag, request });
            }
            Event::Committed { batch } => self.committed(batch),
            Event::CommitFailed { batch, reason } => self.commit_failed(batch, &reason),
            Event::DeadlinePassed | Event::StoodStill => {}
        }
        if self.swap_deadline().is_some_and(|deadline| deadline <= self.now) {
            self.feed_swaps(ServerEvent::DeadlinePassed);
        }
        self.tell_members();
    }

    /// Pushes the members to all racks as soon as they have changed, so that racks use a restarted
    /// daemon at once and not after their next heartbeat.
    fn tell_members(&mut self) {
        let version = self.membership.version();
        if self.startup != Startup::Done || self.told == version {
            return;
        }
        self.told = version;
        for to in self.membership.tell_all(self.now) {
            let members = self.view().members();
            let reply = MetadataReply::Members { version, members };
            self.actions.push_back(Action::Push { to, reply });
        }
    }

    /// Returns the next action. Requests handled between two calls that return `None` become
    /// durable in one batch: the shell should pass on all waiting requests first.
    pub fn poll(&mut self) -> Option<Action> {
        if self.actions.is_empty() && self.in_flight.is_none() {
            self.begin_batch();
        }
        self.actions.pop_front()
    }

    /// Returns the length of a rack's lease without a heartbeat.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.membership.lease()
    }

    /// Returns the time when [`Event::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let lease_end = self.membership.deadline().filter(|_| self.startup == Startup::Done);
        lease_end.into_iter().chain(self.swap_deadline()).min()
    }

    /// Returns every rack that ever registered and its state.
    #[must_use]
    pub fn rack_states(&self) -> Vec<(RackId, RackState)> {
        self.view().rack_states().collect()
    }

    fn requested(&mut self, asked: Asked) {
        let Asked { from, tag, request } = asked;
        if self.startup != Startup::Done {
            self.waiting.push_back(Asked { from, tag, request });
        } else if let MetadataRequest::Swap { rack, incarnation, message } = request {
            self.rack_sent(from, rack, incarnation, message);
        } else if let Some(reply) = self.read(from, &request) {
            self.actions.push_back(Action::Reply { to: from, tag, reply });
        } else if self.is_registered(&request) {
            // Answered at once: its lease must not expire while other changes are written.
            let mut batch = Batch::new(self.last_batch);
            self.decide(Asked { from, tag, request }, &mut batch);
            debug_assert!(batch.changes.is_empty(), "it is registered: {:?}", batch.changes);
            self.finish(batch);
        } else {
            self.waiting.push_back(Asked { from, tag, request });
        }
    }

    /// Returns true for a registration that equals the durable record while nothing else about its
    /// rack is being decided. It needs no write: its connection broke, or its answer was lost.
    fn is_registered(&self, request: &MetadataRequest) -> bool {
        let MetadataRequest::Register(announced) = request else { return false };
        let (rack, record) = (announced.rack, RackRecord::of(announced));
        let is_known = |records: &Records| records.racks.get(&rack) == Some(&record);
        let is_about_it = |asked: &Asked| match &asked.request {
            MetadataRequest::Register(other) => other.rack == rack,
            MetadataRequest::Leave { rack: other, .. } => *other == rack,
            _ => false,
        };
        let is_written =
            self.in_flight.as_ref().is_some_and(|batch| batch.leases.contains_key(&rack));
        is_known(&self.settled)
            && is_known(&self.ahead)
            && !is_written
            && !self.waiting.iter().any(is_about_it)
    }

    /// Returns the answer to a request that changes nothing durable; `None` for other requests.
    fn read(&mut self, from: ConnectionToken, request: &MetadataRequest) -> Option<MetadataReply> {
        Some(match *request {
            MetadataRequest::Heartbeat { rack, incarnation, free_frames, seen_version } => {
                let beat = Heartbeat { from, rack, incarnation, free_frames, seen_version };
                self.heartbeat(beat).unwrap_or_else(MetadataReply::Refused)
            }
            MetadataRequest::Locate { page } => self.view().locate(page),
            MetadataRequest::GetRoot { ref name } => self.view().root(name),
            MetadataRequest::Status => MetadataReply::Status(self.view().status()),
            MetadataRequest::Explain { page } => self.view().explain(page, self.swaps.as_ref()?),
            MetadataRequest::Register(_)
            | MetadataRequest::Leave { .. }
            | MetadataRequest::PutRoot { .. }
            | MetadataRequest::Swap { .. } => return None,
        })
    }

    fn heartbeat(&mut self, beat: Heartbeat) -> Result<MetadataReply, Refusal> {
        let record = self.settled.racks.get(&beat.rack).ok_or(Refusal::NotMember(beat.rack))?;
        let version = self.membership.version();
        if self.bugs.has(Bug::AnswerWithoutRenewing) && beat.seen_version == version {
            record.check(beat.rack, beat.incarnation)?;
            return Ok(MetadataReply::Renewed {
                position: self.position(),
                version,
                members: Vec::new(),
            });
        }
        let tell = self.membership.heartbeat(self.now, record, beat)?;
        let members = if tell { self.view().members() } else { Vec::new() };
        let (position, version) = (self.position(), self.membership.version());
        Ok(MetadataReply::Renewed { position, version, members })
    }

    /// The position of the store. No rack may learn of a commit before it is durable: after a crash
    /// the next server would refuse the rack.
    fn position(&self) -> StorePosition {
        let early = self.bugs.has(Bug::TellOfCommitsBeforeDurable);
        let records = if early { &self.ahead } else { &self.settled };
        records.lineage.position()
    }

    fn view(&self) -> View<'_> {
        let early = self.bugs.has(Bug::ShowBeforeDurable);
        let records = if early { &self.ahead } else { &self.settled };
        View { records, membership: &self.membership }
    }

    fn begin_batch(&mut self) {
        let mut batch = Batch::new(BatchId(self.last_batch.0 + 1));
        match self.startup {
            Startup::Due => {
                self.startup = Startup::Underway;
                let boot = Self::boot_after(&self.settled, self.bugs);
                let started = Change::Started { boot, server: self.server };
                // Both are plain values, so this can't fail.
                let _ = self.ahead.apply(&started);
                batch.changes.push(started);
            }
            Startup::Done if !self.waiting.is_empty() || self.has_commits() => {
                self.decide_waiting(&mut batch);
                self.commit_swaps(&mut batch);
            }
            _ => return,
        }
        if batch.changes.is_empty() {
            self.finish(batch);
            return;
        }
        self.last_batch = batch.id;
        if self.startup == Startup::Done {
            let advanced = Change::Advanced { commit: batch.id.0 };
            let _ = self.ahead.apply(&advanced);
            batch.changes.push(advanced);
        }
        if self.bugs.has(Bug::ReplyBeforeDurable) {
            let answers = mem::take(&mut batch.answers).into_iter();
            self.actions.extend(answers.map(Answer::into_action));
        }
        self.actions.push_back(Action::Persist { batch: batch.id, changes: batch.changes.clone() });
        self.in_flight = Some(batch);
    }

    fn decide_waiting(&mut self, batch: &mut Batch) {
        for asked in mem::take(&mut self.waiting) {
            self.decide(asked, batch);
        }
    }

    fn decide(&mut self, Asked { from, tag, request }: Asked, batch: &mut Batch) {
        let mut handler = RequestHandler {
            now: self.now,
            records: &mut self.ahead,
            membership: &self.membership,
            batch,
            from,
            bugs: self.bugs,
        };
        let reply = handler.decide(request);
        batch.answers.push(Answer { to: from, tag, reply });
    }

    fn committed(&mut self, id: BatchId) {
        let Some(batch) = self.in_flight.take_if(|batch| batch.id == id) else { return };
        self.finish(batch);
        if self.startup == Startup::Underway {
            self.startup = Startup::Done;
            if !self.bugs.has(Bug::ForgetRestartLease) {
                self.grant_all();
            }
            // Each rack asks for the members when it reconnects after this start.
            self.told = self.membership.version();
            let boot = self.settled.boot;
            self.swaps = Some(Swaps::new(self.now, self.rules, boot, self.bugs));
            for asked in mem::take(&mut self.waiting) {
                self.requested(asked);
            }
        }
    }

    /// Completes a batch that is durable or contains no changes.
    fn finish(&mut self, batch: Batch) {
        for change in &batch.changes {
            let applied = self.settled.apply(change);
            debug_assert!(applied.is_ok(), "the batch was applied to `ahead`: {applied:?}");
        }
        for (rack, change) in batch.leases {
            if change.granted {
                self.membership.grant(self.now, rack, change.changed);
            } else {
                self.membership.end(rack, change.changed);
            }
        }
        self.actions.extend(batch.events.into_iter().map(Action::Report));
        let position = self.position();
        let answers = batch.answers.into_iter().map(|answer| answer.at(position));
        self.actions.extend(answers.map(Answer::into_action));
        if let Some(swaps) = &mut self.swaps {
            for (&rack, &connection) in &batch.registered {
                swaps.connect(rack, connection);
            }
        }
        match batch.swaps {
            Some(id) => self.feed_swaps(ServerEvent::Committed(id)),
            // Swaps with memory that a rack no longer serves are dropped.
            None if !batch.registered.is_empty() => self.feed_swaps(ServerEvent::DeadlinePassed),
            None => {}
        }
    }

    fn commit_failed(&mut self, id: BatchId, reason: &str) {
        let Some(batch) = self.in_flight.take_if(|batch| batch.id == id) else { return };
        self.ahead = self.settled.clone();
        // Whether pages have moved is unknown, or the store can't be written any more: no swap may
        // begin or be answered.
        if !self.bugs.has(Bug::SwapWithoutStore) {
            self.feed_swaps(ServerEvent::CommitFailed);
        }
        let mut refused: Vec<(ConnectionToken, u64)> =
            batch.answers.iter().map(|answer| (answer.to, answer.tag)).collect();
        if self.startup == Startup::Underway {
            self.startup = Startup::Failed;
            let waiting = mem::take(&mut self.waiting).into_iter();
            // Swap messages have no answers.
            let asked =
                waiting.filter(|asked| !matches!(asked.request, MetadataRequest::Swap { .. }));
            refused.extend(asked.map(|asked| (asked.from, asked.tag)));
        }
        for (to, tag) in refused {
            let reply = MetadataReply::Refused(Refusal::Store(reason.to_string()));
            self.actions.push_back(Action::Reply { to, tag, reply });
        }
    }
}
