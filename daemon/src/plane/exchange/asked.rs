//! The asking side.

use std::time::Instant;

use rackpool_model::{GlobalAddr, RackId};
use rackpool_shm::OutOfBounds;
use rackpool_shm::metadata::{PEER_BATCH, PeerLog};
use rackpool_sync::atomic::Ordering;
use rackpool_wire::peer::{PeerReply, PeerRequest};
use rackpool_wire::rack::RackAnswer;

use super::{Active, Job};
use crate::plane::DataPlane;
use crate::plane::clients::strike;
use crate::plane::peers::Purpose;

/// Nothing is under way.
const IDLE: u64 = 0;
/// The request may have been sent.
const SENT: u64 = 1;
/// The objects have come and are being handed over.
const RECEIVED: u64 = 2;

const ALLOCATE: u64 = 1;
const FREE: u64 = 2;

fn addrs_of(log: &PeerLog) -> Vec<GlobalAddr> {
    let count = usize::try_from(log.count.load(Ordering::Acquire)).unwrap_or(PEER_BATCH);
    log.addrs
        .iter()
        .take(count)
        .map(|cell| GlobalAddr::from_raw(cell.load(Ordering::Relaxed)))
        .collect()
}

fn set_addrs(log: &PeerLog, addrs: &[GlobalAddr]) {
    for (cell, addr) in log.addrs.iter().zip(addrs) {
        cell.store(addr.raw(), Ordering::Relaxed);
    }
    log.count.store(addrs.len().min(PEER_BATCH) as u64, Ordering::Release);
}

impl DataPlane {
    fn asked_log(&self, rack: RackId) -> Result<&PeerLog, OutOfBounds> {
        Ok(&self.rack.metadata.peer(rack)?.asked)
    }

    /// Begins an exchange, or queues it behind the one under way.
    pub(in crate::plane) fn begin_exchange(
        &mut self,
        rack: RackId,
        job: Job,
    ) -> anyhow::Result<()> {
        let line = self.exchanges.lines.entry(rack).or_default();
        if line.active.is_some() {
            line.waiting.push_back(job);
            return Ok(());
        }
        let log = self.asked_log(rack)?;
        let sequence = log.sequence.load(Ordering::Relaxed) + 1;
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
        // The commit: from here on the record is the truth.
        log.state.store(SENT, Ordering::Release);
        if let Job::Free { client: Some((client, thread)), addrs, .. } = &job
            && let Some(slot) = self.clients.0.get(client).and_then(|c| c.thread(*thread))
        {
            strike(slot, addrs);
        }
        let deadline = Self::exchange_deadline();
        let line = self.exchanges.lines.entry(rack).or_default();
        line.active = Some(Active { job, deadline });
        self.send_exchange(rack)
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
        self.ask(rack, request, Purpose::Exchange, Self::exchange_deadline())
    }

    /// The other rack has answered.
    pub(in crate::plane) fn exchange_answered(
        &mut self,
        rack: RackId,
        reply: &PeerReply,
    ) -> anyhow::Result<()> {
        let active = self.exchanges.lines.get_mut(&rack).and_then(|line| line.active.take());
        let Some(Active { job, .. }) = active else { return Ok(()) };
        match (job, reply) {
            (Job::Allocate { caller, bytes, count, mut tried }, PeerReply::Allocated(addrs)) => {
                if addrs.is_empty() {
                    self.finish_exchange(rack)?;
                    tried.push(rack);
                    return match caller {
                        Some(caller) => self.refill_elsewhere(caller, bytes, count, tried),
                        None => Ok(()),
                    };
                }
                let log = self.asked_log(rack)?;
                set_addrs(log, addrs);
                log.state.store(RECEIVED, Ordering::Release);
                let unwanted = self.hand_over(caller, addrs);
                self.finish_exchange(rack)?;
                self.send_home(rack, unwanted)
            }
            (Job::Free { client, release, .. }, reply) => {
                let refused = match reply {
                    PeerReply::Freed { refused } => u64::from(*refused),
                    other => {
                        tracing::error!("{rack} answered a free with {other:?}");
                        0
                    }
                };
                if let Some((id, _)) = client {
                    if let Some(client) = self.clients.0.get_mut(&id) {
                        client.returning = client.returning.saturating_sub(1);
                    }
                    self.forget_if_returned(id);
                }
                self.job_done(release, refused);
                self.finish_exchange(rack)
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

    /// Puts objects into the caller's inbox; returns those that nobody takes.
    fn hand_over(
        &self,
        caller: Option<crate::plane::Caller>,
        addrs: &[GlobalAddr],
    ) -> Vec<GlobalAddr> {
        let waiting = caller.filter(|caller| self.clients.is_waiting(*caller));
        let slot = waiting.and_then(|c| self.client(c).and_then(|client| client.thread(c.thread)));
        let (Some(caller), Some(slot)) = (waiting, slot) else { return addrs.to_vec() };
        for (cell, addr) in slot.inbox.iter().zip(addrs) {
            cell.store(addr.raw(), Ordering::Release);
        }
        self.clients.finish(caller, RackAnswer::Done(addrs.len().min(slot.inbox.len()) as u64));
        Vec::new()
    }

    fn send_home(&mut self, rack: RackId, addrs: Vec<GlobalAddr>) -> anyhow::Result<()> {
        if addrs.is_empty() {
            return Ok(());
        }
        self.begin_exchange(rack, Job::Free { client: None, release: None, addrs })
    }

    fn finish_exchange(&mut self, rack: RackId) -> anyhow::Result<()> {
        self.asked_log(rack)?.state.store(IDLE, Ordering::Release);
        let next = self.exchanges.lines.get_mut(&rack).and_then(|line| line.waiting.pop_front());
        match next {
            Some(job) => self.begin_exchange(rack, job),
            None => Ok(()),
        }
    }

    /// Tells askers that have waited too long. Their exchange goes on: it must not be forgotten.
    pub(in crate::plane) fn drive_exchanges(&mut self, now: Instant) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        let mut releases = Vec::new();
        for (rack, line) in &mut self.exchanges.lines {
            let Some(active) = &mut line.active else { continue };
            if now < active.deadline {
                continue;
            }
            let jobs = std::iter::once(&mut active.job).chain(&mut line.waiting);
            for job in jobs {
                match job {
                    Job::Allocate { caller, .. } => {
                        answers.extend(caller.take().map(|c| (c, *rack)))
                    }
                    Job::Free { release, .. } => releases.extend(release.take()),
                }
            }
        }
        for (caller, _) in answers {
            let answer = self.out_of_memory();
            self.clients.finish(caller, answer);
        }
        for release in releases {
            // The objects are in the record and will go home: nothing is left for the caller.
            self.job_done(Some(release), 0);
        }
        Ok(())
    }

    /// Takes up the exchanges that an earlier daemon left. Called before anything is served, when
    /// all client files have been adopted.
    pub(crate) fn resume_exchanges(&mut self) -> anyhow::Result<()> {
        for rack in (0..rackpool_shm::metadata::MAX_RACKS).map(RackId) {
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
                    // The outbox may still hold what the record holds.
                    self.strike_everywhere(&addrs);
                    let job = Job::Free { client: None, release: None, addrs };
                    self.resume_exchange(rack, job)?;
                }
                (RECEIVED, _) => {
                    let unwanted: Vec<GlobalAddr> =
                        addrs.into_iter().filter(|addr| !self.is_held(*addr)).collect();
                    self.finish_exchange(rack)?;
                    self.send_home(rack, unwanted)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn resume_exchange(&mut self, rack: RackId, job: Job) -> anyhow::Result<()> {
        tracing::info!("taking up an exchange with {rack}");
        let deadline = Self::exchange_deadline();
        self.exchanges.lines.entry(rack).or_default().active = Some(Active { job, deadline });
        self.send_exchange(rack)
    }

    fn strike_everywhere(&self, addrs: &[GlobalAddr]) {
        for slot in self.clients.0.values().flat_map(|client| client.threads()) {
            strike(slot, addrs);
        }
    }

    fn is_held(&self, addr: GlobalAddr) -> bool {
        self.clients
            .0
            .values()
            .flat_map(|client| client.threads())
            .flat_map(crate::plane::clients::object_cells)
            .any(|cell| cell.load(Ordering::Relaxed) == addr.raw())
    }
}
