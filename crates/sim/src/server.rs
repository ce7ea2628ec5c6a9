//! The metadata server: the production machine in a shell of the simulator.

use rackpool_model::PageId;
use rackpool_proto::metadata::{Action, BatchId, Change, ConnectionToken, Event as ServerEvent};
use rackpool_proto::metadata::{MetadataMachine, OperatorEvent};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, PUSHED};

use crate::disk::Disk;
use crate::link::nanos;
use crate::message::Node;
use crate::promises::Promises;
use crate::rules::{MEMBERSHIP_LEASE, MICRO, MILLI, SWAP};
use crate::world::{Clock, Event, World};

/// The connection of the checks. It has no delay and never breaks.
pub(crate) const CHECKER: ConnectionToken = ConnectionToken(u64::MAX);

#[derive(Debug)]
pub(crate) struct ServerNode<B> {
    machine: Option<MetadataMachine<B>>,
    pub(crate) disk: Disk,
    pub(crate) promises: Promises,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) paused_until: u64,
    pub(crate) wake_at: u64,
    /// When the machine last handled an event.
    looked: u64,
    /// The next transaction fails.
    pub(crate) disk_fails: bool,
    /// A transaction since this start has failed; the store accepts no other.
    pub(crate) failed: bool,
    /// The boot number of this start is durable.
    pub(crate) ready: bool,
    /// The answer to a check.
    told: Option<MetadataReply>,
}

impl<B: Bugs> ServerNode<B> {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            machine: None,
            disk: Disk::default(),
            promises: Promises::default(),
            life: 0,
            clock,
            paused_until: 0,
            wake_at: 0,
            looked: 0,
            disk_fails: false,
            failed: false,
            ready: false,
            told: None,
        }
    }

    pub(crate) const fn is_up(&self) -> bool {
        self.machine.is_some()
    }
}

impl<B: Bugs> World<B> {
    pub(crate) fn start_server(&mut self) {
        if self.server.machine.is_some() {
            return;
        }
        self.server.life += 1;
        (self.server.wake_at, self.server.looked) = (0, self.now);
        (self.server.failed, self.server.ready) = (false, false);
        self.server.promises.begin_life();
        let now = self.server.clock.read(self.now);
        let records = self.server.disk.read();
        match MetadataMachine::restore_with(
            now,
            MEMBERSHIP_LEASE,
            SWAP,
            self.server.life,
            records,
            self.bugs,
        ) {
            Ok(machine) => self.server.machine = Some(machine),
            Err(error) => self.breaks(|| format!("the disk has what can't be: {error}")),
        }
        self.drive_server();
    }

    pub(crate) fn crash_server(&mut self) {
        if self.server.machine.take().is_none() {
            return;
        }
        self.seen.crashes += 1;
        let keeps = self.rng.percent(50);
        self.server.disk.crash(keeps);
        self.close_all_of_the_server();
        let longest = if self.rng.percent(50) { 10 } else { 200 };
        let wait = self.rng.within(MILLI..longest * MILLI);
        self.after(wait, Event::Restart(Node::Server));
    }

    /// Restarts a server whose store has failed.
    pub(crate) fn end_server(&mut self, life: u64) {
        if life == self.server.life {
            self.crash_server();
        }
    }

    /// Sends the machine a read, which it answers at once; `None` if it is down or starting.
    pub(crate) fn ask_server(&mut self, request: MetadataRequest) -> Option<MetadataReply> {
        if !self.server.is_up() || !self.server.ready {
            return None;
        }
        self.feed_server(ServerEvent::Requested { from: CHECKER, tag: 0, request });
        self.server.told.take()
    }

    /// Returns the home of a page according to the metadata server.
    pub(crate) fn home_of(&mut self, page: PageId) -> Option<usize> {
        match self.ask_server(MetadataRequest::Locate { page }) {
            Some(MetadataReply::Located { home, .. }) => Some(usize::from(home.0)),
            _ => None,
        }
    }

    pub(crate) fn server_woke(&mut self, life: u64) {
        if life == self.server.life {
            self.feed_server(ServerEvent::DeadlinePassed);
        }
    }

    pub(crate) fn feed_server(&mut self, event: ServerEvent) {
        let now = self.server.clock.read(self.now);
        let Some(machine) = &mut self.server.machine else { return };
        if self.now - self.server.looked > nanos(MEMBERSHIP_LEASE) / 4 {
            machine.handle(now, ServerEvent::StoodStill);
        }
        self.server.looked = self.now;
        machine.handle(now, event);
        self.drive_server();
    }

    fn drive_server(&mut self) {
        while let Some(action) = self.server.machine.as_mut().and_then(MetadataMachine::poll) {
            match action {
                Action::Persist { batch, changes } => self.persist(batch, changes),
                Action::Reply { to, reply, .. } if to == CHECKER => self.server.told = Some(reply),
                Action::Reply { to, tag, reply } => self.server_says(to, tag, reply),
                Action::Push { to, reply } => self.server_says(to, PUSHED, reply),
                Action::Report(OperatorEvent::Expired { rack }) => self.lease_ended(rack),
                Action::Report(OperatorEvent::Joined { .. } | OperatorEvent::Left { .. }) => {}
            }
        }
        let deadline = self.server.machine.as_ref().and_then(MetadataMachine::deadline);
        // Soon enough to notice that the server stood still.
        let look = self.server.looked + nanos(MEMBERSHIP_LEASE) / 8;
        self.wake(Node::Server, deadline, Some(look));
    }

    fn server_says(&mut self, to: ConnectionToken, tag: u64, reply: MetadataReply) {
        self.check_reply(to, &reply);
        let connection = usize::try_from(to.0).unwrap_or(usize::MAX);
        self.server_tells(connection, tag, reply);
    }

    fn persist(&mut self, batch: BatchId, changes: Vec<Change>) {
        if self.server.failed {
            let reason = "an earlier write has failed".into();
            let now = self.server.clock.read(self.now);
            if let Some(machine) = &mut self.server.machine {
                machine.handle(now, ServerEvent::CommitFailed { batch, reason });
            }
            return;
        }
        self.server.disk.write(changes);
        let life = self.server.life;
        let fails = std::mem::take(&mut self.server.disk_fails);
        let wait = self.rng.within(200 * MICRO..3 * MILLI);
        self.after(wait, Event::Persisted { life, batch: batch.0, fails });
    }

    pub(crate) fn persisted(&mut self, life: u64, batch: u64, fails: bool) {
        if life != self.server.life || self.server.machine.is_none() {
            return;
        }
        let batch = BatchId(batch);
        if fails {
            // What is due already is no consequence of the failure.
            self.feed_server(ServerEvent::DeadlinePassed);
            // Whether the transaction is in the file is known after the restart.
            self.server.failed = true;
            let reason = "the disk is broken".into();
            self.feed_server(ServerEvent::CommitFailed { batch, reason });
            let wait = self.rng.within(0..60 * MILLI);
            return self.after(wait, Event::ServerEnds { life });
        }
        self.seen.moved += self.server.disk.sync() / 2;
        if !std::mem::replace(&mut self.server.ready, true) {
            self.leases_begin();
        }
        self.feed_server(ServerEvent::Committed { batch });
    }
}
