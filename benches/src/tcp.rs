//! The TCP fabric compared with plain sockets, and with UCX if `ucx_perftest` is installed (Debian:
//! ucx-utils). The requester has core 0, the server core 1, and neither sleeps.

mod bare;
mod ucx;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rackpool_fabric::tcp::{TcpFabric, TcpOptions};
use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, OutOfRange, RegionId, RemoteRegion,
    Transfer, WorkRequest,
};
use rackpool_model::{Incarnation, RackId};
use rackpool_shm::Mapping;
use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

use self::bare::Bare;
use crate::cpu::pin_self;
use crate::measure::{in_turn, median};
use crate::table::Table;

const SMALL: u32 = 64;
const LARGE: u32 = 1 << 20;
const ROUND_TRIPS: usize = 2000;
const LARGE_READS: u64 = 48;
/// Large reads in flight together.
const AHEAD: u64 = 4;
const MEMORY: u64 = 16 << 20;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    table.section("the fabric over TCP, requester and server on one core each");
    pin_self(1)?;
    let mut target = fabric(1)?;
    let mut bare = Bare::start()?;
    pin_self(0)?;
    let mut reader = Reader::connect(&mut target)?;
    let trip = in_turn(
        || reader.round_trips().expect("an open endpoint"),
        || bare.round_trips().expect("an open socket"),
    );
    let detail = format!("p50 {:.1} us against {:.1} us", trip.ours, trip.peer);
    table.at_most("64 B read / 64 B ping-pong of two sockets", trip.ratio, 1.3, "x", &detail);
    let bulk = in_turn(
        || reader.bandwidth().expect("an open endpoint"),
        || bare.bandwidth().expect("an open socket"),
    );
    let detail = format!("{:.2} GB/s against {:.2} GB/s", bulk.ours, bulk.peer);
    table.at_least("1 MiB reads / copy through a socket", bulk.ratio, 0.8, "x", &detail);
    ucx::run(table, &mut reader)
}

/// A mapping as a memory region.
struct Memory(Mapping);

impl Memory {
    fn new() -> anyhow::Result<Self> {
        let file: OwnedFd = memfd_create(c"rackpool-bench", MFdFlags::MFD_CLOEXEC)?;
        nix::unistd::ftruncate(&file, i64::try_from(MEMORY)?)?;
        let mapping = Mapping::new(&file, MEMORY)?;
        mapping.populate()?;
        Ok(Self(mapping))
    }

    const fn outside(offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, region_len: MEMORY }
    }

    fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        self.0.view(offset).map_err(|_| Self::outside(offset, 8))
    }
}

impl MemoryRegion for Memory {
    fn len(&self) -> u64 {
        MEMORY
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.read(offset, into).map_err(|_| Self::outside(offset, into.len() as u64))
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.write(offset, from).map_err(|_| Self::outside(offset, from.len() as u64))
    }
    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }
    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.word(offset)?.store(value, Ordering::Release);
        Ok(())
    }
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        let cell = self.word(offset)?;
        let found = cell.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|other| other))
    }
    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A fabric whose threads run on the caller's core.
fn fabric(rack: u16) -> anyhow::Result<Box<TcpFabric>> {
    let mut options = TcpOptions::new(RackId(rack), Incarnation(1));
    options.exports = vec![Arc::new(Memory::new()?)];
    Ok(Box::new(TcpFabric::new(options)?))
}

/// A rack that reads another rack's memory.
struct Reader {
    fabric: Box<TcpFabric>,
    endpoint: EndpointId,
    own: RegionId,
    events: Vec<Event>,
}

impl Reader {
    /// Connects to a fabric, which need not be polled afterwards.
    fn connect(target: &mut TcpFabric) -> anyhow::Result<Self> {
        let mut fabric = fabric(2)?;
        let own = fabric.register(Arc::new(Memory::new()?));
        let endpoint = fabric.connect(&target.address())?;
        let mut events = Vec::new();
        while events.is_empty() {
            fabric.poll(&mut events);
        }
        if !matches!(events[..], [Event::Connected { .. }]) {
            bail!("no connection: {events:?}");
        }
        events.clear();
        target.poll(&mut events);
        events.clear();
        Ok(Self { fabric, endpoint, own, events })
    }

    fn post(&mut self, id: u64, len: u32) -> anyhow::Result<()> {
        let at = id * u64::from(len) % MEMORY;
        let transfer = Transfer {
            local: self.own,
            local_offset: at,
            remote: RemoteRegion::FRAMES,
            remote_offset: at,
            len,
        };
        let request = WorkRequest { id, operation: Operation::Read(transfer) };
        Ok(self.fabric.post(self.endpoint, &[request])?)
    }

    /// Polls until operations complete; returns their number.
    fn wait(&mut self) -> anyhow::Result<u64> {
        self.fabric.flush(self.endpoint);
        while self.events.is_empty() {
            self.fabric.poll(&mut self.events);
        }
        let mut done = 0;
        for event in self.events.drain(..) {
            let Event::Completed { result, .. } = event else { bail!("{event:?}") };
            result?;
            done += 1;
        }
        Ok(done)
    }

    /// Median time of a small read in microseconds.
    fn round_trips(&mut self) -> anyhow::Result<f64> {
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for id in 0..ROUND_TRIPS {
            let start = Instant::now();
            self.post(id as u64, SMALL)?;
            self.wait()?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(median(times))
    }

    /// GB/s of large reads.
    fn bandwidth(&mut self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < LARGE_READS {
            while posted < LARGE_READS.min(done + AHEAD) {
                self.post(posted, LARGE)?;
                posted += 1;
            }
            done += self.wait()?;
        }
        Ok(gigabytes_per_second(start, LARGE_READS))
    }
}

/// The rate of `pieces` large reads since `start`.
fn gigabytes_per_second(start: Instant, pieces: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
    let bytes = (pieces * u64::from(LARGE)) as f64;
    bytes / start.elapsed().as_secs_f64() / 1e9
}

/// Fills the buffer from a socket without sleeping.
fn receive(mut socket: &std::net::TcpStream, mut into: &mut [u8]) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Read};
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => bail!("the other socket was closed"),
            Ok(read) => into = into.get_mut(read..).context("a read inside the buffer")?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all bytes to a socket without sleeping.
fn send(mut socket: &std::net::TcpStream, mut from: &[u8]) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write};
    while !from.is_empty() {
        match socket.write(from) {
            Ok(sent) => from = from.get(sent..).context("a write inside the buffer")?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
