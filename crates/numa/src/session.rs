//! One measurement: a server, connections, and the threads that drive them, with one placement.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rackpool_fabric::emulated::NumaModel;
use rackpool_model::{FabricKind, RackId};
use rackpool_sync::atomic::Ordering;

use crate::background::Background;
use crate::connection::Connection;
use crate::fabrics::FabricChoice;
use crate::kv::{self, KeyValueClient};
use crate::measurement::{Recorded, Recorder};
use crate::memory::{Buffer, Slice, slices};
use crate::model::kv_request_ns;
use crate::one_sided::{Driver, OneSided};
use crate::server::{ServerPlan, ServerSignals};
use crate::threads::{Idle, StartGate, TIMEOUT, run_on};
use crate::topology::StudyNode;
use crate::{
    Configuration, Length, Load, Measurement, NodeChoice, Placement, Side, StudyError,
    StudyOptions, Workload,
};

const REGISTERED: &str = "the registered memory";
const CLIENTS: &str = "the client's memory";

/// A measurement to be made.
struct Session<'a> {
    options: &'a StudyOptions,
    configuration: &'a Configuration,
    placement: Placement,
    fabric: FabricChoice<'a>,
    idle: Idle,
}

/// A connection, what keeps it busy, and its counts.
struct Link {
    connection: Connection,
    driver: Box<dyn Driver>,
    recorder: Recorder,
}

/// Measures one configuration with one placement.
pub(crate) fn measure(
    options: &StudyOptions,
    configuration: &Configuration,
    placement: Placement,
) -> Result<Measurement, StudyError> {
    let folder = tempfile::tempdir().map_err(StudyError::system("create a temporary folder"))?;
    let session = Session::new(options, configuration, placement, folder.path());
    let recorded = session.run()?;
    let has_latency = configuration.loop_kind == crate::LoopKind::Closed;
    let dilation = options.model.map_or(1, |model| model.dilation);
    Ok(Measurement::combine(&recorded, has_latency, dilation))
}

impl<'a> Session<'a> {
    fn new(
        options: &'a StudyOptions,
        configuration: &'a Configuration,
        placement: Placement,
        folder: &'a Path,
    ) -> Self {
        let rdma_device = options.rdma_device.as_deref();
        let fabric = FabricChoice { kind: options.fabric, rdma_device, folder };
        let idle = idle(options, configuration, placement);
        Self { options, configuration, placement, fabric, idle }
    }

    fn node(&self, side: Side) -> Option<&'a StudyNode> {
        self.options.topology.as_ref().map(|topology| topology.node(side))
    }

    fn chosen(&self, choice: NodeChoice) -> Option<&'a StudyNode> {
        choice.side().and_then(|side| self.node(side))
    }

    /// The model of the server's rack, or of a client's.
    fn modelled(&self, is_server: bool) -> Option<NumaModel> {
        let model = self.options.model?;
        let workers = &self.configuration.workers;
        let (is_remote, writers) = if is_server {
            // Threads that only read take no line from the cache.
            let writers = if workers.write_percent > 0 { workers.threads } else { 0 };
            (self.placement.server == Side::Remote, writers)
        } else {
            (self.placement.client.memory == NodeChoice::Remote, 0)
        };
        Some(NumaModel { is_remote, writers, dilation: model.dilation })
    }

    fn server(&self) -> ServerPlan<'a> {
        let Configuration { workload, queue_pairs, ref load, .. } = *self.configuration;
        ServerPlan {
            fabric: self.fabric,
            modelled: self.modelled(true),
            workload,
            connections: queue_pairs,
            request_time: self.options.model.map(|model| {
                let ns = kv_request_ns(self.placement, load) * f64::from(model.dilation);
                Duration::from_secs_f64(ns / 1e9)
            }),
            card_cpus: cpus(self.node(Side::Local)),
            memory_cpus: cpus(self.node(self.placement.server)),
            idle: self.idle,
        }
    }

    fn run(&self) -> Result<Vec<Recorded>, StudyError> {
        let server = self.server();
        let bytes = server.memory_bytes(self.configuration.bytes);
        let node = self.node(self.placement.server);
        let memory = Buffer::new(bytes, node.map(|node| node.id))?;
        memory.check(REGISTERED)?;
        let background = self.background(&memory, bytes)?;
        let signals = ServerSignals::default();
        let recorded = std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let thread = scope.spawn(|| server.run(&memory, &signals, sender));
            let recorded = match receiver.recv_timeout(TIMEOUT) {
                Ok(address) => self.clients(&address, &signals),
                Err(_) => Err(StudyError::Timeout {
                    what: "starting the server",
                    seconds: TIMEOUT.as_secs(),
                }),
            };
            // SYNC: pairs with the load in `ServerPlan::run`.
            signals.stop.store(true, Ordering::Release);
            // The server's error is the cause of the clients' errors.
            thread.join().unwrap_or(Err(StudyError::Thread("the server")))?;
            recorded
        })?;
        background.finish()?;
        memory.check(REGISTERED)?;
        Ok(recorded)
    }

    /// Starts load and workers. A model has their effect without the threads.
    fn background(&self, memory: &Buffer, bytes: u64) -> Result<Background, StudyError> {
        let mut background = Background::new();
        if self.options.model.is_none() {
            let Load { node, .. } = self.configuration.load;
            background.load(&self.configuration.load, self.chosen(node))?;
            let node = self.node(self.placement.server);
            background.workers(&self.configuration.workers, node, &memory.mapping, bytes)?;
        }
        Ok(background)
    }

    /// Runs the client's threads, which poll their connections in turn.
    fn clients(&self, address: &str, signals: &ServerSignals) -> Result<Vec<Recorded>, StudyError> {
        let threads = self.options.client_threads.min(self.configuration.queue_pairs);
        let gate = StartGate::default();
        let all = slices(self.configuration.queue_pairs, self.configuration.bytes);
        let run = |thread: u32| {
            let own = (0..).zip(&all).filter(|(at, _)| at % threads == thread);
            let own: Vec<(u32, Slice)> = own.map(|(at, slice)| (at, *slice)).collect();
            let result = self.client(&own, address, (&gate, threads), signals);
            if result.is_err() {
                gate.fail();
            }
            result
        };
        let run = &run;
        let results = std::thread::scope(|scope| {
            let spawned: Vec<_> =
                (0..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or(Err(StudyError::Thread("a client")))
            };
            spawned.into_iter().map(join).collect::<Vec<_>>()
        });
        let mut recorded = Vec::new();
        for result in results {
            recorded.extend(result?);
        }
        Ok(recorded)
    }

    /// One thread of the client: connects, waits for the others, and drives its connections.
    fn client(
        &self,
        own: &[(u32, Slice)],
        address: &str,
        (gate, threads): (&StartGate, u32),
        signals: &ServerSignals,
    ) -> Result<Vec<Recorded>, StudyError> {
        run_on(cpus(self.chosen(self.placement.client.threads)))?;
        let links: Result<Vec<Link>, StudyError> =
            own.iter().map(|(at, slice)| self.link(*at, *slice, address)).collect();
        let mut links = links?;
        for link in &mut links {
            link.connection.wait_until_connected()?;
            link.connection.memory.check(CLIENTS)?;
        }
        if !gate.pass(threads)? {
            return Ok(Vec::new());
        }
        // SYNC: pairs with the load in `ServerPlan::run`.
        signals.is_measuring.store(true, Ordering::Release);
        let seconds = drive(&mut links, self.options.length, self.idle)?;
        for link in &links {
            link.connection.memory.check(CLIENTS)?;
        }
        Ok(links.into_iter().map(|link| (link.recorder, seconds)).collect())
    }

    fn link(&self, at: u32, slice: Slice, address: &str) -> Result<Link, StudyError> {
        let Configuration { workload, bytes, loop_kind, .. } = *self.configuration;
        let window = self.options.window;
        let (len, driver): (u64, Box<dyn Driver>) = match workload {
            Workload::KeyValue => {
                (KeyValueClient::buffer_bytes(), Box::new(KeyValueClient::new(at, kv::KEYS)))
            }
            Workload::Read | Workload::Write => (
                OneSided::buffer_bytes(bytes, loop_kind, window),
                Box::new(OneSided::new(workload, slice, loop_kind, window)),
            ),
        };
        let node = self.chosen(self.placement.client.memory);
        let memory = Buffer::new(len, node.map(|node| node.id))?;
        let rack = RackId(u16::try_from(at + 1).unwrap_or(u16::MAX));
        let modelled = self.modelled(false);
        let connection = Connection::start(&self.fabric, rack, memory, modelled, address)?;
        let limit = self.options.length.operations();
        Ok(Link { connection, driver, recorder: Recorder::new(limit) })
    }
}

/// What polling threads of a measurement do when they find nothing.
fn idle(options: &StudyOptions, configuration: &Configuration, placement: Placement) -> Idle {
    let Configuration { workload, load, workers, .. } = *configuration;
    let clients = options.client_threads.min(configuration.queue_pairs);
    let mut threads: Vec<(u32, NodeChoice)> = vec![(clients, placement.client.threads)];
    if workload == Workload::KeyValue {
        threads.push((1, placement.server.into()));
    }
    if options.fabric == FabricKind::Tcp {
        // The thread of the server's fabric.
        threads.push((1, NodeChoice::Local));
    }
    if options.model.is_none() {
        threads.push((workers.threads, placement.server.into()));
        threads.push((load.threads, load.node));
    }
    let count = |is_there: &dyn Fn(NodeChoice) -> bool| -> u32 {
        threads.iter().filter(|(_, node)| is_there(*node)).map(|(count, _)| count).sum()
    };
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut nodes = vec![(count(&|_| true), processors)];
    if let Some(topology) = &options.topology {
        for side in [Side::Local, Side::Remote] {
            let busy = count(&|node: NodeChoice| node.side() == Some(side));
            nodes.push((busy, topology.node(side).cpus.len()));
        }
    }
    Idle::for_threads(&nodes)
}

fn cpus(node: Option<&StudyNode>) -> &[u32] {
    node.map_or(&[], |node| &node.cpus)
}

/// Length of a sample of the throughput (section V).
const SAMPLE: Duration = Duration::from_millis(10);

/// Drives connections for the given length, after a warm-up of a tenth of it. Returns the seconds
/// for which it recorded.
fn drive(links: &mut [Link], length: Length, idle: Idle) -> Result<f64, StudyError> {
    for link in &mut *links {
        link.driver.start(&mut link.connection)?;
    }
    let mut turns = Turns { links, idle, last_progress: Instant::now() };
    let began = Instant::now();
    while !length.is_warm(began, turns.links.iter().map(|link| link.recorder.completed)) {
        turns.turn()?;
    }
    for link in &mut *turns.links {
        link.recorder.record();
    }
    let began = Instant::now();
    let mut sample_began = began;
    loop {
        let now = turns.turn()?;
        let sampled = now - sample_began;
        if sampled >= SAMPLE {
            for link in &mut *turns.links {
                link.recorder.sample(sampled.as_secs_f64());
            }
            sample_began = now;
        }
        let is_over = match length {
            Length::Seconds(seconds) => (now - began).as_secs_f64() >= seconds,
            Length::Operations(_) => turns.links.iter().all(|link| link.recorder.is_full()),
        };
        if is_over {
            return Ok((now - began).as_secs_f64());
        }
    }
}

/// Turns through all connections of a thread.
struct Turns<'a> {
    links: &'a mut [Link],
    idle: Idle,
    last_progress: Instant,
}

impl Turns<'_> {
    /// Advances each connection once. Returns the time after it.
    fn turn(&mut self) -> Result<Instant, StudyError> {
        let mut has_progress = false;
        for link in &mut *self.links {
            let before = link.recorder.completed;
            link.driver.advance(&mut link.connection, &mut link.recorder)?;
            has_progress |= link.recorder.completed != before;
        }
        let now = Instant::now();
        if has_progress {
            self.last_progress = now;
        } else if now - self.last_progress > TIMEOUT {
            let seconds = TIMEOUT.as_secs();
            return Err(StudyError::Timeout { what: "an operation", seconds });
        } else {
            self.idle.wait();
        }
        Ok(now)
    }
}
