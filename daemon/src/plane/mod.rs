//! The data plane: one thread that runs every request to its end, or to the point where it waits
//! for another rack, and sleeps when there is nothing to do.

mod clients;
mod command;
mod exchange;
mod home;
mod leaving;
mod lookup;
mod peers;
mod reclaim;
mod requests;
mod sleep;
mod transfers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rackpool_fabric::{Event, Fabric};
use rackpool_model::PageId;
use rackpool_ring::client_file::Route;
use rackpool_sync::{Spin, Turn};
use rackpool_wire::metadata::Member;
use tokio::sync::mpsc::UnboundedSender;

pub(crate) use command::{Command, Figures, Located, Notice, get};
pub(crate) use sleep::Waker;

use crate::rack::Rack;
use crate::slab::Slab;
use clients::{Caller, Client, Clients};
use command::{count, set};
use exchange::Exchanges;
use home::StarvedPeer;
use leaving::Leaving;
use lookup::Lease;
use peers::Peers;
use requests::Starved;
use transfers::Transfers;

/// Requests taken from one ring before the next one has its turn.
const ROUND: usize = 32;
/// Looks without anything to do before sleeping: about 10 us alone on a core, and some turns in
/// which others on the core get on.
const PAUSES: u32 = 200;
const YIELDS: u32 = 24;
/// How long a request waits for a rack that does not answer: a lease.
const PATIENCE: Duration = Duration::from_millis(2000);

/// The state of the data plane.
pub(crate) struct DataPlane {
    rack: Arc<Rack>,
    slab: Slab,
    fabric: Box<dyn Fabric>,
    clients: Clients,
    members: Vec<Member>,
    peers: Peers,
    leases: BTreeMap<PageId, Lease>,
    lookups: BTreeMap<PageId, Vec<Caller>>,
    transfers: Transfers,
    exchanges: Exchanges,
    leaving: Leaving,
    starved: Vec<Starved>,
    starved_peers: Vec<StarvedPeer>,
    commands: Receiver<Command>,
    notices: UnboundedSender<Notice>,
    figures: Arc<Figures>,
    sleeper: sleep::Sleeper,
    events: Vec<Event>,
    next_tick: Instant,
    /// Until then racks may hold location leases of an earlier daemon, which this one knows
    /// nothing of: no page becomes free before.
    earlier_leases_end: Instant,
}

/// What a data plane is made of.
pub(crate) struct Parts {
    pub(crate) rack: Arc<Rack>,
    pub(crate) slab: Slab,
    pub(crate) fabric: Box<dyn Fabric>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) notices: UnboundedSender<Notice>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) wake: std::os::fd::OwnedFd,
    /// Whether another daemon has served this memory before.
    pub(crate) restarted: bool,
}

impl DataPlane {
    /// A data plane without clients.
    pub(crate) fn new(parts: Parts) -> anyhow::Result<Self> {
        let sleeper = sleep::Sleeper::new(parts.wake, parts.fabric.wake_fd())?;
        Ok(Self {
            rack: parts.rack,
            slab: parts.slab,
            fabric: parts.fabric,
            clients: Clients::default(),
            members: Vec::new(),
            peers: Peers::default(),
            leases: BTreeMap::new(),
            lookups: BTreeMap::new(),
            transfers: Transfers::default(),
            exchanges: Exchanges::default(),
            leaving: Leaving::default(),
            starved: Vec::new(),
            starved_peers: Vec::new(),
            commands: parts.commands,
            notices: parts.notices,
            figures: parts.figures,
            sleeper,
            events: Vec::new(),
            next_tick: Instant::now(),
            earlier_leases_end: Instant::now()
                + if parts.restarted { PATIENCE } else { Duration::ZERO },
        })
    }

    /// Runs until told to stop.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let mut spin = Spin::new(PAUSES, YIELDS);
        loop {
            let Some(mut busy) = self.take_commands()? else { return Ok(()) };
            busy |= self.poll_clients()?;
            busy |= self.poll_fabric()?;
            self.tick()?;
            if busy {
                self.publish_memory();
            }
            if busy || self.fabric.next_completion().is_some() {
                spin.reset();
                std::hint::spin_loop();
            } else if spin.turn() == Turn::Sleep {
                self.publish_figures();
                self.go_to_sleep()?;
                spin.reset();
            }
        }
    }

    /// `None`: stop.
    fn take_commands(&mut self) -> anyhow::Result<Option<bool>> {
        let mut any = false;
        loop {
            match self.commands.try_recv() {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return Ok(None),
                Ok(Command::Admit { client, file, doorbell, admitted }) => {
                    let served = self.admit(client, file, doorbell)?;
                    // A client that left meanwhile is reported as gone next.
                    let _ = admitted.send(served);
                }
                Ok(Command::Gone { client }) => self.client_gone(client)?,
                Ok(Command::Members(members)) => self.members_changed(members)?,
                Ok(Command::Located { page, home }) => self.located(page, home)?,
                Err(TryRecvError::Empty) => return Ok(Some(any)),
            }
            any = true;
        }
    }

    fn poll_clients(&mut self) -> anyhow::Result<bool> {
        let mut busy = false;
        let mut requests = std::mem::take(&mut self.transfers.round);
        for (id, client) in &self.clients.0 {
            // What a client posted to an earlier daemon it posts again when it has come back.
            if client.gone || client.doorbell.is_none() {
                continue;
            }
            for route in [Route::Rack, Route::Remote] {
                // Requests that can't be posted now wait in their ring.
                if route == Route::Remote && self.transfers.is_full() {
                    continue;
                }
                let ring = client.file.ring(route)?;
                for _ in 0..ROUND {
                    let Some(request) = ring.pop() else { break };
                    requests.push((*id, request));
                }
            }
        }
        for (client, request) in requests.drain(..) {
            busy = true;
            count(&self.figures.requests);
            self.serve(client, &request)?;
        }
        self.transfers.round = requests;
        self.post_transfers()?;
        Ok(busy)
    }

    fn poll_fabric(&mut self) -> anyhow::Result<bool> {
        let mut events = std::mem::take(&mut self.events);
        self.fabric.poll(&mut events);
        let busy = !events.is_empty();
        for event in events.drain(..) {
            self.fabric_event(event)?;
        }
        self.events = events;
        Ok(busy)
    }

    fn fabric_event(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Connected { endpoint, peer, .. } => self.connected(endpoint, peer),
            Event::Accepted { endpoint, peer, .. } => {
                self.peers.accepted(endpoint, peer);
                Ok(())
            }
            Event::ConnectFailed { endpoint, error } => {
                tracing::debug!("connecting failed: {error}");
                self.peers.connect_failed(endpoint);
                Ok(())
            }
            Event::Completed { endpoint, id, result } => self.completed(endpoint, id, result),
            Event::Message { endpoint, bytes } => self.peer_message(endpoint, &bytes),
            Event::Disconnected { endpoint, reason } => self.disconnected(endpoint, &reason),
            _ => Ok(()),
        }
    }

    /// What happens with time: deadlines, leaving pages, requests that wait.
    fn tick(&mut self) -> anyhow::Result<()> {
        if !self.has_deadlines() {
            return Ok(());
        }
        let now = Instant::now();
        self.drive_leaving(now)?;
        self.feed_starved(now)?;
        self.feed_starved_peers()?;
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = now + Duration::from_millis(2);
        self.drive_peers(now)?;
        self.drive_exchanges(now)
    }

    /// Whether something happens by itself with time.
    fn has_deadlines(&self) -> bool {
        self.slab.is_leaving()
            || !self.starved.is_empty()
            || !self.starved_peers.is_empty()
            || self.peers.has_deadlines()
            || self.exchanges.has_deadlines()
    }

    /// What is free and what is in use, also while the daemon is too busy to sleep.
    fn publish_memory(&self) {
        set(&self.figures.free_frames, u64::from(self.slab.free_frames()));
        set(&self.figures.allocated_bytes, self.slab.allocated_bytes());
    }

    fn publish_figures(&self) {
        self.publish_memory();
        let served = self.clients.0.values().filter(|c| !c.gone && c.doorbell.is_some());
        set(&self.figures.clients, served.count() as u64);
    }

    fn notice(&self, notice: Notice) {
        // Without a control plane the daemon is about to end.
        let _ = self.notices.send(notice);
    }

    fn client(&self, caller: Caller) -> Option<&Client> {
        self.clients.0.get(&caller.client).filter(|client| !client.gone)
    }
}
