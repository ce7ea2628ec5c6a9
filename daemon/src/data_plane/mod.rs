//! The data plane: one thread that executes each request to its end, or to the point where the
//! request waits for another rack. The thread sleeps when there is nothing to do.

mod active_set;
mod atomics;
mod clients;
mod command;
mod exchange;
mod heat;
mod home_requests;
mod leases;
mod leaving_pages;
mod lookup;
mod page_copy_chunks;
mod peers;
mod reclaim;
mod requests;
mod reservations;
mod reserve;
mod share;
#[cfg(feature = "fuzzing")]
mod single_step;
mod sleep;
mod stalled_transfers;
mod swap;
mod transfers;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rackpool_fabric::{Event, Fabric, MemoryRegion, RemoteRegion};
use rackpool_proto::lease::LeaseRules;
use rackpool_ring::client_file::ClientFile;
use rackpool_rrpc::{CallEvent, CallId, Data, Failure, Rrpc};
use rackpool_sync::Turn;
use rackpool_wire::metadata::Member;
use tokio::sync::mpsc::UnboundedSender;

pub(crate) use command::{Command, ControlNotification, Located, PlaneMetrics, get, set};
#[cfg(feature = "fuzzing")]
pub use single_step::MemoryMetrics;
pub(crate) use sleep::Waker;
pub(crate) use swap::SwapSettings;

use crate::rack::Rack;
use crate::region::Region;
use crate::slab::Slab;
use active_set::ActiveSet;
use clients::{Caller, Client, Clients};
use exchange::Exchanges;
use heat::Collector;
use home_requests::StarvedPeer;
use leases::Leases;
use leaving_pages::Leaving;
use lookup::Searches;
use peers::Peers;
use requests::Starved;
use reservations::Reservations;
use reserve::Reserves;
use share::{Sharing, is_kept};
use stalled_transfers::Stalls;
use swap::{Swaps, is_copy};
use transfers::Transfers;

/// Maximum number of requests taken from one ring before the next ring is polled.
const ROUND: usize = 32;
/// Rounds between two checks of the control plane's commands, about a microsecond. A check costs as
/// much as polling one client's rings.
const COMMANDS_EVERY: u32 = 16;
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
    members: Vec<Member>,
    peers: Peers,
    leases: Leases,
    searches: Searches,
    transfers: Transfers,
    stalls: Stalls,
    swaps: Swaps,
    sharing: Sharing,
    heat: Collector,
    exchanges: Exchanges,
    leaving: Leaving,
    reserves: Option<Reserves>,
    reservations: Reservations,
    starved: Vec<Starved>,
    starved_peers: Vec<StarvedPeer>,
    commands: Receiver<Command>,
    notifications: UnboundedSender<ControlNotification>,
    metrics: Arc<PlaneMetrics>,
    sleeper: sleep::Sleeper,
    busy_poll: sleep::BusyPollWindow,
    events: Vec<Event>,
    next_tick: Instant,
    /// The time of this step of the poll loop; `None` until a function reads it.
    cached_now: Option<Instant>,
    /// Set when a page-copy chunk completed; the loop then yields once, since an emulated copy runs
    /// on this core.
    has_read_a_piece: bool,
    /// The time in a fuzz target.
    #[cfg(feature = "fuzzing")]
    clock: Option<Instant>,
    /// The lease time: how long a request waits for a rack that does not answer.
    lease: Duration,
    /// Until this time racks may still execute requests of an earlier daemon.
    earlier_requests_end: Instant,
}

/// The components of a data plane.
pub(crate) struct Parts {
    pub(crate) rack: Arc<Rack>,
    pub(crate) slab: Slab,
    pub(crate) fabric: Box<dyn Fabric>,
    /// The region that the fabric exports after the frames: buffers for requests.
    pub(crate) buffers: Arc<dyn MemoryRegion>,
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
    /// Creates a data plane without clients.
    pub(crate) fn new(mut parts: Parts) -> anyhow::Result<Self> {
        let sleeper = sleep::Sleeper::new(parts.wake, parts.fabric.wake_fd())?;
        let bytes = parts.buffers.len();
        let (start, life) = (Instant::now(), parts.rack.incarnation);
        let lease = parts.lease_rules.lease;
        let leases = Leases::new(start, parts.lease_rules, life, parts.restarted);
        let frames = parts.fabric.register(Arc::new(Region(Arc::clone(&parts.rack.frames))));
        let (metadata, pages) = (&parts.rack.metadata, parts.rack.geometry.frames);
        let swaps = Swaps::new(start, &parts.swap, life, metadata, frames, pages)?;
        let sharing = Sharing::new(
            start,
            parts.swap.share && parts.swap.enabled,
            life,
            metadata,
            &parts.slab,
            frames,
            parts.restarted,
        )?;
        let mut rrpc = Rrpc::new(&mut *parts.fabric, parts.buffers, BUFFERS, bytes);
        rrpc.expose_for(lease);
        let mut plane = Self {
            rack: parts.rack,
            slab: parts.slab,
            fabric: parts.fabric,
            rrpc,
            clients: Clients::default(),
            active_set: ActiveSet::default(),
            members: Vec::new(),
            peers: Peers::default(),
            leases,
            searches: Searches::default(),
            transfers: Transfers::default(),
            stalls: Stalls::default(),
            swaps,
            sharing,
            heat: Collector::new(start, parts.swap.rules.pause),
            exchanges: Exchanges::default(),
            leaving: Leaving::default(),
            reserves: None,
            reservations: Reservations::default(),
            starved: Vec::new(),
            starved_peers: Vec::new(),
            commands: parts.commands,
            notifications: parts.notifications,
            metrics: parts.metrics,
            sleeper,
            busy_poll: sleep::BusyPollWindow::new(parts.poll),
            events: Vec::new(),
            next_tick: start,
            cached_now: None,
            has_read_a_piece: false,
            #[cfg(feature = "fuzzing")]
            clock: None,
            lease,
            earlier_requests_end: start + if parts.restarted { lease } else { Duration::ZERO },
        };
        plane.begin_sharing()?;
        // Operators may ask before the first request.
        plane.publish_memory();
        Ok(plane)
    }

    /// Runs until the control plane sends `Stop`.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let mut spin = sleep::spin();
        let mut waits = false;
        let mut round = 0_u32;
        loop {
            let mut busy = false;
            if round.is_multiple_of(COMMANDS_EVERY) {
                match self.take_commands()? {
                    Some(any) => busy = any,
                    None => return Ok(()),
                }
            }
            round = round.wrapping_add(1);
            busy |= self.poll_fabric()?;
            self.tick()?;
            // Wake clients whose remote operations completed, before accepting new requests.
            self.clients.rouse();
            // Events of the fabric can wait for a few looks at the rings.
            let (mut looks, mut served) = (self.active_set.round(!self.transfers.is_empty()), 0);
            while looks > 0 && served < ROUND {
                // Operations for other racks are posted before another look that finds no request.
                // Clients that are answered at once may post their next requests within the
                // following looks.
                let gathered = self.rrpc.has_gathered();
                let round = self.poll_clients(if gathered { 1 } else { looks })?;
                (looks, served) = (looks - round.looks, served + round.served);
                if gathered && round.served == 0 {
                    break;
                }
            }
            busy |= served > 0;
            self.exchange_with_peers()?;
            self.clients.rouse();
            self.cut_off_stalled(false);
            self.collect_heat(false);
            if busy {
                self.publish_memory();
                self.keep_stock();
            }
            self.release_frames();
            if busy || self.rrpc.has_gathered() || self.fabric.next_completion().is_some() {
                self.busy_poll.begin();
                if std::mem::take(&mut waits) {
                    spin.end();
                }
                // An emulated fabric copies on this core.
                if std::mem::take(&mut self.has_read_a_piece) {
                    spin.pause();
                }
                continue;
            }
            if self.polls() {
                continue;
            }
            let has_woken = self.clients.has_woken();
            if has_woken && std::mem::take(&mut waits) {
                spin.end();
            }
            // While pages move, messages are further apart than spinning bridges, and the processes
            // that take part in the move or wait for it need the core.
            let moves = self.swaps.are_under_way();
            if !std::mem::replace(&mut waits, true) {
                spin.begin(has_woken || moves);
            }
            if spin.turn() == Turn::Sleep || moves {
                if self.swaps.is_urgent(self.now()) {
                    // Another thread that the swap depends on gets the core.
                    std::thread::yield_now();
                    continue;
                }
                self.publish_metrics();
                self.cut_off_stalled(true);
                self.go_to_sleep()?;
                self.cut_off_stalled(true);
                self.collect_heat(true);
                spin.end();
                waits = false;
                // A command may have ended the sleep: check for commands first.
                round = 0;
            }
        }
    }

    /// Executes the waiting commands. Returns whether there were any; `None` after `Stop`.
    fn take_commands(&mut self) -> anyhow::Result<Option<bool>> {
        self.cached_now = None;
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(None),
                Ok(Command::Admit { client, file, doorbell, admitted }) => {
                    let served = self.admit(client, file, doorbell)?;
                    // The receiver is gone if the client has left meanwhile; `Gone` follows then.
                    let _ = admitted.send(served);
                }
                Ok(Command::Gone { client }) => self.client_gone(client)?,
                Ok(Command::Members(members)) => self.members_changed(members)?,
                Ok(Command::PageHistory { page, answer }) => {
                    let _ = answer.send(self.page_history(page));
                }
                Ok(Command::TopPages { limit, answer }) => {
                    let _ = answer.send(self.top_pages(limit));
                }
                Ok(Command::Located { page, home }) => self.located(page, home)?,
                Ok(Command::Committed(position)) => {
                    self.rack.metadata.superblock()?.set_seen(position);
                }
                Ok(Command::ServerSent(message)) => self.server_sent(message)?,
                Ok(Command::Reserved { frame, is_there }) => self.reserved(frame, is_there),
                Ok(Command::Released { frame }) => self.slab.reserved(frame, false),
                Err(TryRecvError::Empty) => return Ok(Some(any)),
            }
            any = true;
        }
    }

    fn poll_fabric(&mut self) -> anyhow::Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events);
        let busy = !events.is_empty();
        if busy {
            self.cached_now = None;
            let now = self.now();
            for event in events.drain(..) {
                self.fabric_event(now, event)?;
            }
        }
        self.events = events;
        if busy {
            self.publish_requests();
        }
        Ok(busy)
    }

    /// Sends and posts what was gathered for other racks in this round, with one doorbell for each
    /// rack, and handles the resulting events.
    fn exchange_with_peers(&mut self) -> anyhow::Result<()> {
        loop {
            self.rrpc.flush(&mut *self.fabric);
            if !self.hear_of_peers()? {
                return Ok(());
            }
        }
    }

    fn fabric_event(&mut self, now: Instant, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Connected { endpoint, peer, .. } => {
                self.rrpc.take_in(now, event);
                self.connected(endpoint, peer)?;
            }
            Event::Accepted { endpoint, peer, .. } => {
                self.rrpc.take_in(now, event);
                self.accepted(endpoint, peer);
            }
            Event::ConnectFailed { endpoint, error } => {
                self.peers.connect_failed(endpoint, &error);
            }
            Event::Disconnected { endpoint, ref reason } => {
                self.disconnected(endpoint, reason)?;
                self.rrpc.take_in(now, event);
            }
            Event::Fenced { endpoint } => self.endpoint_fenced(endpoint)?,
            event => self.rrpc.take_in(now, event),
        }
        self.hear_of_peers().map(drop)
    }

    /// Handles the events of calls and transfers. Returns true if there were any.
    fn hear_of_peers(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        while let Some(event) = self.rrpc.call_events() {
            any = true;
            match event {
                CallEvent::Asked { ask, body } => self.peer_asks(ask, &body)?,
                CallEvent::Answered { call, head, data } => self.answered(call, &head, data)?,
                CallEvent::Failed { call, failure } => self.failed(call, &failure)?,
                CallEvent::Transferred { id, result, .. } if is_copy(id) => {
                    self.page_read(id, result)?
                }
                CallEvent::Transferred { id, result, .. } if is_kept(id) => {
                    self.copy_read(id, result)?
                }
                CallEvent::Transferred { id, result, .. } => self.transferred(id, result)?,
                CallEvent::Withdrawn { ask } => self.forget_asks(|waiting| waiting == ask),
                CallEvent::Calibrated { endpoint, thresholds } => {
                    self.calibrated(endpoint, thresholds)
                }
                // No other event needs an action: this daemon gives up no request that names a
                // place.
                _ => {}
            }
        }
        Ok(any)
    }

    fn answered(&mut self, call: CallId, head: &[u8], data: Data) -> anyhow::Result<()> {
        if self.contents_answered(call, head, data)? {
            return Ok(());
        }
        self.peer_answered(call, head)
    }

    fn failed(&mut self, call: CallId, failure: &Failure) -> anyhow::Result<()> {
        if self.contents_failed(call)? { Ok(()) } else { self.call_failed(call, failure) }
    }

    /// Does what is due: deadlines, leaving pages, waiting requests.
    fn tick(&mut self) -> anyhow::Result<()> {
        if self.has_deadlines() { self.tick_at(Instant::now()) } else { Ok(()) }
    }

    fn tick_at(&mut self, now: Instant) -> anyhow::Result<()> {
        self.cached_now = None;
        self.drive_leases(now)?;
        self.drive_leaving()?;
        self.drive_swaps(now)?;
        self.drive_sharing(now)?;
        self.feed_starved(now)?;
        self.feed_starved_peers()?;
        if now >= self.next_tick {
            self.next_tick = now + Duration::from_millis(2);
            self.drive_peers(now)?;
            self.drive_searches(now)?;
            self.drive_reservations(now)?;
            self.drive_exchanges(now)?;
        }
        Ok(())
    }

    /// Returns true if anything has to be done at a later time without an event.
    fn has_deadlines(&self) -> bool {
        self.slab.is_leaving()
            || self.leases.has_deadlines()
            || self.searches.has_deadlines()
            || !self.starved.is_empty()
            || !self.starved_peers.is_empty()
            || self.peers.has_deadlines()
            || self.rrpc.deadline().is_some()
            || self.exchanges.has_deadlines()
            || self.reservations.has_deadlines()
            || self.swaps.has_deadlines()
            || self.sharing.has_deadlines()
    }

    /// Publishes the counts of free and used memory, also while the daemon is too busy to sleep.
    fn publish_memory(&self) {
        set(&self.metrics.free_frames, u64::from(self.slab.free_frames()));
        let others = self.others();
        set(&self.metrics.other_frames, others.frames);
        set(&self.metrics.other_free_frames, others.free);
        set(&self.metrics.allocated_bytes, self.slab.allocated_bytes());
    }

    fn publish_requests(&self) {
        self.metrics.set_requests(&self.rrpc.metrics());
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
    #[cfg(not(feature = "fuzzing"))]
    #[expect(clippy::unused_self, reason = "fuzz targets have a clock of their own")]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn client(&self, caller: Caller) -> Option<&Client> {
        self.clients.all.get(caller.client).filter(|client| !client.gone)
    }
}
