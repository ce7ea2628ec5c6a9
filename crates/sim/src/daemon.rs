//! The shell of a rack's machines.

use std::collections::{BTreeMap, VecDeque};

use rackpool_model::{Incarnation, PageId};
use rackpool_proto::Time;
use rackpool_proto::heat::Heats;
use rackpool_proto::lease::{
    HolderAction, HolderEvent, HomeAction, HomeEvent, LeaseHolder, LeaseHome, LeaseId, Users,
};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::share::{self, Copies, CopiesAction, CopiesEvent, CopyId, SharingId};
use rackpool_proto::swap::{
    Quiesce, RECORD_WORDS, RECORDS, RackAction, RackEvent, SwapEvent, SwapPeer,
};
use rackpool_wire::swap::{PrepareRefusal, SwapId, SwapMessage};

use crate::alloc::Freeing;
use crate::forward::Forwarded;
use crate::memory::{Memory, View};
use crate::message::{Message, Node, Wish};
use crate::quiesce::{Waiter, Whose};
use crate::requests::Pending;
use crate::rules::{HEAT, LEASE, MICRO, MILLI, SHARE, SWAP};
use crate::world::{World, rack_id};

#[derive(Debug)]
pub(crate) struct Daemon<B> {
    pub(crate) swap: SwapPeer<B>,
    pub(crate) home: LeaseHome<B>,
    pub(crate) holder: LeaseHolder<B>,
    pub(crate) shares: share::ShareHome<B>,
    pub(crate) copies: Copies<B>,
    pub(crate) heats: Heats,
    /// Words that it wrote since the page was frozen, and dirty lines received from a peer.
    pub(crate) forwarded: Forwarded,
    /// Frames whose users must leave.
    pub(crate) quiesces: Vec<Waiter>,
    pub(crate) frees: Vec<Freeing>,
    /// Unanswered requests of clients.
    pub(crate) calls: Vec<Pending>,
    /// Lease prefetches in progress: pages that go, and their swaps.
    pub(crate) lease_prefetches: BTreeMap<PageId, SwapId>,
    /// Lease requests for pages that are arriving: rack, page, request number, purpose.
    pub(crate) lookups: Vec<(usize, PageId, u64, Wish)>,
    /// The last known homes of pages.
    pub(crate) homes: BTreeMap<PageId, usize>,
    /// Records that the machine has reported as damaged.
    pub(crate) reported: [bool; RECORDS],
}

/// An event for one of the machines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input {
    Swap(RackEvent),
    Home(HomeEvent),
    Holder(HolderEvent),
    Shares(share::ShareEvent),
    Copies(CopiesEvent),
}

impl<B: Bugs> Daemon<B> {
    pub(crate) fn new(now: Time, life: Incarnation, memory: &Memory, bugs: B) -> Self {
        let first = LeaseId(life.0 << 32);
        Self {
            swap: SwapPeer::restore(now, SWAP, Incarnation(life.0 << 32), &memory.records, bugs),
            home: LeaseHome::new(now, LEASE, first, life.0 > 1, bugs),
            holder: LeaseHolder::new(now, LEASE, life.0 << 32, bugs),
            shares: share::ShareHome::restore(
                now,
                SHARE,
                SharingId(life.0 << 32),
                memory.all(),
                bugs,
            ),
            copies: Copies::new(now, SHARE, CopyId(life.0 << 32), bugs),
            heats: Heats::new(HEAT).expect("the rules of the simulator can be meant"),
            forwarded: Forwarded::default(),
            quiesces: Vec::new(),
            frees: Vec::new(),
            calls: Vec::new(),
            lease_prefetches: BTreeMap::new(),
            lookups: Vec::new(),
            homes: BTreeMap::new(),
            reported: [false; RECORDS],
        }
    }

    fn take_in(&mut self, now: Time, memory: &Memory, input: Input) {
        match input {
            Input::Swap(event) => {
                let view = View { memory, heats: &self.heats, copies: &self.copies, now };
                self.swap.handle(now, &view, event);
            }
            Input::Home(event) => self.home.handle(now, event),
            Input::Holder(event) => self.holder.handle(now, event),
            Input::Shares(event) => {
                self.shares.handle(now, &|page| memory.find(page), event);
            }
            Input::Copies(event) => self.copies.handle(now, event),
        }
    }
}

/// An action of one of the machines.
enum Output {
    Swap(RackAction),
    Home(HomeAction),
    Holder(HolderAction),
    Shares(share::ShareAction),
    Copies(CopiesAction),
}

impl<B: Bugs> World<B> {
    pub(crate) fn local_time(&self, rack: usize) -> Time {
        self.racks[rack].clock.read(self.now)
    }

    /// Passes an event to a machine and executes everything that follows.
    pub(crate) fn feed(&mut self, rack: usize, input: Input) {
        let mut inputs = std::mem::take(&mut self.inputs);
        inputs.push_back(input);
        let now = self.local_time(rack);
        while let Some(input) = inputs.pop_front() {
            let node = &mut self.racks[rack];
            let Some(daemon) = &mut node.daemon else { return };
            daemon.take_in(now, &node.memory, input);
            while let Some(output) = self.next_output(rack) {
                if !self.burns(rack) {
                    return;
                }
                match output {
                    Output::Swap(action) => self.do_swap(rack, action, &mut inputs),
                    Output::Home(action) => self.do_home(rack, action, &mut inputs),
                    Output::Shares(action) => self.do_shares(rack, action, &mut inputs),
                    Output::Copies(action) => self.do_copies(rack, action),
                    Output::Holder(HolderAction::Return(page, endpoint, id, users)) => {
                        let home = self.endpoint_home(endpoint);
                        let back = Message::Returned(page, endpoint, id, users);
                        self.send(rack, home, back);
                    }
                    Output::Holder(HolderAction::Renew(page, home)) => {
                        self.renew(rack, page, usize::from(home.0));
                    }
                }
            }
        }
        self.inputs = inputs;
        self.wake_rack(rack);
    }

    /// Renews leases that are in use and end soon.
    pub(crate) fn renew_used(&mut self, rack: usize) {
        while let Some(daemon) = &mut self.racks[rack].daemon {
            match daemon.holder.poll() {
                Some(HolderAction::Renew(page, home)) => {
                    self.renew(rack, page, usize::from(home.0));
                }
                Some(HolderAction::Return(..)) | None => return,
            }
        }
    }

    fn renew(&mut self, rack: usize, page: PageId, home: usize) {
        let now = self.local_time(rack);
        if let Some(daemon) = &mut self.racks[rack].daemon {
            let question = daemon.holder.ask(now, page);
            let wish = if daemon.copies.is_wanted(page) { Wish::Copy } else { Wish::Read };
            let lookup = Message::Lookup { page, question, wish };
            self.send(rack, home, lookup);
        }
    }

    fn next_output(&mut self, rack: usize) -> Option<Output> {
        let daemon = self.racks[rack].daemon.as_mut()?;
        let swap = daemon.swap.poll().map(Output::Swap);
        let home = |daemon: &mut Daemon<B>| daemon.home.poll().map(Output::Home);
        let holder = |daemon: &mut Daemon<B>| daemon.holder.poll().map(Output::Holder);
        swap.or_else(|| home(daemon))
            .or_else(|| holder(daemon))
            .or_else(|| daemon.shares.poll().map(Output::Shares))
            .or_else(|| daemon.copies.poll().map(Output::Copies))
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
    fn burns(&mut self, rack: usize) -> bool {
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

    fn do_swap(&mut self, rack: usize, action: RackAction, inputs: &mut VecDeque<Input>) {
        match action {
            RackAction::TellServer(message) => self.tell_of_swap(rack, message),
            RackAction::TellRack(to, between) => {
                self.send(rack, usize::from(to.0), Message::Between(between));
            }
            RackAction::StoreRecord { slot, words } => self.note(rack, slot, &words),
            RackAction::EraseRecord { slot } => self.erase(rack, slot),
            RackAction::SendDirtyLines { swap, to, frame, known } => {
                self.send_dirty_lines(rack, usize::from(to.0), swap, frame, known);
            }
            RackAction::ApplyDirtyLines { frame, .. } => self.apply_dirty_lines(rack, frame),
            RackAction::StoreWord(frame, word) => {
                self.take_frame(rack, frame);
                self.forget_writes(rack, frame, word);
                self.store(rack, frame, word);
                self.look_soon(rack);
            }
            RackAction::Quiesce { swap, frame, page, who } => {
                let clean = matches!(who, Quiesce::Everyone | Quiesce::DirtyLoggers);
                let waiter = Waiter { whose: Whose::Swap(swap), frame, page, who, clean };
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.quiesces.push(waiter);
                }
                if who == Quiesce::Writers {
                    self.remember_noted_last(rack, frame);
                }
                let needed = match who {
                    Quiesce::Writers => Users::Writers,
                    Quiesce::Holders => Users::Everyone,
                    Quiesce::Everyone | Quiesce::DirtyLoggers => return,
                };
                inputs.push_back(Input::Home(HomeEvent::PageNeeded(page, needed)));
            }
            RackAction::CancelQuiesce(swap, page) => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.quiesces.retain(|waiter| waiter.whose != Whose::Swap(swap));
                }
                inputs.push_back(Input::Home(HomeEvent::PageSpared(page)));
            }
            RackAction::Copy { swap, from, theirs, ours } => {
                self.post_copy(rack, usize::from(from.0), swap, theirs, ours);
            }
            RackAction::PrefetchLease { swap, page, to } => {
                self.prefetch_lease(rack, swap, page, usize::from(to.0), inputs);
            }
            RackAction::Record(event) => self.note_event(rack, event, inputs),
        }
    }

    fn note_event(&mut self, rack: usize, event: SwapEvent, inputs: &mut VecDeque<Input>) {
        let now = self.local_time(rack);
        match event {
            SwapEvent::Arrived(page) => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.heats.arrived(now, page);
                }
                inputs.push_back(Input::Copies(CopiesEvent::Revoked(page)));
                inputs.push_back(Input::Holder(HolderEvent::Arrived(page)));
            }
            // Clients of this rack can write at the new home once this rack has quiesced the page.
            SwapEvent::Departed(page) => {
                if let Some(daemon) = &mut self.racks[rack].daemon
                    && let Some(home) = daemon.swap.goes_to(page)
                {
                    daemon.homes.insert(page, usize::from(home.0));
                }
            }
            SwapEvent::Quiesced(page) => {
                inputs.push_back(Input::Holder(HolderEvent::Quiesced(page)))
            }
            SwapEvent::PrepareRefused(page, PrepareRefusal::ReadHot) => {
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.copies.handle(now, CopiesEvent::Wanted(page));
                }
            }
            SwapEvent::Aborted(_) => self.seen.given_up += 1,
            SwapEvent::Damaged(slot, error) => self.damage_reported(rack, slot, error),
            _ => {}
        }
    }

    fn do_home(&mut self, rack: usize, action: HomeAction, inputs: &mut VecDeque<Input>) {
        match action {
            HomeAction::Revoke(page, endpoint, id, users) => {
                let holder = self.endpoint_holder(endpoint);
                let revoke = Message::Revoke(page, endpoint, id, users);
                self.send(rack, holder, revoke);
            }
            HomeAction::Fence(endpoint) => self.fence(endpoint),
            HomeAction::Clean(page, users) => {
                let Some(daemon) = &mut self.racks[rack].daemon else { return };
                let waits = |waiter: &&mut Waiter| {
                    let for_writers = waiter.who == Quiesce::Writers;
                    waiter.page == page && (for_writers || users == Users::Everyone)
                };
                for waiter in daemon.quiesces.iter_mut().filter(waits) {
                    waiter.clean = true;
                }
                self.look_at_quiesces(rack, inputs);
                if users == Users::Everyone {
                    self.freeing_clean(rack, page);
                }
            }
        }
    }

    fn look_at_quiesces(&mut self, rack: usize, inputs: &mut VecDeque<Input>) {
        let bugs = self.bugs;
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        daemon.quiesces.retain(|waiter| {
            let over = waiter.is_over(&node.memory, bugs);
            if over {
                inputs.push_back(waiter.event());
            }
            !over
        });
    }

    pub(crate) fn rack_woke(&mut self, rack: usize, life: u64) {
        if life != self.racks[rack].life || self.racks[rack].daemon.is_none() {
            return;
        }
        self.look_at_frees(rack);
        let mut inputs = VecDeque::new();
        self.look_at_quiesces(rack, &mut inputs);
        for input in inputs {
            self.feed(rack, input);
        }
        self.feed(rack, Input::Swap(RackEvent::DeadlinePassed));
        self.feed(rack, Input::Home(HomeEvent::DeadlinePassed));
        self.feed(rack, Input::Shares(share::ShareEvent::DeadlinePassed));
        self.feed(rack, Input::Copies(CopiesEvent::DeadlinePassed));
        self.answer_lookups(rack);
        self.retry_calls(rack);
        self.wake_rack(rack);
    }

    /// Schedules the next wake-up of a rack: its deadlines, and checks that a change has made
    /// necessary.
    pub(crate) fn wake_rack(&mut self, rack: usize) {
        let node = &self.racks[rack];
        let Some(daemon) = &node.daemon else { return };
        let [shares, copies] = [daemon.shares.deadline(), daemon.copies.deadline()];
        let machines = [daemon.swap.deadline(), daemon.home.deadline(), shares, copies];
        let deadline = machines.into_iter().flatten().min();
        let bugs = self.bugs;
        let out = daemon.quiesces.iter().any(|waiter| waiter.is_over(&node.memory, bugs))
            || daemon.frees.iter().any(|freeing| freeing.is_over(&node.memory));
        let looks = out.then_some(self.now + 100 * MICRO);
        let asks = daemon.calls.iter().filter_map(Pending::asks_again).min();
        self.wake(Node::Rack(rack), deadline, looks.into_iter().chain(asks).min());
    }

    /// A page has arrived, departed or thawed; requests may wait for that.
    pub(crate) fn look_soon(&mut self, rack: usize) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if !(daemon.calls.is_empty() && daemon.lookups.is_empty()) {
            let soon = self.now + self.rng.within(20 * MICRO..MILLI);
            self.wake(Node::Rack(rack), None, Some(soon));
        }
    }

    /// Clears a client's access slot; a quiesce may wait for that.
    pub(crate) fn clear_slot(&mut self, rack: usize, client: usize) {
        self.racks[rack].memory.slots[client] = None;
        let Some(daemon) = &self.racks[rack].daemon else { return };
        if !(daemon.quiesces.is_empty() && daemon.frees.is_empty()) {
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
        self.damage(rack);
        self.after(wait, crate::world::Event::Restart(Node::Rack(rack)));
    }

    pub(crate) fn rack_got(&mut self, rack: usize, from: usize, message: Message) {
        if self.racks[rack].daemon.is_none() {
            return;
        }
        match message {
            Message::Between(between) => {
                if let SwapMessage::Prepare { wanted, read_hot: false, .. } = between.message {
                    // The swap is refused, and requested again.
                    self.feed(rack, Input::Shares(share::ShareEvent::Needed(wanted)));
                }
                self.feed(rack, Input::Swap(RackEvent::RackSent(rack_id(from), between)));
                if between.message == SwapMessage::IncompleteNoted {
                    self.look_soon(rack);
                }
            }
            Message::DirtyLines { swap, theirs, known, words } => {
                self.dirty_lines_received(rack, from, swap, theirs, known, words);
            }
            Message::NotHere(page) => self.learn_home(rack, page, None),
            Message::Lookup { page, question, wish } => {
                self.grant(rack, from, page, question, wish);
            }
            Message::Location { page, question, lease } => {
                let granted = HolderEvent::Granted { page, question, lease };
                self.feed(rack, Input::Holder(granted));
                let swap = self.racks[rack].daemon.as_ref().map(|daemon| &daemon.swap);
                if swap.is_some_and(|swap| !swap.has_to_leave(page)) {
                    self.feed(rack, Input::Holder(HolderEvent::Quiesced(page)));
                }
                self.lease_prefetched(rack, page);
                self.keep(rack, page);
                self.retry_calls(rack);
            }
            // These messages go over the endpoint that they name; they are lost if it has ended.
            Message::Revoke(_, endpoint, ..) | Message::Returned(_, endpoint, ..)
                if !self.is_open(endpoint) => {}
            Message::Revoke(page, endpoint, id, users) => {
                self.hide_revoked(rack, page);
                let revoked = HolderEvent::Revoked(page, endpoint, id, users);
                self.feed(rack, Input::Holder(revoked));
            }
            Message::Returned(page, endpoint, id, users) => {
                let returned = HomeEvent::Returned(page, endpoint, id, users);
                self.feed(rack, Input::Home(returned));
            }
            Message::Atomic { call, page, word, kind } => {
                self.feed(rack, Input::Shares(share::ShareEvent::Needed(page)));
                if self.racks[rack].daemon.is_none() {
                    return;
                }
                let found = self.write_for(rack, page, word, kind);
                self.send(rack, from, Message::AtomicDone { call, found });
            }
            Message::AtomicDone { call, found } => self.atomic_done(rack, call, found),
        }
    }
}
