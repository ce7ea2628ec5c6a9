//! Requests of clients to their daemon, and of daemons to each other for them. These shells are the
//! simulator's own.

use rackpool_model::{Access, PageId, PageWord};
use rackpool_proto::lease::{GrantedLease, Lease};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::rack::{LeasePurpose, LeaseReply, LeaseRequest, RackEvent};
use rackpool_proto::share::FoundCopy;
use rackpool_wire::swap::SwapId;

use crate::client::Answer;
use crate::history::Kind;
use crate::message::{Call, Message, Wish};
use crate::roots::is_root;
use crate::rules::{CLIENT_TIMEOUT, MILLI};
use crate::world::{World, rack_id};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    call: Call,
    until: u64,
    wait: Wait,
    ask_again: u64,
}

/// A lease request of another rack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lookup {
    pub(crate) peer: usize,
    pub(crate) page: PageId,
    pub(crate) question: u64,
    pub(crate) wish: Wish,
    pub(crate) until: u64,
}

impl Wish {
    const fn access(self) -> Access {
        match self {
            Self::Write => Access::Write,
            Self::Read | Self::Copy | Self::PrefetchLease(_) => Access::Read,
        }
    }

    const fn purpose(self) -> LeasePurpose {
        match self {
            Self::Read | Self::Write => LeasePurpose::Access,
            Self::Copy => LeasePurpose::Replica,
            Self::PrefetchLease(swap) => LeasePurpose::Prefetch(swap),
        }
    }
}

impl Pending {
    /// Returns when the request is repeated, if it waits for an answer.
    pub(crate) fn asks_again(&self) -> Option<u64> {
        (self.wait == Wait::Asked).then_some(self.ask_again)
    }
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// For the page's home or a lease; the request is repeated.
    Asked,
    /// For the page, which is here and moves.
    Here,
    /// For an operation sent to the home, or posted to its memory.
    Sent,
}

impl<B: Bugs> World<B> {
    pub(crate) fn learn_home(&mut self, rack: usize, page: PageId, home: Option<usize>) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let Some(home) = home else { return daemon.machine.locations_mut().forget(page) };
        // Only the first answer triggers questions, or answers and questions would multiply.
        let first = daemon.machine.locations_mut().note_home(page, rack_id(home));
        if first || self.bugs.has(Bug::AskAtEachAnswer) {
            for pending in &mut daemon.calls {
                pending.ask_again = self.now;
            }
            self.retry_calls(rack);
        }
    }

    /// Prefetches a lease of a page that goes, for some of the pages.
    pub(crate) fn prefetch_lease(&mut self, rack: usize, swap: SwapId, page: PageId, to: usize) {
        let skips = self.rng.percent(20);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if skips {
            return daemon.machine.handle(RackEvent::LeasePrefetched(swap));
        }
        daemon.lease_prefetches.insert(page, swap);
        self.request_lease(rack, to, page, Wish::PrefetchLease(swap));
    }

    /// A lease of the page at its new home was granted.
    pub(crate) fn lease_prefetched(&mut self, rack: usize, page: PageId) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if let Some(swap) = daemon.lease_prefetches.remove(&page) {
            self.feed(rack, RackEvent::LeasePrefetched(swap));
        }
    }

    /// Answers the lease requests that waited and that the page permits now, or that have waited
    /// long enough.
    pub(crate) fn answer_lookups(&mut self, rack: usize) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        for lookup in std::mem::take(&mut daemon.lookups) {
            self.lookup(rack, lookup);
        }
    }

    /// Answers a lease request of another rack, or lets it wait for the page.
    pub(crate) fn lookup(&mut self, rack: usize, lookup: Lookup) {
        let Lookup { peer, page, question, wish, until } = lookup;
        let now = self.local_time(rack);
        self.ask_to_share(rack, page, wish);
        let endpoint = self.endpoint(rack, peer);
        let (access, purpose, holder) = (wish.access(), wish.purpose(), rack_id(peer));
        let request = LeaseRequest { page, access, purpose, holder, endpoint };
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        match daemon.machine.request_lease(now, &node.memory, request) {
            LeaseReply::Granted { lease: GrantedLease { id, kind }, found, forwards } => {
                let (home, epoch, frame) = (rack_id(rack), found.word.epoch(), found.frame);
                let lease = Lease { id, kind, home, endpoint, frame, epoch };
                self.send(rack, peer, Message::Location { page, question, lease, forwards });
                self.run_rack(rack);
            }
            LeaseReply::Busy if self.now < until => daemon.lookups.push(lookup),
            LeaseReply::Busy => {}
            LeaseReply::Free | LeaseReply::Lost | LeaseReply::Elsewhere => {
                self.send(rack, peer, Message::NotHere(page));
            }
        }
    }

    /// Passes a lease request on to the sharing of the page.
    fn ask_to_share(&mut self, rack: usize, page: PageId, wish: Wish) {
        match wish {
            Wish::Read | Wish::PrefetchLease(_) => {}
            Wish::Write => self.feed(rack, RackEvent::WriteNeeded(page)),
            Wish::Copy => self.feed(rack, RackEvent::ReplicaRequested(page)),
        }
    }

    /// Accepts a client's request.
    pub(crate) fn asked(&mut self, rack: usize, life: u64, call: Call) {
        if self.racks[rack].life != life {
            return;
        }
        let one = self.history.get(call.operation);
        if is_root(one.page) {
            return self.ask_root_over_link(rack, call);
        }
        let now = self.local_time(rack);
        let here = self.racks[rack].memory.all().any(|found| found.word.page() == one.page);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let access = one.kind.access();
        let found = daemon.machine.heats_mut().accessed(now, one.page, access, 1);
        let kept = daemon.machine.copies().is_wanted(one.page);
        // In some worlds a replica is requested without a home that has refused to give its page.
        if found.read_hot && !here && self.weather.reads > 60 && self.rng.percent(50) {
            self.feed(rack, RackEvent::ReplicaWanted(one.page));
        } else if found.hot && !here && !kept {
            let (milli, read_hot) = (found.milli, found.read_hot);
            self.feed(rack, RackEvent::Heated { page: one.page, milli, read_hot });
        }
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let until = self.now + CLIENT_TIMEOUT;
        daemon.calls.push(Pending { call, until, wait: Wait::Asked, ask_again: 0 });
        self.retry_calls(rack);
        self.wake_rack(rack);
    }

    pub(crate) fn close_call(&mut self, rack: usize, call: Call) {
        if let Some(daemon) = &mut self.racks[rack].daemon {
            daemon.calls.retain(|pending| pending.call != call);
        }
    }

    pub(crate) fn retry_calls(&mut self, rack: usize) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.calls.retain(|pending| pending.until > self.now);
        let calls: Vec<Pending> =
            daemon.calls.iter().filter(|pending| pending.wait != Wait::Sent).copied().collect();
        for pending in calls {
            self.try_call(rack, pending);
        }
    }

    fn try_call(&mut self, rack: usize, pending: Pending) {
        let call = pending.call;
        let one = self.history.get(call.operation);
        let access = one.kind.access();
        let is_read = access == Access::Read;
        // A client of this rack writes a dirty-logged page itself, or forwards the write.
        let traces = matches!(one.kind, Kind::Write(_)) && self.rng.percent(50);
        let may_write = |word: PageWord| word.is_writable() || traces && word.is_dirty_logged();
        match self.racks[rack].memory.find(one.page) {
            Some(found) if may_write(found.word) || is_read && found.word.is_readable() => {
                self.close_call(rack, call);
                return self.answer(call, Answer::Local(found));
            }
            // The page moves or is shared: the request waits for its word to change, unless this
            // rack forwards writes.
            Some(_) => {
                if let Some(found) = self.write_for(rack, one.page, one.word, one.kind) {
                    self.close_call(rack, call);
                    return self.answer(call, Answer::Done(found));
                }
                self.mark(rack, call, Wait::Here);
                return self.feed(rack, RackEvent::WriteNeeded(one.page));
            }
            None => {}
        }
        let now = self.local_time(rack);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let found = daemon.machine.copies().find(now, one.page).filter(|_| is_read);
        if let Some(FoundCopy { frame, copy }) = found {
            daemon.machine.used_by_copy(now, one.page);
            self.close_call(rack, call);
            self.answer(call, Answer::Copy(frame, copy));
            return self.run_rack(rack);
        }
        self.try_elsewhere(rack, pending);
    }

    /// The page is not here: it is accessed one-sided, or by its home, or asked for.
    fn try_elsewhere(&mut self, rack: usize, pending: Pending) {
        let call = pending.call;
        let one = self.history.get(call.operation);
        let access = one.kind.access();
        let now = self.local_time(rack);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let known = daemon.machine.locations().of(one.page);
        let home = known.map(|known| usize::from(known.home.0)).filter(|home| *home != rack);
        let again = self.now >= pending.ask_again;
        match (home, one.kind) {
            (Some(home), kind) if again && kind.is_atomic() => {
                let (page, word) = (one.page, one.word);
                self.mark(rack, call, Wait::Sent);
                let message = Message::Atomic { call, page, word, kind };
                self.send(rack, home, message);
            }
            (Some(_), kind) if kind.is_atomic() => {}
            (Some(home), _) => {
                if let Some(lease) = daemon.machine.begin(now, one.page, access) {
                    self.mark(rack, call, Wait::Sent);
                    self.post_access(rack, call, lease);
                    self.run_rack(rack);
                } else if access == Access::Write
                    && let Some(home) = daemon.machine.writing_home(now, one.page)
                {
                    let (page, word, kind) = (one.page, one.word, one.kind);
                    self.mark(rack, call, Wait::Sent);
                    self.send(
                        rack,
                        usize::from(home.0),
                        Message::Atomic { call, page, word, kind },
                    );
                } else if again {
                    let wish = match access {
                        Access::Write => Wish::Write,
                        Access::Read if daemon.machine.copies().is_wanted(one.page) => Wish::Copy,
                        Access::Read => Wish::Read,
                    };
                    self.mark(rack, call, Wait::Asked);
                    self.request_lease(rack, home, one.page, wish);
                }
            }
            (None, _) if again => {
                self.mark(rack, call, Wait::Asked);
                self.ask_home(rack, one.page);
            }
            (None, _) => {}
        }
    }

    fn mark(&mut self, rack: usize, call: Call, wait: Wait) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        if let Some(pending) = daemon.calls.iter_mut().find(|pending| pending.call == call) {
            pending.wait = wait;
            if wait != Wait::Here {
                pending.ask_again = self.now + 8 * MILLI;
            }
        }
    }

    pub(crate) fn atomic_done(&mut self, rack: usize, call: Call, found: Option<u64>) {
        match found {
            Some(found) => {
                self.answer(call, Answer::Done(found));
                self.close_call(rack, call);
            }
            None => {
                self.mark(rack, call, Wait::Asked);
                let page = self.history.get(call.operation).page;
                if let Some(daemon) = &mut self.racks[rack].daemon {
                    daemon.machine.locations_mut().forget(page);
                }
                self.wake_rack(rack);
            }
        }
    }
}
