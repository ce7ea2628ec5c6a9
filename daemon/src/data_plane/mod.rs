//! The data plane: one thread that executes each request to its end, or to the point where the
//! request waits for another rack. The thread sleeps when there is nothing to do.

mod active_set;
mod allocation;
mod atomics;
mod clients;
mod command;
mod error;
mod exchange;
mod heat;
mod home_requests;
mod idle;
mod in_flight;
mod leases;
mod line_cache;
mod locks;
mod lookup;
mod machine;
mod page_copy_chunks;
mod peers;
mod poll_loop;
mod reclaim;
mod recovery;
mod requests;
mod reserve;
mod retirement;
mod share;
mod sleep;
mod stalled_transfers;
mod swap;
mod transfer_number;
mod transfers;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rackpool_fabric::{Event, Fabric, MemoryRegion, RegionId, RemoteRegion};
use rackpool_proto::exchange::ExchangeIdentity;
use rackpool_proto::lease::LeaseRules;
use rackpool_proto::rack::{RackMachine, RackRules};
use rackpool_proto::share::ShareRules;
use rackpool_ring::client_file::ClientFile;
use rackpool_rrpc::{InFlightLimits, Rrpc};
use tokio::sync::mpsc::UnboundedSender;

pub(crate) use command::{Command, ControlNotification, Located, PlaneMetrics, get, set};
pub(crate) use in_flight::{BytesMetrics, InFlightMetrics};
#[cfg(feature = "testing")]
pub use poll_loop::MemoryMetrics;
pub(crate) use sleep::Waker;
pub(crate) use swap::SwapSettings;

use crate::rack::Rack;
use crate::region::Region;
use crate::slab::Slab;
use active_set::ActiveSet;
use allocation::Starved;
use clients::{Caller, Client, Clients};
use exchange::Exchanges;
use heat::Collector;
use home_requests::StarvedPeer;
use idle::IdlePolicy;
use leases::Leases;
use locks::Locks;
use peers::Peers;
use reserve::Reserves;
use retirement::Retiring;
use share::Sharing;
use stalled_transfers::Stalls;
use swap::Swaps;
use transfer_number::TransferNumbers;
use transfers::Transfers;

/// Index of the request buffers in the list of exported regions.
const BUFFERS: RemoteRegion = RemoteRegion(1);

/// The state of the data plane.
pub(crate) struct DataPlane {
    rack: Arc<Rack>,
    slab: Slab,
    fabric: Box<dyn Fabric>,
    /// All communication with other racks goes through this.
    rrpc: Rrpc,
    clients: Clients,
    active_set: ActiveSet<Arc<ClientFile>>,
    peers: Peers,
    /// Decides about swaps, leases, sharing and replicas.
    machine: RackMachine,
    /// The zero of the machine's clock.
    start: Instant,
    leases: Leases,
    locks: Locks,
    lease_rules: LeaseRules,
    transfers: Transfers,
    /// The region of this rack's frames.
    frames: RegionId,
    transfer_numbers: TransferNumbers,
    stalls: Stalls,
    swaps: Swaps,
    sharing: Sharing,
    heat: Collector,
    exchanges: Exchanges,
    reserves: Option<Reserves>,
    retiring: Retiring,
    starved: Vec<Starved>,
    starved_peers: Vec<StarvedPeer>,
    commands: Receiver<Command>,
    notifications: UnboundedSender<ControlNotification>,
    metrics: Arc<PlaneMetrics>,
    sleeper: sleep::Sleeper,
    idle_policy: IdlePolicy,
    events: Vec<Event>,
    next_tick: Instant,
    /// The time of this step of the poll loop; `None` until a function reads it.
    cached_now: Option<Instant>,
    /// Set when a page-copy chunk completed; the loop then yields once, since an emulated copy runs
    /// on this core.
    has_copied_chunk: bool,
    /// The time in a test.
    #[cfg(feature = "testing")]
    clock: Option<Instant>,
    /// The lease time: how long a request waits for a rack that does not answer.
    lease: Duration,
}

/// The components of a data plane.
pub(crate) struct Parts {
    pub(crate) rack: Arc<Rack>,
    pub(crate) slab: Slab,
    pub(crate) fabric: Box<dyn Fabric>,
    /// The region that the fabric exports after the frames: buffers for requests.
    pub(crate) buffers: Arc<dyn MemoryRegion>,
    /// The most bytes in flight to this rack, outside the buffers.
    pub(crate) in_flight: InFlightLimits,
    pub(crate) commands: Receiver<Command>,
    pub(crate) notifications: UnboundedSender<ControlNotification>,
    pub(crate) metrics: Arc<PlaneMetrics>,
    pub(crate) wake: std::os::fd::OwnedFd,
    /// Length of the busy-poll window after the last request.
    pub(crate) poll: Duration,
    /// Set if another daemon has served this memory before.
    pub(crate) restarted: bool,
    /// Must be the same in the whole pool.
    pub(crate) lease_rules: LeaseRules,
    pub(crate) swap: SwapSettings,
}

impl DataPlane {
    /// Creates a data plane without clients. [`Self::begin`] must follow.
    pub(crate) fn new(mut parts: Parts) -> anyhow::Result<Self> {
        let sleeper = sleep::Sleeper::new(parts.wake, parts.fabric.wake_fd())?;
        let bytes = parts.buffers.len();
        let start = Instant::now();
        let lease = parts.lease_rules.lease;
        let frames = parts.fabric.register(Arc::new(Region(Arc::clone(&parts.rack.frames))));
        let metadata = &parts.rack.metadata;
        let rules = RackRules {
            swap: parts.swap.rules,
            lease: parts.lease_rules,
            share: ShareRules::DEFAULT,
            shares: parts.swap.share && parts.swap.enabled && share::shares_pages_of(metadata),
            heat: parts.swap.heat,
            lines: swap::line_rules(parts.rack.geometry.page_size),
            exchange: machine::exchange_rules(lease, parts.rack.geometry.page_size),
            recovery: machine::recovery_rules(lease, parts.rack.geometry.page_size),
            lock: locks::rules(lease),
            barrier_delay: machine::BARRIER_DELAY,
        };
        let own =
            ExchangeIdentity { rack: parts.rack.geometry.rack, memory: parts.rack.geometry.memory };
        let machine = machine::restore(rules, parts.restarted, &parts.rack, &parts.slab, own)?;
        let swaps = Swaps::new(start, &parts.swap, frames);
        let sharing = Sharing::new(start, metadata, frames, parts.restarted)?;
        let mut rrpc =
            Rrpc::new(&mut *parts.fabric, parts.buffers, BUFFERS, bytes, parts.in_flight);
        rrpc.expose_for(lease);
        Ok(Self {
            rack: parts.rack,
            slab: parts.slab,
            fabric: parts.fabric,
            rrpc,
            clients: Clients::default(),
            active_set: ActiveSet::default(),
            peers: Peers::default(),
            machine,
            start,
            leases: Leases::default(),
            locks: Locks::default(),
            lease_rules: parts.lease_rules,
            transfers: Transfers::default(),
            frames,
            transfer_numbers: TransferNumbers::default(),
            stalls: Stalls::default(),
            swaps,
            sharing,
            heat: Collector::new(start, parts.swap.rules.pause),
            exchanges: Exchanges::default(),
            reserves: None,
            retiring: Retiring::default(),
            starved: Vec::new(),
            starved_peers: Vec::new(),
            commands: parts.commands,
            notifications: parts.notifications,
            metrics: parts.metrics,
            sleeper,
            idle_policy: IdlePolicy::new(parts.poll),
            events: Vec::new(),
            next_tick: start,
            cached_now: None,
            has_copied_chunk: false,
            #[cfg(feature = "testing")]
            clock: None,
            lease,
        })
    }

    /// Does what an earlier daemon has left. The caller has adopted its clients: the machine reads
    /// their claims.
    pub(crate) fn begin(&mut self) -> error::Result<()> {
        self.run_machine()?;
        // Operators may ask before the first request.
        self.publish_memory();
        Ok(())
    }

    /// Publishes the counts of free and used memory, also while the daemon is too busy to sleep.
    fn publish_memory(&self) {
        set(&self.metrics.free_frames, u64::from(self.slab.free_frames()));
        let others = self.others();
        set(&self.metrics.other_frames, others.frames);
        set(&self.metrics.other_free_frames, others.free);
        set(&self.metrics.allocated_bytes, self.slab.allocated_bytes());
        self.metrics.fixed.set(self.slab.fixed_use());
    }

    fn publish_requests(&self) {
        self.metrics.set_requests(&self.rrpc.metrics());
        self.metrics.in_flight.set(&self.rrpc.in_flight());
        self.metrics.set_device(self.fabric.device_counters());
    }

    fn publish_metrics(&self) {
        self.publish_memory();
        self.publish_requests();
        let served = self.clients.all.values().filter(|client| client.is_served());
        set(&self.metrics.clients, served.count() as u64);
    }

    fn notify(&self, notification: ControlNotification) {
        // Without a control plane the daemon is about to end.
        let _ = self.notifications.send(notification);
    }

    /// Returns the time of this step, read from the clock at most once.
    fn cached_now(&mut self) -> Instant {
        let now = self.cached_now.unwrap_or_else(|| self.now());
        *self.cached_now.insert(now)
    }

    /// Returns the current time.
    #[cfg(not(feature = "testing"))]
    #[expect(clippy::unused_self, reason = "tests have a clock of their own")]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn client(&self, caller: Caller) -> Option<&Client> {
        self.clients.all.get(caller.client).filter(|client| !client.gone)
    }
}
