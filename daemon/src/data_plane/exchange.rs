//! Exactly-once transfer of objects between racks, although either daemon may die at any time.
//!
//! Both sides keep a record of the last exchange in their metadata. The requester writes its record
//! before it sends the request, and repeats the request until it is answered. The server writes its
//! record before it changes anything, and answers a repeated request from the record. There is at
//! most one exchange at a time from one rack to another.

mod asked;
mod moved_pages;
mod served;
mod unknown_home;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use rackpool_model::{GlobalAddr, RackId};
use rackpool_shm::metadata::PageUse;
use rackpool_wire::rack::RackAnswer;

use super::DataPlane;
use super::clients::{Caller, ClientThread};

/// The purpose of an exchange.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Allocates objects for a client of this rack.
    Allocate {
        /// The waiting caller. `None` once it was told that no answer came: the objects are then
        /// returned.
        caller: Option<Caller>,
        bytes: u64,
        count: u64,
        /// Racks that were asked before and had no memory.
        tried: Vec<Tried>,
    },
    /// Returns objects to their home.
    Free {
        /// The client and thread whose outbox holds the objects until the record holds them.
        owner: Option<ClientThread>,
        release: Option<u64>,
        addrs: Vec<GlobalAddr>,
    },
}

/// A rack that was asked for memory without success.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    rack: RackId,
    /// The number of free frames in its answer; `None` if it did not answer.
    free_frames: Option<u32>,
}

#[derive(Debug)]
struct Active {
    job: Job,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct Line {
    active: Option<Active>,
    /// Objects that the other rack did not take back because their pages have moved.
    moved: Option<moved_pages::MovedObjects>,
    waiting: VecDeque<Job>,
}

impl Line {
    /// Returns true if the record of the exchange holds nothing.
    const fn is_idle(&self) -> bool {
        self.active.is_none() && self.moved.is_none()
    }

    /// Returns true if the callers that wait for the exchange have waited long enough.
    fn is_overdue(&self, now: Instant) -> bool {
        let active = self.active.as_ref().map(|active| active.deadline);
        let moved = self.moved.as_ref().map(moved_pages::MovedObjects::deadline);
        active.or(moved).is_some_and(|deadline| now >= deadline)
    }
}

/// A client's request to free objects, a part of which other racks execute.
#[derive(Debug)]
struct Release {
    caller: Caller,
    refused: u64,
    jobs: usize,
    /// The answer if some of the objects stay in the outbox.
    away: Option<RackAnswer>,
}

/// The exchanges with all racks.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    lines: BTreeMap<RackId, Line>,
    homeless: unknown_home::Homeless,
    releases: BTreeMap<u64, Release>,
    next_release: u64,
}

impl Exchanges {
    pub(super) fn has_deadlines(&self) -> bool {
        self.lines.values().any(|line| !line.is_idle()) || self.homeless.has_deadlines()
    }

    /// Begins a request to free, of which `refused` objects were not in use. Returns its id.
    pub(super) fn open_release(&mut self, caller: Caller, refused: u64) -> u64 {
        self.next_release += 1;
        self.releases.insert(self.next_release, Release { caller, refused, jobs: 0, away: None });
        self.next_release
    }

    /// Adds a job to a request to free.
    pub(super) fn count_job(&mut self, release: Option<u64>) {
        if let Some(release) = release.and_then(|id| self.releases.get_mut(&id)) {
            release.jobs += 1;
        }
    }

    /// Counts objects of the request that were not in use.
    pub(super) fn refuse(&mut self, release: Option<u64>, refused: u64) {
        if let Some(release) = release.and_then(|id| self.releases.get_mut(&id)) {
            release.refused += refused;
        }
    }
}

impl DataPlane {
    /// Answers a request to free once all of its jobs are done.
    pub(super) fn close_release_if_done(&mut self, id: u64) {
        if self.exchanges.releases.get(&id).is_some_and(|release| release.jobs == 0)
            && let Some(Release { caller, refused, away, .. }) = self.exchanges.releases.remove(&id)
        {
            self.clients.finish(caller, away.unwrap_or(RackAnswer::Done(refused)));
        }
    }

    /// Ends a client's job that was not begun: its objects stay in the outbox.
    fn job_dropped(&mut self, owner: Option<ClientThread>, release: Option<u64>, away: RackAnswer) {
        if let Some(release) = release.and_then(|id| self.exchanges.releases.get_mut(&id)) {
            release.away = Some(away);
        }
        self.job_ended(owner, release, 0);
    }

    /// Ends a job of which `refused` objects were not in use.
    fn job_ended(&mut self, owner: Option<ClientThread>, release: Option<u64>, refused: u64) {
        if let Some(ClientThread { client: id, .. }) = owner {
            if let Some(client) = self.clients.all.get_mut(id) {
                client.returning = client.returning.saturating_sub(1);
            }
            self.forget_if_returned(id);
        }
        self.job_done(release, refused);
    }

    fn job_done(&mut self, release: Option<u64>, refused: u64) {
        self.exchanges.refuse(release, refused);
        if let Some(id) = release {
            if let Some(release) = self.exchanges.releases.get_mut(&id) {
                release.jobs = release.jobs.saturating_sub(1);
            }
            self.close_release_if_done(id);
        }
    }

    /// Allocates in another rack: the untried rack with the most free frames.
    pub(super) fn refill_elsewhere(
        &mut self,
        caller: Caller,
        bytes: u64,
        count: u64,
        tried: Vec<Tried>,
    ) -> anyhow::Result<()> {
        let own = self.rack.geometry.rack;
        let next = self
            .members
            .iter()
            .filter(|member| member.alive && member.rack != own)
            .filter(|member| tried.iter().all(|tried| tried.rack != member.rack))
            .max_by_key(|member| (member.free_frames, std::cmp::Reverse(member.rack)))
            .map(|member| member.rack);
        match next {
            Some(rack) => {
                let job = Job::Allocate { caller: Some(caller), bytes, count, tried };
                self.begin_exchange(rack, job)
            }
            None => {
                let answer = self.out_of_memory(&tried);
                self.clients.finish(caller, answer);
                Ok(())
            }
        }
    }

    /// Returns the memory of the reachable other racks, as the metadata server last reported it.
    pub(super) fn others(&self) -> Others {
        let own = self.rack.geometry.rack;
        let mut others = Others::default();
        for member in self.members.iter().filter(|m| m.alive && m.rack != own) {
            others.frames += u64::from(member.pages.count);
            others.free += u64::from(member.free_frames);
        }
        others
    }

    /// Returns the memory of the pool's largest rack in bytes, reachable or not; `None` before the
    /// metadata server has named the members.
    pub(super) fn largest_rack(&self) -> Option<u64> {
        let frames = self.members.iter().map(|member| member.pages.count).max()?;
        let frames = frames.max(self.rack.geometry.frames).min(PageUse::MAX_RUN);
        Some(u64::from(frames) * self.rack.geometry.page_size.bytes())
    }

    /// Only racks that answered this request are counted with their numbers.
    fn out_of_memory(&self, tried: &[Tried]) -> RackAnswer {
        let own = self.rack.geometry.rack;
        let (mut asked, mut unreachable, mut other_frames, mut other_free) = (0_u16, 0_u16, 0, 0);
        for member in self.members.iter().filter(|member| member.rack != own) {
            let tried = tried.iter().find(|tried| tried.rack == member.rack);
            match tried.and_then(|tried| tried.free_frames) {
                Some(free) => {
                    asked = asked.saturating_add(1);
                    other_frames += u64::from(member.pages.count);
                    other_free += u64::from(free);
                }
                None => unreachable = unreachable.saturating_add(1),
            }
        }
        let (rack_frames, rack_free) = (self.rack.geometry.frames, self.slab.free_frames());
        RackAnswer::OutOfMemory {
            rack_frames,
            rack_free,
            asked,
            other_frames,
            other_free,
            unreachable,
        }
    }
}

/// Memory of the reachable other racks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    /// Number of frames.
    pub(super) frames: u64,
    /// Number of frames without a page.
    pub(super) free: u64,
}
