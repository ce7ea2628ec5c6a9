//! The shell of a rack's machine: it executes the machine's actions on the memory and the fabric of
//! the world.

use std::collections::{BTreeMap, BTreeSet};

use rackpool_model::{FrameId, PageEvent, PageId};
use rackpool_proto::Time;
use rackpool_proto::exchange::ExchangeIdentity;
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::rack::{RackAction, RackEvent, RackMachine, RackPast, RackRecord};
use rackpool_proto::swap::{RECORD_WORDS, RECORDS, SwapEvent};

use crate::calls::Waiting;
use crate::lookups::{Asked, Served, ServedKind};
use crate::memory::{Memory, View};
use crate::message::{Call, Message, Node, Wish};
use crate::objects::ExchangeShell;
use crate::promises::memory_id;
use crate::rules::{MICRO, MILLI, RACK, WORDS};
use crate::searches::Searching;
use crate::world::{World, rack_id};

#[derive(Debug)]
pub(crate) struct Daemon<B> {
    pub(crate) machine: RackMachine<B>,
    /// The dirty lines received last, to be applied.
    pub(crate) came: [Option<u64>; WORDS],
    /// Free frames that hold or receive a replica.
    pub(crate) borrowed: BTreeSet<FrameId>,
    /// Requests of clients that wait for pages of this rack.
    pub(crate) waiting: Vec<Waiting>,
    /// Requests of other racks that wait for pages of this rack.
    pub(crate) serving: Vec<Served>,
    /// Unanswered lease requests, by number.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Calls of clients that wait for a search.
    pub(crate) searching: BTreeMap<Call, Searching>,
    /// When the metadata server last did not answer a question about a page.
    pub(crate) unreached: u64,
    /// Records that the machine has reported as damaged.
    pub(crate) reported: [bool; RECORDS],
    pub(crate) exchange: ExchangeShell,
}

impl<B: Bugs> Daemon<B> {
    pub(crate) fn new(now: Time, rack: usize, life: u64, memory: &Memory, bugs: B) -> Self {
        let (records, restarted) = (&memory.records, life > 1);
        let own = ExchangeIdentity { rack: rack_id(rack), memory: memory_id(rack) };
        let past = RackPast { first: life << 32, restarted, records, foreign_claims: &[], own };
        let machine = RackMachine::restore(now, RACK, &past, memory.all(), 0, bugs);
        Self {
            machine: machine.expect("the rules of the simulator can be meant"),
            came: [None; WORDS],
            borrowed: BTreeSet::new(),
            waiting: Vec::new(),
            serving: Vec::new(),
            asked: BTreeMap::new(),
            searching: BTreeMap::new(),
            unreached: 0,
            reported: [false; RECORDS],
            exchange: ExchangeShell::default(),
        }
    }
}

impl<B: Bugs> World<B> {
    pub(crate) fn local_time(&self, rack: usize) -> Time {
        self.racks[rack].clock.read(self.now)
    }

    /// Passes an event to a rack's machine and executes everything that follows.
    pub(crate) fn feed(&mut self, rack: usize, event: RackEvent) {
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.machine.handle(event);
            self.run_rack(rack);
        }
    }

    /// Executes all actions of a rack's machine.
    pub(crate) fn run_rack(&mut self, rack: usize) {
        let now = self.local_time(rack);
        loop {
            let node = &mut self.racks[rack];
            let Some(daemon) = &mut node.daemon else { return };
            let Daemon { borrowed, exchange, machine, .. } = daemon;
            let view = View { memory: &node.memory, borrowed, exchange };
            let Some(action) = machine.poll(now, &view) else { break };
            if !self.burns(rack) {
                return;
            }
            self.execute(rack, action);
        }
        if let Some(daemon) = &mut self.racks[rack].daemon {
            let copies = daemon.machine.copies();
            daemon.borrowed.retain(|frame| copies.uses(*frame).is_some());
        }
        self.check_searches(rack);
        self.wake_rack(rack);
    }

    fn execute(&mut self, rack: usize, action: RackAction) {
        match action {
            // No client of this world takes locks.
            RackAction::Lock(_) => {}
            RackAction::TellServer(message) => self.tell_of_swap(rack, message),
            RackAction::TellRack(to, between) => {
                self.send(rack, usize::from(to.0), Message::Between(between));
            }
            RackAction::StoreRecord { slot, words } => self.note(rack, slot, &words),
            RackAction::EraseRecord { slot } => self.erase(rack, slot),
            RackAction::StoreWord(frame, word) => {
                self.check_not_borrowed(rack, frame);
                self.store(rack, frame, word);
                self.look_soon(rack);
            }
            RackAction::NoteLastWrites(frame) => self.remember_noted_last(rack, frame),
            RackAction::SendDirtyLines { swap, to, frame, known } => {
                self.send_dirty_lines(rack, usize::from(to.0), swap, frame, known);
            }
            RackAction::ApplyDirtyLines { frame, .. } => self.apply_dirty_lines(rack, frame),
            RackAction::CopyPage { swap, from, theirs, ours } => {
                self.post_copy(rack, usize::from(from.0), swap, theirs, ours);
            }
            RackAction::RequestLease { page, home, question, access, replica } => {
                let wish = Wish { access, replica };
                self.ask_for_lease(rack, usize::from(home.0), page, question, wish);
            }
            RackAction::LocatePage { page, question } => self.ask_home(rack, page, question),
            RackAction::AskForMembers => self.ask_for_members(rack),
            RackAction::Answer { caller, answer } => self.search_answered(rack, caller, answer),
            // No memory of this world is lost.
            RackAction::DisconnectRack(_) => {}
            RackAction::RevokeLease(revocation) => {
                let holder = self.endpoint_holder(revocation.endpoint);
                self.send(rack, holder, Message::Revoke(revocation));
            }
            RackAction::ReturnLease(revocation) => {
                let home = self.endpoint_home(revocation.endpoint);
                self.send(rack, home, Message::Returned(revocation));
            }
            RackAction::FenceEndpoint(endpoint) => self.fence(endpoint),
            RackAction::Barrier => self.racks[rack].memory.drain_store_buffers(),
            RackAction::FreeFrame { frame, page } => self.free_frame(rack, frame, page),
            RackAction::CopyReplica { page, lease, ours } => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.borrowed.insert(ours);
                }
                self.post_keep(rack, page, lease, ours);
            }
            RackAction::PublishReplica { ours, copy, until, .. } => {
                let shown = self.racks[rack].memory.shown(ours);
                (shown.until, shown.copy) = (until, Some(copy));
                // Requests that wait for the page may read the replica.
                self.look_soon(rack);
            }
            RackAction::HideReplica(ours) => self.racks[rack].memory.shown(ours).copy = None,
            RackAction::Record(record) => self.record(rack, record),
            RackAction::Exchange(action) => self.exchange(rack, action),
            RackAction::Recovery(action) => self.recover(rack, action),
        }
    }

    fn record(&mut self, rack: usize, record: RackRecord) {
        match record {
            RackRecord::Swap(SwapEvent::Aborted(_)) => self.seen.given_up += 1,
            RackRecord::Swap(SwapEvent::Damaged(slot, error)) => {
                self.damage_reported(rack, slot, error);
            }
            RackRecord::Swap(_) | RackRecord::Shared(_) | RackRecord::Unshared(_) => {}
        }
    }

    /// Stores the free word of a page without users.
    fn free_frame(&mut self, rack: usize, frame: FrameId, page: PageId) {
        let word = self.racks[rack].memory.frame(frame).word;
        match word.apply(PageEvent::Quiesced) {
            Ok(free) if word.page() == page => self.store(rack, frame, free),
            _ => self.breaks(|| format!("{page} was freed, and its frame now says {word:?}")),
        }
    }

    /// Checks that no replica is in a frame whose word is about to change.
    pub(crate) fn check_not_borrowed(&mut self, rack: usize, frame: FrameId) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if daemon.machine.copies().uses(frame).is_some() {
            self.breaks(|| format!("{frame} of rack {rack} is given away under a copy"));
        }
    }

    fn note(&mut self, rack: usize, slot: usize, words: &[u64; RECORD_WORDS]) {
        self.check_record(rack, slot);
        for word in (1..words.len()).chain([0]) {
            if !self.burns(rack) {
                return;
            }
            self.racks[rack].memory.records[slot][word] = words[word];
        }
    }

    /// Erases word 0 alone, so that a crash leaves no half record.
    fn erase(&mut self, rack: usize, slot: usize) {
        self.check_record(rack, slot);
        let tail = if self.bugs.has(Bug::EraseFromTail) { RECORD_WORDS } else { 1 };
        for word in (0..tail).rev() {
            if word + 1 < tail && !self.burns(rack) {
                return;
            }
            self.racks[rack].memory.records[slot][word] = 0;
        }
    }

    /// Counts an action. Returns false if the daemon dies before it.
    pub(crate) fn burns(&mut self, rack: usize) -> bool {
        match &mut self.racks[rack].fuse {
            Some(0) => {
                self.crash_rack(rack);
                return false;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        true
    }

    pub(crate) fn rack_woke(&mut self, rack: usize, life: u64) {
        if life != self.racks[rack].life || self.racks[rack].daemon.is_none() {
            return;
        }
        self.feed(rack, RackEvent::DeadlinePassed);
        self.wake_served(rack);
        self.wake_waiting(rack);
        self.check_waiting(rack);
        self.run_rack(rack);
    }

    /// Schedules the next wake-up of a rack: its deadlines, and checks that a change has made
    /// necessary.
    pub(crate) fn wake_rack(&mut self, rack: usize) {
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let Daemon { borrowed, exchange, .. } = daemon;
        let view = View { memory: &node.memory, borrowed, exchange };
        let looks = daemon.machine.has_quiesced(&view).then_some(self.now + 100 * MICRO);
        let waits = !(daemon.waiting.is_empty() && daemon.serving.is_empty());
        let again = waits.then_some(self.now + 8 * MILLI);
        let deadline = daemon.machine.deadline();
        self.wake(Node::Rack(rack), deadline, looks.into_iter().chain(again).min());
    }

    /// A page has arrived, departed or thawed; requests may wait for that.
    pub(crate) fn look_soon(&mut self, rack: usize) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if !(daemon.waiting.is_empty() && daemon.serving.is_empty()) {
            let soon = self.now + self.rng.within(20 * MICRO..MILLI);
            self.wake(Node::Rack(rack), None, Some(soon));
        }
    }

    /// Clears a client's access slot; a quiesce may wait for that.
    pub(crate) fn clear_slot(&mut self, rack: usize, client: usize) {
        self.racks[rack].memory.clear_slot(client);
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if daemon.machine.is_quiescing() {
            self.wake_rack(rack);
        }
    }

    pub(crate) fn crash_rack(&mut self, rack: usize) {
        let longest = if self.rng.percent(50) { 10 } else { 200 };
        let wait = self.rng.within(MILLI..longest * MILLI);
        self.stop_rack(rack, wait, false);
    }

    /// Ends a daemon: it dies, or with `leaves` it returns its membership. The next one starts
    /// after `wait`.
    pub(crate) fn stop_rack(&mut self, rack: usize, wait: u64, leaves: bool) {
        if self.racks[rack].link.is_none() {
            return;
        }
        self.end_link(rack, leaves);
        self.racks[rack].daemon = None;
        self.seen.crashes += 1;
        self.racks[rack].fuse = None;
        self.connections_of_the_dead(rack);
        self.end_requests_to(rack);
        self.damage(rack);
        self.after(wait, crate::world::Event::Restart(Node::Rack(rack)));
    }

    pub(crate) fn rack_got(&mut self, rack: usize, from: usize, message: Message) {
        if self.racks[rack].daemon.is_none() {
            return self.message_lost(rack, from, message);
        }
        match message {
            Message::Between(between) => {
                self.feed(rack, RackEvent::RackSent(rack_id(from), between));
            }
            Message::DirtyLines { swap, theirs, known, words } => {
                self.dirty_lines_received(rack, from, swap, theirs, known, words);
            }
            Message::Lookup { page, question, wish } => {
                self.serve_peer(rack, from, ServedKind::Lookup { page, question, wish });
            }
            Message::LeaseAnswer { page, question, answer } => {
                self.lease_answered(rack, from, (page, question), answer);
            }
            // These messages go over the endpoint that they name; they are lost if it has ended.
            Message::Revoke(revocation) | Message::Returned(revocation)
                if !self.is_open(revocation.endpoint) => {}
            Message::Revoke(revocation) => self.feed(rack, RackEvent::LeaseRevoked(revocation)),
            Message::Returned(revocation) => self.feed(rack, RackEvent::LeaseReturned(revocation)),
            Message::Operation { call, page, word, kind } => {
                self.serve_peer(rack, from, ServedKind::Operation { call, page, word, kind });
            }
            Message::OperationDone { call, outcome } => {
                self.operation_answered(rack, from, call, outcome);
            }
            Message::Exchange(parcel) => self.parcel_received(rack, from, parcel),
            Message::Word(parcel) => self.word_received(rack, from, parcel),
        }
    }
}
