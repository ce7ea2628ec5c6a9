//! The requester's side of an exchange. The constants are the states of its record.

use std::collections::BTreeSet;
use std::time::Instant;

use rackpool_model::{GlobalAddr, MAX_RACKS, RackId};
use rackpool_shm::OutsideMapping;
use rackpool_shm::metadata::{PEER_BATCH, PeerLog};
use rackpool_sync::atomic::Ordering;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;

use super::{Active, Job, Tried};
use crate::data_plane::DataPlane;
use crate::data_plane::clients::{ClientThread, object_cells, strike};
use crate::data_plane::peers::Purpose;

/// No exchange is under way. A new exchange leaves this state.
const IDLE: u64 = 0;
/// The request may have been sent. The other rack's answer leaves this state. After a crash the
/// daemon sends the request again.
const SENT: u64 = 1;
/// The allocated objects have arrived and are being handed over. After a crash the objects that no
/// client file holds are returned to their home.
const RECEIVED: u64 = 2;
/// The other rack has answered that these objects' pages are not there. The state ends when all
/// objects are freed or in the records of their pages' homes. After a crash the daemon asks for the
/// homes again.
pub(super) const MOVED: u64 = 3;

const ALLOCATE: u64 = 1;
pub(super) const FREE: u64 = 2;

pub(super) fn addrs_of(log: &PeerLog) -> Vec<GlobalAddr> {
    let count = usize::try_from(log.count.load(Ordering::Acquire)).unwrap_or(PEER_BATCH);
    log.addrs
        .iter()
        .take(count)
        .map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)))
        .collect()
}

pub(super) fn set_addrs(log: &PeerLog, addrs: &[GlobalAddr]) {
    for (cell, addr) in log.addrs.iter().zip(addrs) {
        cell.store(addr.raw(), Ordering::Relaxed);
    }
    log.count.store(addrs.len().min(PEER_BATCH) as u64, Ordering::Release);
}

impl DataPlane {
    pub(super) fn asked_log(&self, rack: RackId) -> Result<&PeerLog, OutsideMapping> {
        Ok(&self.rack.metadata.peer(rack)?.asked)
    }

    /// Begins an exchange, or queues it behind the current one.
    pub(in crate::data_plane) fn begin_exchange(
        &mut self,
        rack: RackId,
        job: Job,
    ) -> anyhow::Result<()> {
        let line = self.exchanges.lines.entry(rack).or_default();
        if !line.is_idle() {
            line.waiting.push_back(job);
            return Ok(());
        }
        self.start_exchange(rack, job).map(|_| ())
    }

    /// Starts an exchange. Returns false if the job had nothing left to do.
    pub(super) fn start_exchange(&mut self, rack: RackId, mut job: Job) -> anyhow::Result<bool> {
        if let Job::Free { owner: Some(owner), release, addrs } = &mut job {
            // Objects that were removed from the outbox meanwhile have been returned by another
            // exchange.
            self.keep_noted(*owner, addrs);
            if addrs.is_empty() {
                self.job_ended(Some(*owner), *release, 0);
                return Ok(false);
            }
        }
        let log = self.asked_log(rack)?;
        let sequence = log.sequence.load(Ordering::Relaxed).wrapping_add(1);
        match &job {
            Job::Allocate { bytes, count, .. } => {
                log.kind.store(ALLOCATE, Ordering::Relaxed);
                log.bytes.store(*bytes, Ordering::Relaxed);
                log.count.store((*count).min(PEER_BATCH as u64), Ordering::Relaxed);
            }
            Job::Free { addrs, .. } => {
                log.kind.store(FREE, Ordering::Relaxed);
                set_addrs(log, addrs);
            }
        }
        log.sequence.store(sequence, Ordering::Release);
        // The commit point: from here on the record owns the objects.
        log.state.store(SENT, Ordering::Release);
        if let Job::Free { owner: Some(owner), addrs, .. } = &job
            && let Some(slot) = self.clients.slot(*owner)
        {
            strike(slot, |addr| addrs.contains(&addr));
        }
        let deadline = self.exchange_deadline();
        let line = self.exchanges.lines.entry(rack).or_default();
        line.active = Some(Active { job, deadline });
        self.send_exchange(rack)?;
        Ok(true)
    }

    /// Keeps the objects that are still in a cell from which the daemon may take them: the outbox,
    /// or any cell if the client has gone.
    pub(super) fn keep_noted(&self, owner: ClientThread, addrs: &mut Vec<GlobalAddr>) {
        let client = self.clients.all.get(owner.client);
        let Some((client, slot)) = client.and_then(|c| Some((c, c.thread(owner.thread)?))) else {
            addrs.clear();
            return;
        };
        let noted: BTreeSet<u64> = if client.gone {
            object_cells(slot).map(|cell| cell.load(Ordering::Relaxed)).collect()
        } else {
            slot.outbox.iter().map(|cell| cell.load(Ordering::Relaxed)).collect()
        };
        addrs.retain(|addr| noted.contains(&addr.raw()));
    }

    fn send_exchange(&mut self, rack: RackId) -> anyhow::Result<()> {
        let own = self.rack.geometry.rack;
        let memory = self.rack.geometry.memory;
        let log = self.asked_log(rack)?;
        let sequence = log.sequence.load(Ordering::Relaxed);
        let request = if log.kind.load(Ordering::Relaxed) == ALLOCATE {
            let bytes = log.bytes.load(Ordering::Relaxed);
            let count = u16::try_from(log.count.load(Ordering::Relaxed)).unwrap_or(1);
            PeerRequest::Allocate { rack: own, memory, sequence, bytes, count }
        } else {
            PeerRequest::Free { rack: own, memory, sequence, addrs: addrs_of(log) }
        };
        self.ask(rack, request, Purpose::Exchange, self.exchange_deadline())
    }

    /// Handles the other rack's answer.
    pub(in crate::data_plane) fn exchange_answered(
        &mut self,
        rack: RackId,
        reply: &PeerReply,
    ) -> anyhow::Result<()> {
        let active = self.exchanges.lines.get_mut(&rack).and_then(|line| line.active.take());
        let Some(Active { job, .. }) = active else { return Ok(()) };
        match (job, reply) {
            (
                Job::Allocate { caller, bytes, count, mut tried },
                PeerReply::Full { free_frames },
            ) => {
                self.finish_exchange(rack)?;
                tried.push(Tried { rack, free_frames: Some(*free_frames) });
                match caller {
                    Some(caller) => self.refill_elsewhere(caller, bytes, count, tried),
                    None => Ok(()),
                }
            }
            (Job::Allocate { caller, count, .. }, PeerReply::Allocated(addrs))
                if !addrs.is_empty() && self.are_objects_elsewhere(addrs, count) =>
            {
                let log = self.asked_log(rack)?;
                set_addrs(log, addrs);
                log.state.store(RECEIVED, Ordering::Release);
                let taker = self.hand_over(caller, addrs);
                let unwanted = if taker.is_some() { Vec::new() } else { addrs.clone() };
                self.send_home(rack, unwanted)?;
                // Answer last: once the client may take the objects, the record must not hold them
                // any more.
                if let Some((caller, count)) = taker {
                    self.clients.finish(caller, RackAnswer::Done(count));
                }
                Ok(())
            }
            (Job::Free { owner, release, .. }, reply) => {
                let (refused, moved) = match reply {
                    PeerReply::Freed { refused, moved } => (u64::from(*refused), &moved[..]),
                    other => {
                        tracing::error!("{rack} answered a free with {other:?}");
                        (0, &[][..])
                    }
                };
                self.job_ended(owner, release, refused);
                self.objects_moved(rack, moved)
            }
            (Job::Allocate { caller, .. }, other) => {
                tracing::error!("{rack} answered an allocation with {other:?}");
                if let Some(caller) = caller {
                    self.clients.finish(caller, RackAnswer::Invalid);
                }
                self.finish_exchange(rack)
            }
        }
    }

    /// Returns true if these can be objects that another rack allocated for a request of `count`:
    /// at most as many as a record holds, no duplicates, none of this rack. The exception are
    /// objects of a page that a swap has brought here meanwhile, if they are allocated and no
    /// client holds them.
    fn are_objects_elsewhere(&self, addrs: &[GlobalAddr], count: u64) -> bool {
        let page_size = self.rack.geometry.page_size;
        let is_elsewhere = |addr: &GlobalAddr| {
            let page = addr.page(page_size);
            let is_nobodys = || self.slab.is_allocated(*addr) && !self.is_held(*addr);
            page.is_some_and(|page| {
                self.slab.lookup(page).is_none() || self.slab.has_moved(page) && is_nobodys()
            })
        };
        addrs.len() <= PEER_BATCH
            && addrs.len() as u64 <= count
            && addrs.iter().all(is_elsewhere)
            && addrs.iter().collect::<BTreeSet<_>>().len() == addrs.len()
    }

    /// Puts objects into the caller's inbox. Returns the caller and the number it takes, if it
    /// takes any.
    fn hand_over(
        &mut self,
        caller: Option<crate::data_plane::Caller>,
        addrs: &[GlobalAddr],
    ) -> Option<(crate::data_plane::Caller, u64)> {
        let caller = caller.filter(|caller| self.clients.is_waiting(*caller))?;
        let slot = self.client(caller)?.thread(caller.thread)?;
        if slot.inbox.iter().any(|cell| cell.load(Ordering::Relaxed) != 0) {
            // Overwriting the inbox would lose the objects in it.
            self.clients.finish(caller, RackAnswer::Invalid);
            return None;
        }
        for (cell, addr) in slot.inbox.iter().zip(addrs) {
            cell.store(addr.raw(), Ordering::Release);
        }
        Some((caller, addrs.len().min(slot.inbox.len()) as u64))
    }

    /// Ends an allocation and returns `addrs`, the objects that were not handed over, to their
    /// home. The record goes from one exchange to the next without the state `IDLE`, and every step
    /// of rewriting it keeps all of these objects in it.
    fn send_home(&mut self, rack: RackId, addrs: Vec<GlobalAddr>) -> anyhow::Result<()> {
        if addrs.is_empty() {
            return self.finish_exchange(rack);
        }
        self.start_exchange(rack, Job::Free { owner: None, release: None, addrs }).map(|_| ())
    }

    pub(super) fn finish_exchange(&mut self, rack: RackId) -> anyhow::Result<()> {
        self.asked_log(rack)?.state.store(IDLE, Ordering::Release);
        loop {
            let line = self.exchanges.lines.get_mut(&rack);
            let Some(job) = line.and_then(|line| line.waiting.pop_front()) else { return Ok(()) };
            if self.start_exchange(rack, job)? {
                return Ok(());
            }
        }
    }

    /// Answers callers that have waited too long. Their exchange continues, because it owns
    /// objects.
    pub(in crate::data_plane) fn drive_exchanges(&mut self, now: Instant) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        let mut releases = Vec::new();
        let mut dropped = Vec::new();
        self.drive_moved(now)?;
        for (rack, line) in &mut self.exchanges.lines {
            if !line.is_overdue(now) {
                continue;
            }
            match line.active.as_mut().map(|active| &mut active.job) {
                Some(Job::Allocate { caller, bytes, count, tried }) => {
                    let silent = Tried { rack: *rack, free_frames: None };
                    let tried = tried.iter().copied().chain([silent]).collect::<Vec<_>>();
                    answers.extend(caller.take().map(|caller| (caller, *bytes, *count, tried)));
                }
                Some(Job::Free { release, .. }) => releases.extend(release.take()),
                None => {}
            }
            for job in std::mem::take(&mut line.waiting) {
                match job {
                    Job::Allocate { caller, bytes, count, mut tried } => {
                        tried.push(Tried { rack: *rack, free_frames: None });
                        answers.extend(caller.map(|caller| (caller, bytes, count, tried)));
                    }
                    Job::Free { owner, release: Some(release), .. } => {
                        dropped.push((owner, release, *rack));
                    }
                    // Objects of a gone client wait for as long as necessary.
                    job @ Job::Free { .. } => line.waiting.push_back(job),
                }
            }
        }
        for (caller, bytes, count, tried) in answers {
            self.refill_elsewhere(caller, bytes, count, tried)?;
        }
        for release in releases {
            // The record holds the objects and returns them: the caller has nothing left to do.
            self.job_done(Some(release), 0);
        }
        for (owner, release, rack) in dropped {
            self.job_dropped(owner, Some(release), RackAnswer::RackUnavailable(rack));
        }
        self.drive_homeless(now)
    }

    /// Continues the exchanges of an earlier daemon. Must be called before anything is served,
    /// after all client files were adopted.
    pub(crate) fn resume_exchanges(&mut self) -> anyhow::Result<()> {
        for rack in (0..MAX_RACKS).map(RackId) {
            let log = self.asked_log(rack)?;
            let (state, kind) =
                (log.state.load(Ordering::Acquire), log.kind.load(Ordering::Relaxed));
            let addrs = addrs_of(log);
            match (state, kind) {
                (SENT, ALLOCATE) => {
                    let (bytes, count) =
                        (log.bytes.load(Ordering::Relaxed), log.count.load(Ordering::Relaxed));
                    let job = Job::Allocate { caller: None, bytes, count, tried: Vec::new() };
                    self.resume_exchange(rack, job)?;
                }
                (SENT, _) => {
                    // The outbox may still hold objects that the record holds.
                    self.strike_everywhere(&addrs);
                    let job = Job::Free { owner: None, release: None, addrs };
                    self.resume_exchange(rack, job)?;
                }
                (MOVED, _) => self.resume_moved(rack, addrs)?,
                (RECEIVED, _) => {
                    let unwanted: Vec<GlobalAddr> =
                        addrs.into_iter().filter(|addr| !self.is_held(*addr)).collect();
                    self.send_home(rack, unwanted)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn resume_exchange(&mut self, rack: RackId, job: Job) -> anyhow::Result<()> {
        tracing::info!("taking up an exchange with {rack}");
        let deadline = self.exchange_deadline();
        self.exchanges.lines.entry(rack).or_default().active = Some(Active { job, deadline });
        self.send_exchange(rack)
    }

    pub(super) fn strike_everywhere(&self, addrs: &[GlobalAddr]) {
        for slot in self.clients.all.values().flat_map(|client| client.threads()) {
            strike(slot, |addr| addrs.contains(&addr));
        }
    }

    fn is_held(&self, addr: GlobalAddr) -> bool {
        self.clients
            .all
            .values()
            .flat_map(|client| client.threads())
            .flat_map(crate::data_plane::clients::object_cells)
            .any(|cell| cell.load(Ordering::Relaxed) == addr.raw())
    }
}
