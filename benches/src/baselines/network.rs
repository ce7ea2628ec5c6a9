//! A home and compute nodes on the fabric that rackpool uses. The home owns memory; a compute node
//! has one-sided operations on it, and messages that a thread of the home answers.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, RegionId, RemoteRegion, Transfer,
    WorkRequest,
};
use rackpool_model::{Incarnation, RackId};

use super::{Setting, pin_answering};
use crate::fabric_memory::{Maps, memory};

/// Bytes of the compute node's buffer: half of it for operations that are waited for, half for a
/// write that is not.
const BUFFER: usize = 64 << 10;
const POSTED_AT: u64 = BUFFER as u64 / 2;
/// Ids of operations.
const AWAITED: u64 = 1;
const POSTED: u64 = 2;
/// What new memory is filled with.
static ZEROES: [u8; 1 << 20] = [0; 1 << 20];
const TIMEOUT: Duration = Duration::from_secs(20);
/// Polls without an event after which a thread lets others have its core, if it may not spin.
const POLLS: u32 = 32;

/// What the home answers to a message: bytes of a reply; none if there is no reply.
pub(super) type Handler = Box<dyn FnMut(&dyn MemoryRegion, &[u8]) -> Vec<u8> + Send>;

/// The owner of memory, with a thread that answers messages.
pub(super) struct Home {
    address: String,
    folder: tempfile::TempDir,
    /// The number of the next node that connects.
    next: AtomicU16,
    latency: Duration,
    spins: bool,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Home {
    /// Starts a home with `bytes` bytes of memory, which are zero.
    fn start(bytes: u64, setting: &Setting, mut handler: Handler) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (fd, frames) = memory(bytes)?;
        for start in (0..bytes).step_by(ZEROES.len()) {
            let len = usize::try_from(bytes - start)?.min(ZEROES.len());
            frames.write(start, &ZEROES[..len])?;
        }
        let listen = folder.path().join("home.sock");
        let mut options = EmulatedOptions::new(RackId(0), Incarnation(1), listen, Arc::new(Maps));
        options.exports = vec![ExportedRegion { fd, len: bytes }];
        options.latency = setting.latency;
        let mut fabric = EmulatedFabric::new(options)?;
        fabric.register(Arc::clone(&frames));
        let address = fabric.address();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let spins = setting.spins;
        let thread = std::thread::Builder::new().name("home".into()).spawn(move || {
            pin_answering(spins);
            serve(&mut fabric, &*frames, &mut handler, &told, spins);
        })?;
        Ok(Self {
            address,
            folder,
            next: AtomicU16::new(1),
            latency: setting.latency,
            spins: setting.spins,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Starts the homes of a system, with `bytes` bytes each.
    pub(super) fn all(
        bytes: u64,
        setting: &Setting,
        handler: impl Fn() -> Handler,
    ) -> anyhow::Result<Vec<Self>> {
        (0..setting.homes).map(|_| Self::start(bytes, setting, handler())).collect()
    }

    /// Connects a compute node.
    pub(super) fn connect(&self) -> anyhow::Result<Network> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let listen = self.folder.path().join(format!("node-{number}.sock"));
        let (fd, buffer) = memory(BUFFER as u64)?;
        let mut options =
            EmulatedOptions::new(RackId(number), Incarnation(1), listen, Arc::new(Maps));
        options.exports = vec![ExportedRegion { fd, len: BUFFER as u64 }];
        options.latency = self.latency;
        let mut fabric: Box<dyn Fabric> = Box::new(EmulatedFabric::new(options)?);
        let buffer_id = fabric.register(Arc::clone(&buffer));
        let endpoint = fabric.connect(&self.address)?;
        let mut network = Network {
            fabric,
            endpoint,
            buffer,
            buffer_id,
            events: Vec::new(),
            replies: Vec::new(),
            is_reading: false,
            is_writing: false,
            spins: self.spins,
        };
        network.wait(|event| matches!(event, Event::Connected { .. }))?;
        Ok(network)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // A panic of the home has been printed.
            let _ = thread.join();
        }
    }
}

/// A compute node's end of a connection to a home.
pub(super) struct Network {
    fabric: Box<dyn Fabric>,
    endpoint: EndpointId,
    buffer: Arc<dyn MemoryRegion>,
    buffer_id: RegionId,
    events: Vec<Event>,
    /// Replies that came and were not taken yet.
    replies: Vec<Vec<u8>>,
    /// Whether a read is under way, and a write that nobody waits for.
    is_reading: bool,
    is_writing: bool,
    spins: bool,
}

impl Network {
    /// Reads bytes of the home.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        self.post_read(offset, into.len())?;
        self.complete_read(into)
    }

    /// Posts a read, at most one at a time.
    pub(super) fn post_read(&mut self, offset: u64, len: usize) -> anyhow::Result<()> {
        let operation = Operation::Read(self.transfer(0, offset, len)?);
        self.is_reading = true;
        self.post(AWAITED, operation)
    }

    /// Waits for the read that was posted.
    pub(super) fn complete_read(&mut self, into: &mut [u8]) -> anyhow::Result<()> {
        // It may be complete already: other waits take in its completion, too.
        if self.is_reading {
            self.completion(AWAITED)?;
        }
        self.buffer.read(0, into)?;
        Ok(())
    }

    /// Writes bytes of the home, at most half of the buffer, and does not wait until they are
    /// there.
    pub(super) fn post_write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        if self.is_writing {
            self.completion(POSTED)?;
        }
        self.buffer.write(POSTED_AT, from)?;
        let operation = Operation::Write(self.transfer(POSTED_AT, offset, from.len())?);
        self.is_writing = true;
        self.post(POSTED, operation)
    }

    /// Sends a request and waits for the reply.
    pub(super) fn call(&mut self, request: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        self.send(request)?;
        self.reply()
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: Vec<u8>) -> anyhow::Result<()> {
        let sent = self.fabric.send(self.endpoint, request);
        sent.map_err(|unsent| unsent.error)?;
        self.fabric.flush(self.endpoint);
        Ok(())
    }

    /// Waits for the next reply; replies come in the order of their requests.
    pub(super) fn reply(&mut self) -> anyhow::Result<Vec<u8>> {
        if self.replies.is_empty() {
            self.wait(|event| matches!(event, Event::Message { .. }))?;
        }
        Ok(self.replies.remove(0))
    }

    fn transfer(&self, local_offset: u64, offset: u64, len: usize) -> anyhow::Result<Transfer> {
        Ok(Transfer {
            local: self.buffer_id,
            local_offset,
            remote: RemoteRegion::FRAMES,
            remote_offset: offset,
            len: u32::try_from(len)?,
        })
    }

    fn post(&mut self, id: u64, operation: Operation) -> anyhow::Result<()> {
        self.fabric.post(self.endpoint, &[WorkRequest { id, operation }])?;
        self.fabric.flush(self.endpoint);
        Ok(())
    }

    fn completion(&mut self, wanted: u64) -> anyhow::Result<()> {
        self.wait(|event| matches!(event, Event::Completed { id, .. } if *id == wanted))
    }

    fn wait(&mut self, wanted: impl Fn(&Event) -> bool) -> anyhow::Result<()> {
        let (mut polls, mut start) = (0_u32, None);
        loop {
            self.fabric.poll(&mut self.events);
            let mut is_there = false;
            for event in self.events.drain(..) {
                is_there |= wanted(&event);
                match event {
                    Event::Message { bytes, .. } => self.replies.push(bytes),
                    Event::Completed { id, result, .. } => {
                        result?;
                        self.is_reading &= id != AWAITED;
                        self.is_writing &= id != POSTED;
                    }
                    Event::ConnectFailed { error, .. } => return Err(error.into()),
                    Event::Disconnected { reason, .. } => bail!("the home is gone: {reason}"),
                    _ => {}
                }
            }
            if is_there {
                return Ok(());
            }
            polls = polls.wrapping_add(1);
            if !self.spins && polls.is_multiple_of(POLLS) {
                std::thread::yield_now();
            }
            // The clock is read only when the wait is a long one.
            if polls.is_multiple_of(1 << 16) {
                let start = *start.get_or_insert_with(Instant::now);
                ensure!(start.elapsed() < TIMEOUT, "the home does not answer");
            }
        }
    }
}

/// What a thread does that polls and has found nothing: it polls again, and yields its core before
/// unless it may spin. After a while it sleeps, so that it takes nothing from what is measured
/// then.
#[derive(Debug)]
pub(super) struct Idle {
    polls: u32,
    spins: bool,
}

impl Idle {
    const POLLS: u32 = 20_000;
    const SLEEP: Duration = Duration::from_micros(200);

    pub(super) const fn new(spins: bool) -> Self {
        Self { polls: 0, spins }
    }

    /// There was work.
    pub(super) const fn worked(&mut self) {
        self.polls = 0;
    }

    /// There was none.
    pub(super) fn wait(&mut self) {
        self.polls = self.polls.saturating_add(1);
        if self.polls > Self::POLLS {
            std::thread::sleep(Self::SLEEP);
        } else if self.spins {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

/// The home's loop.
fn serve(
    fabric: &mut EmulatedFabric,
    frames: &dyn MemoryRegion,
    handler: &mut Handler,
    stop: &AtomicBool,
    spins: bool,
) {
    let (mut events, mut idle) = (Vec::new(), Idle::new(spins));
    while !stop.load(Ordering::Relaxed) {
        fabric.poll(&mut events);
        if events.is_empty() {
            idle.wait();
        } else {
            idle.worked();
        }
        for event in events.drain(..) {
            let Event::Message { endpoint, bytes } = event else { continue };
            let reply = handler(frames, &bytes);
            if !reply.is_empty() {
                fabric.send(endpoint, reply).expect("few are under way");
                fabric.flush(endpoint);
            }
        }
    }
}

/// A request of 16 B (kind, offset, length), and bytes.
pub(super) fn request(kind: u8, offset: u64, len: usize, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(16 + bytes.len());
    message.extend_from_slice(&(offset << 8 | u64::from(kind)).to_le_bytes());
    message.extend_from_slice(&(len as u64).to_le_bytes());
    message.extend_from_slice(bytes);
    message
}

/// The parts of a [`request`].
pub(super) fn parse_request(message: &[u8]) -> anyhow::Result<(u8, u64, usize, &[u8])> {
    let (head, bytes) = message.split_at_checked(16).context("a short message")?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    };
    Ok((word(0).to_le_bytes()[0], word(0) >> 8, usize::try_from(word(8))?, bytes))
}
