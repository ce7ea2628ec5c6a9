mod check;
mod event;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use rackpool_model::{MemoryId, PageId, RackId};
use rackpool_wire::metadata::PageLock;
use rackpool_wire::swap::{FromServer, PageLife, RequestRefusal, SwapId, ToServer};

use super::SwapRules;
use crate::Time;
use crate::directory::{Directory, Moved};
use crate::planted_bugs::{Bug, Bugs, Sound};
use check::{check, is_moved, memories, serves};

pub use event::{ServerEvent, SwapBatch};

#[derive(Clone, Copy, Debug)]
struct Waiting {
    requester: RackId,
    offered: PageId,
    nonce: u64,
    /// Its order of arrival among all requests.
    arrival: u64,
    until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    requester: RackId,
    home: RackId,
    nonce: u64,
    page: PageId,
    offered: PageId,
    /// The memories of requester and home. If either rack gets other memory, the swap ends.
    memories: [MemoryId; 2],
    until: Time,
    /// Its commit is queued for the store or in progress.
    committing: bool,
}

/// A swap and the new directory entries of its two pages.
type Commit = (SwapId, [Moved; 2]);

/// The metadata server's part in swaps: the queues of requests, and the commit point. Its only
/// durable state is the page directory, which the caller keeps.
#[derive(Debug)]
pub struct SwapServer<B = Sound> {
    now: Time,
    rules: SwapRules,
    bugs: B,
    next_swap: u64,
    next_arrival: u64,
    queues: BTreeMap<PageId, VecDeque<Waiting>>,
    begun: BTreeMap<SwapId, Begun>,
    /// Commits for the next batch.
    to_commit: Vec<Commit>,
    in_flight: Option<(u64, Vec<Commit>)>,
    last_batch: u64,
    halted: bool,
    messages: VecDeque<(RackId, FromServer)>,
}

impl<B: Bugs> SwapServer<B> {
    /// Makes a machine without swaps. `boot` must be durable and larger than every earlier one, so
    /// that swaps of earlier boots can't be committed any more.
    pub const fn new(now: Time, rules: SwapRules, boot: u32, bugs: B) -> Self {
        Self {
            now,
            rules,
            bugs,
            next_swap: (boot as u64) << 32,
            next_arrival: 0,
            queues: BTreeMap::new(),
            begun: BTreeMap::new(),
            to_commit: Vec::new(),
            in_flight: None,
            last_batch: 0,
            halted: false,
            messages: VecDeque::new(),
        }
    }

    /// Handles an event. `directory` is the durable directory.
    pub fn handle(&mut self, now: Time, directory: &Directory, event: ServerEvent) {
        self.now = self.now.max(now);
        if self.halted {
            return;
        }
        match event {
            ServerEvent::RackSent(rack, message) => self.rack_sent(directory, rack, message),
            ServerEvent::Committed(batch) => self.committed(batch),
            ServerEvent::CommitFailed => return self.halt(),
            ServerEvent::DeadlinePassed => {}
        }
        self.expire(directory);
        self.begin_what_can_be(directory);
    }

    /// Returns the next message to send.
    pub fn poll(&mut self) -> Option<(RackId, FromServer)> {
        self.messages.pop_front()
    }

    /// Returns the commits to be made durable next, all or none; at most one batch is in progress.
    /// `ahead` is the directory with everything that becomes durable before: a swap with memory
    /// that its rack does not serve there is aborted.
    pub fn next_batch(&mut self, ahead: &Directory) -> Option<SwapBatch> {
        if self.in_flight.is_some() {
            return None;
        }
        let mut commits = core::mem::take(&mut self.to_commit);
        commits.retain(|(swap, moved)| {
            let stands = moved.iter().all(|to| serves(ahead, to.home, to.memory));
            if !stands && let Some(begun) = self.begun.remove(swap) {
                let decided = FromServer::Decision { swap: *swap, committed: false };
                self.messages.extend([(begun.requester, decided), (begun.home, decided)]);
            }
            stands
        });
        if commits.is_empty() {
            return None;
        }
        self.last_batch += 1;
        let moved = commits.iter().flat_map(|(_, moved)| *moved).collect();
        self.in_flight = Some((self.last_batch, commits));
        Some(SwapBatch { id: self.last_batch, moved })
    }

    /// Returns true if [`Self::next_batch`] would return a batch, or abort swaps.
    #[must_use]
    pub fn has_batch(&self) -> bool {
        self.in_flight.is_none() && !self.to_commit.is_empty()
    }

    /// Returns the swap that locks the page.
    #[must_use]
    pub fn lock_of(&self, page: PageId) -> Option<PageLock> {
        let holds = |(_, begun): &(&SwapId, &Begun)| begun.page == page || begun.offered == page;
        self.begun.iter().find(holds).map(|(swap, begun)| PageLock {
            swap: *swap,
            requester: begun.requester,
            wanted: begun.page,
            offered: begun.offered,
            committing: begun.committing,
        })
    }

    /// Returns the racks that wait for the page, in order.
    pub fn waiting_for(&self, page: PageId) -> impl Iterator<Item = RackId> {
        self.queues.get(&page).into_iter().flatten().map(|waiting| waiting.requester)
    }

    /// Returns the time when [`ServerEvent::DeadlinePassed`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let waiting = self.queues.values().flatten().map(|waiting| waiting.until);
        let begun = self.begun.values().filter(|begun| !begun.committing).map(|begun| begun.until);
        waiting.chain(begun).min().filter(|_| !self.halted)
    }

    fn halt(&mut self) {
        self.halted = true;
        self.to_commit.clear();
        self.messages.clear();
    }

    fn rack_sent(&mut self, directory: &Directory, rack: RackId, message: ToServer) {
        match message {
            ToServer::Request { page, offered, nonce } => {
                if let Err(reason) = self.want(directory, rack, page, offered, nonce) {
                    self.tell(rack, FromServer::Refused { nonce, reason });
                }
            }
            ToServer::Abort { swap } => {
                let ends = |begun: &Begun| !begun.committing && begun.requester == rack;
                if self.begun.get(&swap).is_some_and(ends) {
                    self.begun.remove(&swap);
                }
            }
            ToServer::Commit { swap, page, offered } => {
                self.commit(directory, rack, swap, page, offered);
            }
            ToServer::Outcome { swap, page } => self.outcome(directory, rack, swap, page),
        }
    }

    fn want(
        &mut self,
        directory: &Directory,
        requester: RackId,
        page: PageId,
        offered: PageId,
        nonce: u64,
    ) -> Result<(), RequestRefusal> {
        let same = |begun: &&Begun| begun.requester == requester && begun.nonce == nonce;
        if let Some((&swap, &begun)) = self.begun.iter().find(|(_, begun)| same(begun)) {
            self.tell(requester, FromServer::Granted { swap, nonce, home: begun.home });
            return Ok(());
        }
        check(directory, requester, page, offered)?;
        let waiting: usize = self.queues.values().map(VecDeque::len).sum();
        let until = self.now.after(self.rules.want);
        let queue = self.queues.entry(page).or_default();
        if let Some(known) = queue.iter_mut().find(|waiting| waiting.requester == requester) {
            // A delayed duplicate of an older request must not replace a newer one.
            if nonce >= known.nonce {
                (known.offered, known.nonce, known.until) = (offered, nonce, until);
            }
            return Ok(());
        }
        if waiting >= self.rules.wants {
            return Err(RequestRefusal::QueueFull);
        }
        self.next_arrival += 1;
        let arrival = self.next_arrival;
        queue.push_back(Waiting { requester, offered, nonce, arrival, until });
        Ok(())
    }

    /// Grants the oldest requests whose two pages are both unlocked, and locks both at once.
    fn begin_what_can_be(&mut self, directory: &Directory) {
        while self.begun.len() < self.rules.parallel {
            let heads =
                self.queues.iter().filter_map(|(page, queue)| Some((*page, *queue.front()?)));
            let ready = heads
                .filter(|(page, head)| !self.is_locked(*page) && !self.is_locked(head.offered));
            let Some((page, head)) = ready.min_by_key(|(_, head)| head.arrival) else { return };
            if let Some(queue) = self.queues.get_mut(&page) {
                queue.pop_front();
            }
            let Waiting { requester, offered, nonce, .. } = head;
            match check(directory, requester, page, offered) {
                Err(reason) => self.tell(requester, FromServer::Refused { nonce, reason }),
                Ok((home, memories)) => {
                    self.next_swap += 1;
                    let swap = SwapId(self.next_swap);
                    let until = self.now.after(self.rules.server_grace);
                    let committing = false;
                    let begun = Begun {
                        requester,
                        home,
                        nonce,
                        page,
                        offered,
                        memories,
                        until,
                        committing,
                    };
                    self.begun.insert(swap, begun);
                    self.tell(requester, FromServer::Granted { swap, nonce, home });
                }
            }
        }
    }

    fn is_locked(&self, page: PageId) -> bool {
        self.begun.values().any(|begun| begun.page == page || begun.offered == page)
    }

    fn commit(
        &mut self,
        directory: &Directory,
        rack: RackId,
        swap: SwapId,
        page: PageLife,
        offered: PageLife,
    ) {
        let entry = |life: PageLife, home, memory| {
            let PageLife { page, epoch } = life;
            Moved { page, home, memory, epoch, swap }
        };
        let Some(begun) = self.begun.get_mut(&swap) else {
            let committed = is_moved(directory, rack, swap, page.page);
            if self.bugs.has(Bug::CommitEnded)
                && !committed
                && let Some(home) = directory.home(page.page)
                && let Ok([mine, theirs]) = memories(directory, rack, home)
            {
                let entries = [entry(page, rack, mine), entry(offered, home, theirs)];
                self.to_commit.push((swap, entries));
                return;
            }
            self.tell(rack, FromServer::Decision { swap, committed });
            return;
        };
        // Only the requester can commit; an answer to another rack could become wrong.
        if begun.committing || begun.requester != rack {
            return;
        }
        if (begun.page, begun.offered) != (page.page, offered.page) {
            self.begun.remove(&swap);
            self.tell(rack, FromServer::Decision { swap, committed: false });
            return;
        }
        begun.committing = true;
        let (requester, home, [mine, theirs]) = (begun.requester, begun.home, begun.memories);
        let entries = [entry(page, requester, mine), entry(offered, home, theirs)];
        self.to_commit.push((swap, entries));
        if self.bugs.has(Bug::AnswerBeforeDurable) {
            self.tell(requester, FromServer::Decision { swap, committed: true });
            self.tell(home, FromServer::Decision { swap, committed: true });
        }
    }

    /// Answers `Outcome`: a swap that is not committed ends by it.
    fn outcome(&mut self, directory: &Directory, rack: RackId, swap: SwapId, page: PageId) {
        match self.begun.get(&swap) {
            // The decision follows the commit.
            Some(begun) if begun.committing => return,
            Some(begun) if begun.requester != rack && begun.home != rack => return,
            Some(_) if self.bugs.has(Bug::DenyWithoutEnding) => {}
            Some(_) => {
                self.begun.remove(&swap);
            }
            None => {}
        }
        let committed = is_moved(directory, rack, swap, page);
        self.tell(rack, FromServer::Decision { swap, committed });
    }

    fn committed(&mut self, batch: u64) {
        let Some((_, commits)) = self.in_flight.take_if(|(id, _)| *id == batch) else { return };
        for (swap, moved) in commits {
            self.begun.remove(&swap);
            for moved in moved {
                self.tell(moved.home, FromServer::Decision { swap, committed: true });
            }
        }
    }

    fn expire(&mut self, directory: &Directory) {
        let now = self.now;
        self.begun.retain(|_, begun| {
            let [mine, theirs] = begun.memories;
            let stands =
                serves(directory, begun.requester, mine) && serves(directory, begun.home, theirs);
            begun.committing || (stands && begun.until > now)
        });
        self.queues.retain(|_, queue| {
            queue.retain(|waiting| waiting.until > now);
            !queue.is_empty()
        });
    }

    fn tell(&mut self, rack: RackId, message: FromServer) {
        self.messages.push_back((rack, message));
    }
}
