//! The model's world: one pool, its clock and its store.

mod model;
mod step;
mod swaps;

use std::collections::BTreeMap;
use std::time::Duration;

use rackpool_proto::Time;
use rackpool_proto::metadata::{Action, BatchId, Change, ConnectionToken, Event, MetadataMachine};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest};

use model::Model;
pub(crate) use step::{Step, any_step};

const LEASE: Duration = Duration::from_millis(2000);

/// A machine in a world with faults.
pub(crate) struct Pool {
    machine: MetadataMachine,
    now: Time,
    /// Every change made durable, in order.
    stored: Vec<Change>,
    in_flight: Option<(BatchId, Vec<Change>)>,
    asked: BTreeMap<u64, (ConnectionToken, MetadataRequest)>,
    last_tag: u64,
    model: Model,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            machine: MetadataMachine::restore(Time::ZERO, LEASE, 1, []).unwrap(),
            now: Time::ZERO,
            stored: Vec::new(),
            in_flight: None,
            asked: BTreeMap::new(),
            last_tag: 0,
            model: Model::default(),
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match step {
            Step::Ask { from, request } => {
                let from = ConnectionToken(*from);
                let tag = self.request(from, request.clone());
                self.asked.insert(tag, (from, request.clone()));
            }
            Step::Rejoin => {
                for (rack, request) in self.model.rejoins() {
                    self.step(&Step::Ask { from: rack.0.into(), request });
                }
            }
            Step::Swap { rack, mistake, say } => {
                if let Some((from, request)) = self.model.says(*rack, *mistake, *say) {
                    self.request(from, request);
                }
            }
            Step::Wait { ms } => {
                self.now = self.now.after(Duration::from_millis(u64::from(*ms)));
                self.machine.handle(self.now, Event::DeadlinePassed);
            }
            Step::Poll => {}
            Step::Commit => {
                if let Some((batch, changes)) = self.in_flight.take() {
                    self.store(changes);
                    self.machine.handle(self.now, Event::Committed { batch });
                }
            }
            Step::Fail => {
                if let Some((batch, changes)) = self.in_flight.take() {
                    // Before the start is durable there are no swaps, and the start is repeated.
                    if !matches!(changes[..], [Change::Started { .. }]) {
                        self.model.swaps.failed();
                    }
                    let reason = "full".into();
                    self.machine.handle(self.now, Event::CommitFailed { batch, reason });
                }
            }
            Step::Kill { batch_was_durable } => self.kill(*batch_was_durable),
        }
        // Requests that arrive while no batch is in progress stay together.
        if self.in_flight.is_some() || !matches!(step, Step::Ask { .. } | Step::Swap { .. }) {
            self.settle();
        }
    }

    fn request(&mut self, from: ConnectionToken, request: MetadataRequest) -> u64 {
        self.last_tag += 1;
        let tag = self.last_tag;
        self.machine.handle(self.now, Event::Requested { from, tag, request });
        tag
    }

    /// Returns the number of committed swaps.
    pub(crate) fn swaps(&self) -> usize {
        self.model.swaps.committed()
    }

    pub(crate) fn check_nothing_is_unanswered(&self) {
        assert_eq!(self.asked, BTreeMap::new());
    }

    fn kill(&mut self, batch_was_durable: bool) {
        if let Some((_, changes)) = self.in_flight.take()
            && batch_was_durable
        {
            self.store(changes);
        }
        self.asked.clear();
        let server = self.stored.len() as u64 + 1;
        self.machine =
            MetadataMachine::restore(self.now, LEASE, server, self.stored.clone()).unwrap();
        self.model.restarted();
    }

    fn store(&mut self, changes: Vec<Change>) {
        self.model.stored_together(&changes);
        self.stored.extend(changes);
    }

    fn settle(&mut self) {
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Persist { batch, changes } => {
                    assert!(!changes.is_empty());
                    let earlier = self.in_flight.replace((batch, changes));
                    assert_eq!(earlier, None, "two batches under way");
                }
                Action::Reply { to, tag, reply } => {
                    let (from, request) =
                        self.asked.remove(&tag).expect("one answer to each request");
                    assert_eq!(to, from);
                    assert!(!matches!(&reply, MetadataReply::Refused(refusal)
                            if refusal.to_string() == "this changes nothing"));
                    self.model.replied(from, &request, &reply);
                }
                Action::Push { to, reply } => self.model.pushed(to, &reply),
                Action::Report(_) => {}
            }
        }
        if let Some(deadline) = self.machine.deadline() {
            assert!(deadline > self.now, "the deadline was missed");
        }
    }
}
