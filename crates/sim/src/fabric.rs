//! One-sided operations and their endpoints.

use rackpool_model::{FrameId, PageId, PageState};
use rackpool_proto::lease::{EndpointToken, Lease};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::rack::RackEvent;
use rackpool_wire::swap::SwapId;

use crate::client::Answer;
use crate::history::Kind;
use crate::message::{Call, Node};
use crate::objects::Objects;
use crate::rules::{FLIGHT, MICRO, MILLI, WORDS};
use crate::world::{Event, World};

/// An endpoint between two daemons, for the leases that one grants the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    home: usize,
    holder: usize,
    lives: (u64, u64),
    torn: bool,
}

/// An operation that a daemon has posted. The other daemon takes no part in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSided {
    poster: usize,
    life: u64,
    target: usize,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Access {
        call: Call,
        lease: Lease,
    },
    /// Copies a whole page as a replica.
    Keep {
        page: PageId,
        lease: Lease,
        ours: FrameId,
    },
    /// Copies a whole page for a swap, word by word: it may be written meanwhile.
    Copy {
        swap: SwapId,
        theirs: FrameId,
        ours: FrameId,
    },
}

impl<B: Bugs> World<B> {
    /// Returns the endpoint over which `home` grants leases to `holder`.
    pub(crate) fn endpoint(&mut self, home: usize, holder: usize) -> EndpointToken {
        let lives = (self.racks[home].life, self.racks[holder].life);
        let open = self.endpoints.iter().position(|one| {
            (one.home, one.holder, one.lives, one.torn) == (home, holder, lives, false)
        });
        let index = open.unwrap_or_else(|| {
            self.endpoints.push(Endpoint { home, holder, lives, torn: false });
            self.endpoints.len() - 1
        });
        EndpointToken(index as u64)
    }

    /// Returns true if messages can go over an endpoint: both daemons live, and it is not fenced.
    pub(crate) fn is_open(&self, endpoint: EndpointToken) -> bool {
        let Endpoint { home, holder, lives, torn } = self.endpoints[token(endpoint)];
        let live = (self.racks[home].life, self.racks[holder].life) == lives;
        (live || self.bugs.has(Bug::AnswerForTheDead)) && !torn
    }

    pub(crate) fn endpoint_home(&self, endpoint: EndpointToken) -> usize {
        self.endpoints[token(endpoint)].home
    }

    pub(crate) fn endpoint_holder(&self, endpoint: EndpointToken) -> usize {
        self.endpoints[token(endpoint)].holder
    }

    pub(crate) fn post_access(&mut self, rack: usize, call: Call, lease: Lease) {
        let target = usize::from(lease.home.0);
        self.post(rack, target, What::Access { call, lease });
    }

    pub(crate) fn post_copy(
        &mut self,
        rack: usize,
        target: usize,
        swap: SwapId,
        theirs: FrameId,
        ours: FrameId,
    ) {
        self.post(rack, target, What::Copy { swap, theirs, ours });
    }

    pub(crate) fn post_keep(&mut self, rack: usize, page: PageId, lease: Lease, ours: FrameId) {
        let target = usize::from(lease.home.0);
        self.post(rack, target, What::Keep { page, lease, ours });
    }

    fn post(&mut self, poster: usize, target: usize, what: What) {
        let id = self.next_one_sided;
        self.next_one_sided += 1;
        let life = self.racks[poster].life;
        self.one_sided.insert(id, OneSided { poster, life, target, what });
        let wait = self.flight();
        self.after(wait, Event::Land { id, part: 0 });
    }

    fn flight(&mut self) -> u64 {
        if self.rng.percent(self.weather.slow) {
            self.rng.within(MICRO..FLIGHT)
        } else {
            self.rng.within(2 * MICRO..60 * MICRO)
        }
    }

    /// Executes an operation, or a part of a copy, in the memory of the other rack.
    pub(crate) fn land(&mut self, id: u64, part: usize) {
        let Some(OneSided { poster, target, what, .. }) = self.one_sided.get(&id).copied() else {
            return;
        };
        let nodes = (Node::Rack(poster), Node::Rack(target));
        let cut = self.weather.is_cut(self.now, nodes.0, nodes.1)
            || self.weather.is_cut(self.now, nodes.1, nodes.0);
        let found = match what {
            _ if cut => None,
            What::Access { lease, .. } if self.endpoints[token(lease.endpoint)].torn => None,
            What::Keep { lease, .. } if self.endpoints[token(lease.endpoint)].torn => None,
            What::Access { call, lease } => Some(self.land_access(target, call, lease)),
            What::Copy { theirs, ours, .. }
            | What::Keep { lease: Lease { frame: theirs, .. }, ours, .. } => {
                let word = self.racks[target].memory.frame(theirs).bytes[part];
                self.racks[poster].memory.frame(ours).bytes[part] = word;
                if part + 1 < WORDS {
                    let wait = self.flight();
                    return self.after(wait, Event::Land { id, part: part + 1 });
                }
                // Header and bitmap travel with the page, marks do not.
                let objects = Objects {
                    marks: Objects::default().marks,
                    ..self.racks[target].memory.frame(theirs).objects
                };
                self.racks[poster].memory.frame(ours).objects = objects;
                Some(0)
            }
        };
        let wait = self.rng.within(MICRO..30 * MICRO);
        self.after(wait, Event::Ended { id, found });
    }

    fn land_access(&mut self, target: usize, call: Call, lease: Lease) -> u64 {
        let operation = self.history.get(call.operation);
        self.check_use(
            target,
            lease.frame,
            operation.page,
            operation.kind,
            "a one-sided operation",
        );
        let page = operation.page;
        let epoch = lease.epoch.raw();
        let last = self.written.entry(page).or_default();
        let is_older = epoch < *last;
        if operation.kind != Kind::Read {
            *last = epoch.max(*last);
        }
        // No lease is out once the new home accepts writes, from its clients or one-sided.
        if is_older || self.is_written_elsewhere(target, page) {
            self.breaks(|| format!("a lease of rack {target} outlives the move of {page}"));
        }
        let cell = &mut self.racks[target].memory.frame(lease.frame).bytes[operation.word];
        let before = *cell;
        *cell = operation.kind.result(before);
        operation.kind.shown(before)
    }

    /// Checks that a user of a frame finds its page there, in a state that permits the access.
    pub(crate) fn check_use(
        &mut self,
        rack: usize,
        frame: FrameId,
        page: PageId,
        kind: Kind,
        who: &str,
    ) {
        let word = self.racks[rack].memory.frame(frame).word;
        let here = match word.state() {
            // A user that loaded the word before it changed may still be in the frame.
            Some(PageState::Live | PageState::Frozen | PageState::Shared) => true,
            Some(PageState::Leaving) => kind == Kind::Read,
            _ => false,
        };
        let sharing = self.racks[rack].daemon.as_ref();
        let sharing = sharing.and_then(|daemon| daemon.machine.shares().sharing(page));
        if kind != Kind::Read && sharing.is_some() {
            self.breaks(|| format!("{who} writes {page} of rack {rack}, which has replicas"));
        }
        if word.page() != page || !here {
            let state = word.state();
            self.breaks(|| {
                format!(
                    "{who} ({kind:?}) on {page} finds {} {state:?} in {frame} of rack {rack}",
                    word.page()
                )
            });
        }
    }

    pub(crate) fn one_sided_ended(&mut self, id: u64, found: Option<u64>) {
        let Some(OneSided { poster, life, what, .. }) = self.one_sided.remove(&id) else { return };
        if self.racks[poster].daemon.is_none() || self.racks[poster].life != life {
            return;
        }
        // Completions of a stopped daemon wait for it; the memory was changed before.
        let paused_until = self.racks[poster].paused_until;
        if paused_until > self.now {
            let wait = paused_until - self.now;
            self.one_sided.insert(id, OneSided { poster, life, target: poster, what });
            return self.after(wait, Event::Ended { id, found });
        }
        match what {
            What::Access { call, lease } => {
                let one = self.history.get(call.operation);
                let access = one.kind.access();
                let (page, endpoint) = (one.page, lease.endpoint);
                self.feed(poster, RackEvent::OperationEnded { page, endpoint, access });
                self.answer(call, found.map_or(Answer::Failed, Answer::Done));
            }
            What::Keep { page, lease, .. } => {
                let whole = found.is_some();
                let endpoint = lease.endpoint;
                self.feed(poster, RackEvent::ReplicaCopied { page, endpoint, whole });
            }
            What::Copy { swap, .. } => {
                let whole = found.is_some();
                self.feed(poster, RackEvent::PageCopied { swap, whole });
            }
        }
    }

    /// Fences an endpoint: no operation lands over it from here on.
    pub(crate) fn fence(&mut self, endpoint: EndpointToken) {
        self.seen.fenced += 1;
        let index = token(endpoint);
        self.endpoints[index].torn = true;
        let Endpoint { home, holder, lives, .. } = self.endpoints[index];
        let ended = |rack, life| Event::EndpointEnded { rack, life, endpoint: index };
        let wait = self.rng.within(10 * MICRO..MILLI);
        self.after(wait, ended(home, lives.0));
        let wait = self.rng.within(10 * MICRO..20 * MILLI);
        self.after(wait, ended(holder, lives.1));
    }

    pub(crate) fn endpoint_ended(&mut self, rack: usize, life: u64, endpoint: usize) {
        self.endpoints[endpoint].torn = true;
        if self.racks[rack].daemon.is_none() || self.racks[rack].life != life {
            return;
        }
        let token_of = EndpointToken(endpoint as u64);
        if self.endpoints[endpoint].home == rack {
            return self.feed(rack, RackEvent::EndpointFenced(token_of));
        }
        let over = |one: &OneSided| match one.what {
            What::Access { lease, .. } | What::Keep { lease, .. } => {
                lease.endpoint == token_of && one.poster == rack
            }
            What::Copy { .. } => false,
        };
        let ids: Vec<u64> =
            self.one_sided.iter().filter(|(_, one)| over(one)).map(|(id, _)| *id).collect();
        for id in ids {
            self.one_sided_ended(id, None);
        }
        self.feed(rack, RackEvent::EndpointEnded(token_of));
        self.end_requests(rack, token_of);
    }

    /// A daemon has died. Its posted operations may still land, its copies end, and the homes of
    /// its leases learn of it when nothing can land any more.
    pub(crate) fn connections_of_the_dead(&mut self, rack: usize) {
        let life = self.racks[rack].life;
        let posted =
            self.one_sided.iter().filter(|(_, one)| one.poster == rack && one.life == life);
        let posted: Vec<(u64, What)> = posted.map(|(id, one)| (*id, one.what)).collect();
        for (id, what) in posted {
            if matches!(what, What::Copy { .. } | What::Keep { .. }) || self.rng.percent(50) {
                self.one_sided.remove(&id);
            }
        }
        for index in 0..self.endpoints.len() {
            let Endpoint { home, holder, lives, torn } = self.endpoints[index];
            if holder == rack && lives.1 == life && !torn {
                let ended = Event::EndpointEnded { rack: home, life: lives.0, endpoint: index };
                self.after(FLIGHT, ended);
            }
        }
    }
}

fn token(endpoint: EndpointToken) -> usize {
    usize::try_from(endpoint.0).unwrap_or(usize::MAX)
}
