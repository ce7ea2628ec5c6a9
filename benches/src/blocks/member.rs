//! A member of a multicast, on a thread of its own.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, RegionId, RemoteRegion, WorkRequest,
};
use rackpool_model::{Incarnation, RackId};
use rackpool_proto::multicast::schedule::{Shape, Transfer};

use super::{BLOCK, BYTES, GBPS};
use crate::fabric_memory::{Maps, memory};

const TIMEOUT: Duration = Duration::from_secs(60);
/// After the blocks: a word for each block, 1 once it is there, and a word into which a receiver
/// reads one.
const WORDS: u64 = BYTES;
const FOUND: u64 = WORDS + BYTES / BLOCK * 8;
const MEMORY: u64 = BYTES + (1 << 20);
/// Blocks for which a receiver is ready at the same time: while one comes, its sender learns that
/// the next may.
const READY: usize = 2;
/// Pauses between looks at a word that is 0, as in casts.
const LOOKS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// Ids of work requests.
const LOOK: u64 = 1;
const GET: u64 = 2;
const PUT: u64 = 3;

/// How blocks are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// The receiver reads a word of its source, then the block.
    Pull,
    /// The receiver says that it is ready, the sender writes the block, and a message follows.
    Push,
}

/// A member with its part of the schedule.
pub(super) struct Member {
    rank: u16,
    fabric: EmulatedFabric,
    memory: Arc<dyn MemoryRegion>,
    region: RegionId,
    /// Endpoints, by rank; its own is none.
    endpoints: Vec<Option<EndpointId>>,
    events: Vec<Event>,
    has: Vec<bool>,
    /// What it has still to receive, in order, and to send.
    receives: VecDeque<Transfer>,
    sends: VecDeque<Transfer>,
    /// Pull: whether a look or a read of a block is under way, and when the next look is due.
    is_looking: bool,
    is_getting: bool,
    found: bool,
    look_at: Instant,
    pause: Duration,
    /// Push: receives for which it has said that it is ready; blocks for which others are; whether
    /// a write is under way.
    told: usize,
    ready: Vec<(u16, u32)>,
    is_putting: bool,
}

impl Member {
    /// A member that is not connected yet. Rank 0 has all blocks.
    pub(super) fn new(rank: u16, shape: &Shape, folder: &Path) -> anyhow::Result<Self> {
        let (fd, memory) = memory(MEMORY)?;
        let listen = folder.join(format!("{rank}.sock"));
        let mut options =
            EmulatedOptions::new(RackId(rank), Incarnation(1), listen, Arc::new(Maps));
        options.bandwidth_gbps = GBPS;
        options.exports = vec![ExportedRegion { fd, len: MEMORY }];
        let mut fabric = EmulatedFabric::new(options)?;
        let region = fabric.register(Arc::clone(&memory));
        let is_root = rank == 0;
        for block in 0..shape.blocks() {
            memory.store(word(block), u64::from(is_root))?;
        }
        Ok(Self {
            rank,
            fabric,
            memory,
            region,
            endpoints: vec![None; shape.members().into()],
            events: Vec::new(),
            has: vec![is_root; shape.blocks() as usize],
            receives: shape.receives(rank).into(),
            sends: shape.transfers().into_iter().filter(|sent| sent.from == rank).collect(),
            is_looking: false,
            is_getting: false,
            found: false,
            look_at: Instant::now(),
            pause: LOOKS.0,
            told: 0,
            ready: Vec::new(),
            is_putting: false,
        })
    }

    pub(super) fn address(&self) -> String {
        self.fabric.address()
    }

    /// Connects to the members of higher ranks, and waits for those of lower ones.
    pub(super) fn connect(&mut self, addresses: &[String]) -> anyhow::Result<()> {
        for address in addresses.iter().skip(usize::from(self.rank) + 1) {
            self.fabric.connect(address)?;
        }
        let began = Instant::now();
        while self.endpoints.iter().flatten().count() + 1 < addresses.len() {
            self.poll()?;
            ensure!(began.elapsed() < TIMEOUT, "the members do not connect");
        }
        Ok(())
    }

    /// Receives and sends until both are done, and serves the others until all have `ended`.
    pub(super) fn run(&mut self, transport: Transport, ended: &AtomicUsize) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut has_ended = false;
        while ended.load(Ordering::Acquire) < self.endpoints.len() {
            match transport {
                Transport::Pull => self.pull()?,
                Transport::Push => self.push()?,
            }
            self.poll()?;
            let sends = transport == Transport::Push && (self.is_putting || !self.sends.is_empty());
            if !has_ended && self.receives.is_empty() && !sends {
                has_ended = true;
                ended.fetch_add(1, Ordering::Release);
            }
            ensure!(began.elapsed() < TIMEOUT, "the blocks do not come");
        }
        Ok(())
    }

    fn pull(&mut self) -> anyhow::Result<()> {
        let Some(next) = self.receives.front().copied() else { return Ok(()) };
        let Transfer { from, block, .. } = next;
        if self.found && !self.is_getting {
            (self.found, self.is_getting) = (false, true);
            self.post(
                from,
                GET,
                Operation::Read(place(u64::from(block.0) * BLOCK, None, BLOCK, self.region)),
            )?;
        }
        // The look for the block after this one goes on meanwhile.
        let wanted = if self.is_getting { self.receives.get(1) } else { self.receives.front() };
        let Some(wanted) = wanted.copied() else { return Ok(()) };
        if !self.found && !self.is_looking && Instant::now() >= self.look_at {
            self.is_looking = true;
            let look = place(word(wanted.block.0), Some(FOUND), 8, self.region);
            self.post(wanted.from, LOOK, Operation::Read(look))?;
        }
        Ok(())
    }

    fn push(&mut self) -> anyhow::Result<()> {
        while self.told < READY.min(self.receives.len()) {
            let Transfer { from, block, .. } = self.receives[self.told];
            self.told += 1;
            self.send(from, 0, block.0)?;
        }
        let Some(next) = self.sends.front().copied() else { return Ok(()) };
        let Transfer { to, block, .. } = next;
        let ready = self.ready.iter().position(|ready| *ready == (to, block.0));
        let Some(ready) = ready.filter(|_| self.has[block.0 as usize] && !self.is_putting) else {
            return Ok(());
        };
        self.ready.swap_remove(ready);
        self.sends.pop_front();
        self.is_putting = true;
        self.post(
            to,
            PUT,
            Operation::Write(place(u64::from(block.0) * BLOCK, None, BLOCK, self.region)),
        )?;
        // It arrives after the bytes.
        self.send(to, 1, block.0)
    }

    fn received(&mut self) -> anyhow::Result<()> {
        let done = self.receives.pop_front().context("a block that is not awaited")?;
        self.has[done.block.0 as usize] = true;
        self.memory.store(word(done.block.0), 1)?;
        Ok(())
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events);
        if events.is_empty() {
            std::thread::yield_now();
        }
        for event in events.drain(..) {
            self.handle(event)?;
        }
        self.events = events;
        Ok(())
    }

    fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Accepted { endpoint, peer, .. } | Event::Connected { endpoint, peer, .. } => {
                self.endpoints[usize::from(peer.0)] = Some(endpoint);
            }
            Event::Completed { id, result, .. } => {
                result?;
                match id {
                    LOOK => {
                        self.is_looking = false;
                        self.found = self.memory.load(FOUND)? == 1;
                        self.pause =
                            if self.found { LOOKS.0 } else { (self.pause * 2).min(LOOKS.1) };
                        let pause = if self.found { Duration::ZERO } else { self.pause };
                        self.look_at = Instant::now() + pause;
                    }
                    GET => {
                        self.is_getting = false;
                        self.received()?;
                    }
                    _ => self.is_putting = false,
                }
            }
            Event::Message { endpoint, bytes } => {
                let [kind, a, b, c, d] = bytes[..] else { bail!("a message of another kind") };
                let block = u32::from_le_bytes([a, b, c, d]);
                if kind == 0 {
                    let from = self.endpoints.iter().position(|known| *known == Some(endpoint));
                    self.ready.push((u16::try_from(from.context("a member")?)?, block));
                } else {
                    self.told -= 1;
                    self.received()?;
                }
            }
            Event::Disconnected { .. } => {}
            event => bail!("{event:?}"),
        }
        Ok(())
    }

    fn endpoint(&self, rank: u16) -> anyhow::Result<EndpointId> {
        self.endpoints[usize::from(rank)].context("an endpoint")
    }

    fn post(&mut self, rank: u16, id: u64, operation: Operation) -> anyhow::Result<()> {
        let endpoint = self.endpoint(rank)?;
        self.fabric.post(endpoint, &[WorkRequest { id, operation }])?;
        self.fabric.flush(endpoint);
        Ok(())
    }

    fn send(&mut self, rank: u16, kind: u8, block: u32) -> anyhow::Result<()> {
        let endpoint = self.endpoint(rank)?;
        let [a, b, c, d] = block.to_le_bytes();
        let sent = self.fabric.send(endpoint, vec![kind, a, b, c, d]);
        sent.map_err(|unsent| anyhow::anyhow!("a message was refused: {unsent:?}"))?;
        self.fabric.flush(endpoint);
        Ok(())
    }
}

/// The word of a block.
fn word(block: u32) -> u64 {
    WORDS + u64::from(block) * 8
}

/// A transfer between the same places of both memories, or to another one of this side's.
fn place(offset: u64, local: Option<u64>, len: u64, region: RegionId) -> rackpool_fabric::Transfer {
    rackpool_fabric::Transfer {
        local: region,
        local_offset: local.unwrap_or(offset),
        remote: RemoteRegion::FRAMES,
        remote_offset: offset,
        len: u32::try_from(len).unwrap_or(u32::MAX),
    }
}
