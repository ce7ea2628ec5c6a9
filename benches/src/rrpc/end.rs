//! Two racks: one sends requests and measures; the other answers on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_fabric::emulated::{EmulatedFabric, EmulatedOptions, ExportedRegion};
use rackpool_fabric::tcp::{self, TcpFabric};
use rackpool_fabric::{
    EndpointId, Event, Fabric, MemoryRegion, Operation, RegionId, RemoteRegion, Transfer,
};
use rackpool_model::{Incarnation, RackId};
use rackpool_rrpc::{
    Arena, Call, CallEvent, Data, InFlightLimits, Mode, Overdue, Place, RpcMetrics, Rrpc,
    Thresholds, Wants,
};
use rackpool_shm::host::HostFiles;

use super::raw;
use crate::cpu::pin_self;
use crate::fabric_memory::{Maps, memory};
use crate::measure::time_each;

/// Bytes of memory from which the server answers.
const FRAMES: u64 = 8 << 20;
/// The largest measured data in bytes.
const LARGEST: u64 = 4 << 20;
/// More than any transfer here: modes are compared, not limits.
const LIMITS: InFlightLimits = InFlightLimits { reads: LARGEST, peer_writes: 4 * LARGEST };
const TIMEOUT: Duration = Duration::from_secs(20);

/// A measured fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Provider {
    Emulated,
    Tcp,
}

impl Provider {
    pub(super) const ALL: [Self; 2] = [Self::Emulated, Self::Tcp];
}

/// One rack.
pub(super) struct End {
    pub(super) fabric: Box<dyn Fabric>,
    pub(super) rrpc: Rrpc,
    pub(super) frames: Arc<dyn MemoryRegion>,
    pub(super) frames_region: RegionId,
    pub(super) endpoint: EndpointId,
    pub(super) events: Vec<Event>,
    /// Whether the fabric has threads of its own, which need a core too.
    has_threads: bool,
}

impl End {
    fn new(provider: Provider, rack: RackId, folder: &std::path::Path) -> anyhow::Result<Self> {
        let arena_bytes = Arena::bytes_for(HostFiles::here().device_share(None), LARGEST);
        let (frames_fd, frames) = memory(FRAMES)?;
        let (arena_fd, arena) = memory(arena_bytes)?;
        let mut fabric: Box<dyn Fabric> = match provider {
            Provider::Emulated => {
                let listen = folder.join(format!("rack-{}.sock", rack.0));
                let mut options =
                    EmulatedOptions::new(rack, Incarnation(1), listen, Arc::new(Maps));
                options.exports = vec![
                    ExportedRegion { fd: frames_fd, len: FRAMES },
                    ExportedRegion { fd: arena_fd, len: arena_bytes },
                ];
                Box::new(EmulatedFabric::new(options)?)
            }
            Provider::Tcp => {
                let mut options = tcp::TcpOptions::new(rack, Incarnation(1));
                options.exports = vec![Arc::clone(&frames), Arc::clone(&arena)];
                Box::new(TcpFabric::new(options)?)
            }
        };
        let frames_region = fabric.register(Arc::clone(&frames));
        let rrpc = Rrpc::new(&mut *fabric, arena, RemoteRegion(1), arena_bytes, LIMITS);
        let endpoint = EndpointId(u64::MAX);
        let has_threads = matches!(provider, Provider::Tcp);
        Ok(Self { fabric, rrpc, frames, frames_region, endpoint, events: Vec::new(), has_threads })
    }

    /// Polls the fabric once, and yields to its threads when there are no events.
    pub(super) fn look(&mut self) {
        self.fabric.poll(&mut self.events);
        if self.events.is_empty() && self.has_threads {
            std::thread::yield_now();
        }
    }

    /// Polls the fabric and processes the events.
    pub(super) fn poll(&mut self) {
        self.look();
        if self.events.is_empty() {
            return;
        }
        let now = Instant::now();
        for event in self.events.drain(..) {
            if let Event::Accepted { endpoint, .. } | Event::Connected { endpoint, .. } = &event {
                self.endpoint = *endpoint;
            }
            self.rrpc.take_in(now, event);
        }
    }

    fn answer(&mut self) {
        while let Some(call_events) = self.rrpc.call_events() {
            let CallEvent::Asked { ask, body } = call_events else { continue };
            let len = body.first_chunk().map_or(0, |len| u32::from_le_bytes(*len));
            let export = RemoteRegion::FRAMES;
            let place = Place { region: self.frames_region, export, offset: 0, len };
            let sent = self.rrpc.answer_from(ask, &[], place, &*self.frames);
            sent.expect("the frames are larger than what is asked for");
        }
    }

    /// Answers requests and raw messages until told to stop.
    fn serve(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.look();
            if self.events.is_empty() && self.rrpc.unposted() == 0 {
                continue;
            }
            let now = Instant::now();
            for event in std::mem::take(&mut self.events) {
                if !raw::answer(self, &event) {
                    self.rrpc.take_in(now, event);
                }
            }
            self.answer();
            self.rrpc.flush(&mut *self.fabric);
        }
    }
}

/// The rack that measures.
pub(crate) struct Caller {
    pub(super) end: End,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    folder: std::path::PathBuf,
    /// The id of the last transfer.
    next: u64,
}

impl Caller {
    /// Starts two connected racks on a core each; the modes are measured.
    pub(crate) fn start(provider: Provider) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("rackpool-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        // A rack's threads, including its fabric's, inherit the core of the thread that creates it.
        pin_self(1)?;
        let mut other = End::new(provider, RackId(1), &folder)?;
        pin_self(0)?;
        let mut end = End::new(provider, RackId(0), &folder)?;
        let address = other.fabric.address();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let server = std::thread::Builder::new().spawn(move || {
            pin_self(1).expect("core 1");
            other.serve(&told);
        })?;
        end.fabric.connect(&address)?;
        let mut caller = Self { end, stop, server: Some(server), folder, next: 0 };
        let start = Instant::now();
        loop {
            caller.end.poll();
            if let Some(CallEvent::Calibrated { .. }) = caller.end.rrpc.call_events() {
                return Ok(caller);
            }
            caller.end.rrpc.flush(&mut *caller.end.fabric);
            anyhow::ensure!(start.elapsed() < TIMEOUT, "the racks do not connect");
        }
    }

    pub(super) fn description(&self) -> String {
        self.end.fabric.description()
    }

    pub(super) fn thresholds(&self) -> anyhow::Result<Thresholds> {
        self.end.rrpc.thresholds(self.end.endpoint).context("an endpoint")
    }

    /// The mode chosen for a request of `len` bytes without a given mode.
    pub(super) fn chosen(&mut self, len: u32) -> anyhow::Result<Mode> {
        let taken = |metrics: RpcMetrics| [metrics.pure, metrics.then_one_sided, metrics.zero_copy];
        let before = taken(self.end.rrpc.metrics());
        self.call(None, len);
        let after = taken(self.end.rrpc.metrics());
        let more = before.iter().zip(&after).position(|(before, after)| after > before);
        let modes = [Mode::Pure, Mode::ThenOneSided, Mode::ZeroCopy];
        Ok(modes[more.context("a request is counted in the mode that it took")?])
    }

    /// Nanoseconds of a request for `len` bytes.
    pub(crate) fn calls(&mut self, mode: Option<Mode>, len: u32, count: usize) -> f64 {
        time_each(count, || {
            for _ in 0..count {
                self.call(mode, len);
            }
        })
    }

    fn call(&mut self, mode: Option<Mode>, len: u32) {
        let End { fabric, rrpc, endpoint, .. } = &mut self.end;
        let body = len.to_le_bytes();
        let deadline = Instant::now() + TIMEOUT;
        let wants = Wants::Exactly(len);
        let call = Call { wants, mode, ..Call::new(&body, deadline, Overdue::GiveUp) };
        rrpc.call(*endpoint, &call).expect("there is room for one request");
        rrpc.flush(&mut **fabric);
        loop {
            self.end.poll();
            while let Some(call_events) = self.end.rrpc.call_events() {
                match call_events {
                    CallEvent::Answered { data, .. } => {
                        assert_eq!(data.len(), u64::from(len));
                        if let Data::Arena { block, .. } = data {
                            self.end.rrpc.give_back(block);
                        }
                        // Sends the release of the place that was read.
                        self.end.rrpc.flush(&mut *self.end.fabric);
                        return;
                    }
                    CallEvent::Failed { failure, .. } => panic!("{failure}"),
                    _ => {}
                }
            }
            self.end.rrpc.flush(&mut *self.end.fabric);
        }
    }

    pub(super) fn operation(&self, is_read: bool, len: u32) -> Operation {
        let transfer = Transfer {
            local: self.end.frames_region,
            local_offset: 0,
            remote: RemoteRegion::FRAMES,
            remote_offset: 0,
            len,
        };
        if is_read { Operation::Read(transfer) } else { Operation::Write(transfer) }
    }

    /// Nanoseconds of a one-sided operation on a known place.
    pub(super) fn transfers(&mut self, is_read: bool, len: u32, count: usize) -> f64 {
        let operation = self.operation(is_read, len);
        time_each(count, || {
            for _ in 0..count {
                self.transfer(operation);
            }
        })
    }

    fn transfer(&mut self, operation: Operation) {
        self.next += 1;
        let End { fabric, rrpc, endpoint, .. } = &mut self.end;
        rrpc.transfer(*endpoint, self.next, operation).expect("it is connected");
        rrpc.flush(&mut **fabric);
        loop {
            self.end.poll();
            match self.end.rrpc.call_events() {
                Some(CallEvent::Transferred { result, .. }) => {
                    return result.expect("a good place");
                }
                _ => self.end.rrpc.flush(&mut *self.end.fabric),
            }
        }
    }

    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            server.join().map_err(|_| anyhow::anyhow!("the answering rack panicked"))?;
        }
        std::fs::remove_dir_all(&self.folder)?;
        Ok(())
    }
}
