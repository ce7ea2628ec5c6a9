//! Requests of daemons to each other about pages, and to the metadata server. A request that is
//! lost, or whose home dies, ends without an answer, as if its endpoint had ended.

use rackpool_model::{Access, PageId};
use rackpool_proto::lease::{EndpointToken, GrantedLease, Lease};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::rack::{LeaseAnswer, LeaseReply, LeaseRequest, PageAccess, RackEvent};

use crate::calls::{PageUse, refusal};
use crate::history::Kind;
use crate::message::{Call, Message, Wish};
use crate::rules::{LEASE_NS, LOOKUP_TIMEOUT, MILLI};
use crate::world::{Event, World, rack_id};

/// An unanswered lease request of this rack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    page: PageId,
    home: usize,
    endpoint: EndpointToken,
}

/// A request of another rack that waits for a page of this rack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    peer: usize,
    what: ServedKind,
    until: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ServedKind {
    Lookup { page: PageId, question: u64, wish: Wish },
    Operation { call: Call, page: PageId, word: usize, kind: Kind },
}

impl<B: Bugs> World<B> {
    /// Sends a lease request. A home that does not answer within a lease is cut off.
    pub(crate) fn ask_for_lease(
        &mut self,
        rack: usize,
        home: usize,
        page: PageId,
        question: u64,
        wish: Wish,
    ) {
        let endpoint = self.endpoint(home, rack);
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.asked.insert(question, Asked { page, home, endpoint });
        self.send(rack, home, Message::Lookup { page, question, wish });
        self.after(LEASE_NS, Event::Unanswered { rack, question, cuts_off: true });
    }

    /// The network has lost a request for a lease or its answer: its endpoint ends.
    pub(crate) fn request_lost(&mut self, rack: usize, question: u64) {
        let (wait, cuts_off) = (self.rng.within(MILLI..40 * MILLI), self.rng.percent(30));
        self.after(wait, Event::Unanswered { rack, question, cuts_off });
    }

    /// A lease request has ended without an answer. Numbers of requests are not used twice.
    pub(crate) fn unanswered(&mut self, rack: usize, question: u64, cuts_off: bool) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        let Some(asked) = daemon.asked.remove(&question) else { return };
        if cuts_off && self.is_open(asked.endpoint) {
            self.fence(asked.endpoint);
        }
        self.feed(rack, RackEvent::LeaseUnanswered { page: asked.page, question });
    }

    /// An endpoint of this rack has ended, and with it the requests over it.
    pub(crate) fn end_requests(&mut self, rack: usize, over: EndpointToken) {
        let Some(daemon) = &self.racks[rack].daemon else { return };
        let ended = daemon.asked.iter().filter(|(_, asked)| asked.endpoint == over);
        for question in ended.map(|(question, _)| *question).collect::<Vec<_>>() {
            self.unanswered(rack, question, false);
        }
    }

    /// A home has died: requests to it will not be answered.
    pub(crate) fn end_requests_to(&mut self, home: usize) {
        let daemons = self.racks.iter().enumerate();
        let asked = daemons.flat_map(|(rack, node)| {
            let asked = node.daemon.iter().flat_map(|daemon| &daemon.asked);
            let ended = asked.filter(|(_, asked)| asked.home == home);
            ended.map(move |(question, _)| (rack, *question))
        });
        for (rack, question) in asked.collect::<Vec<_>>() {
            self.request_lost(rack, question);
        }
    }

    /// A home has answered a lease request.
    pub(crate) fn lease_answered(
        &mut self,
        rack: usize,
        home: usize,
        (page, question): (PageId, u64),
        answer: LeaseAnswer,
    ) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        daemon.asked.remove(&question);
        let home = rack_id(home);
        self.feed(rack, RackEvent::LeaseAnswered { page, question, home, answer });
    }

    /// Serves the requests that waited, or answers those that have waited long enough.
    pub(crate) fn wake_served(&mut self, rack: usize) {
        let Some(daemon) = &mut self.racks[rack].daemon else { return };
        for served in std::mem::take(&mut daemon.serving) {
            self.serve_again(rack, served);
        }
    }

    /// Serves a request of another rack, at once or when its page permits it.
    pub(crate) fn serve_peer(&mut self, rack: usize, peer: usize, what: ServedKind) {
        let until = self.now + LOOKUP_TIMEOUT;
        self.serve_again(rack, Served { peer, what, until });
    }

    fn serve_again(&mut self, rack: usize, served: Served) {
        match served.what {
            ServedKind::Lookup { page, question, wish } => {
                self.lookup(rack, served, page, question, wish);
            }
            ServedKind::Operation { call, page, word, kind } => {
                self.feed(rack, RackEvent::WriteNeeded(page));
                if self.racks[rack].daemon.is_none() {
                    return;
                }
                let outcome = self.write_for(rack, page, word, kind);
                let is_busy = outcome == PageUse::Refused(LeaseAnswer::Busy);
                match &mut self.racks[rack].daemon {
                    Some(daemon) if is_busy && self.now < served.until => {
                        daemon.serving.push(served);
                    }
                    _ => self.send(rack, served.peer, Message::OperationDone { call, outcome }),
                }
            }
        }
    }

    fn lookup(&mut self, rack: usize, served: Served, page: PageId, question: u64, wish: Wish) {
        let now = self.local_time(rack);
        self.ask_to_share(rack, page, wish);
        let (peer, Wish { access, replica }) = (served.peer, wish);
        let endpoint = self.endpoint(rack, peer);
        let request = LeaseRequest { page, access, replica, endpoint };
        let node = &mut self.racks[rack];
        let Some(daemon) = &mut node.daemon else { return };
        let answer = match daemon.machine.request_lease(now, &node.memory, request) {
            LeaseReply::Granted { lease: GrantedLease { id, kind }, found, forwards } => {
                let (home, epoch, frame) = (rack_id(rack), found.word.epoch(), found.frame);
                let lease = Lease { id, kind, home, endpoint, frame, epoch };
                LeaseAnswer::Granted { lease, usage: 0, forwards }
            }
            LeaseReply::Refused(PageAccess::Busy)
                if self.now < served.until
                    && daemon.machine.access(&node.memory, page, access) == PageAccess::Busy =>
            {
                return daemon.serving.push(served);
            }
            LeaseReply::Refused(refused) => refusal(refused),
        };
        self.send(rack, peer, Message::LeaseAnswer { page, question, answer });
        self.run_rack(rack);
    }

    /// Passes a lease request on to the sharing of the page.
    fn ask_to_share(&mut self, rack: usize, page: PageId, wish: Wish) {
        if wish.replica {
            self.feed(rack, RackEvent::ReplicaRequested(page));
        } else if wish.access == Access::Write {
            self.feed(rack, RackEvent::WriteNeeded(page));
        }
    }
}
