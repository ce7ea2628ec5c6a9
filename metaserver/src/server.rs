use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;

use rackpool_model::FabricKey;
use rackpool_proto::Time;
use rackpool_proto::metadata::{
    Action, BatchId, Change, ConnectionToken, Event, MetadataMachine, OperatorEvent,
};
use rackpool_wire::metadata::{MetadataReply, Tagged};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tracing::{error, info, warn};

use crate::connection::{Inbound, Outlet};
use crate::metrics::{ServerMetrics, moves};
use crate::store::{Store, StoreError};

/// Maximum number of messages passed to the machine before its actions are executed.
const GATHER: usize = 1024;

/// Drives the machine.
#[derive(Debug)]
pub(crate) struct Server {
    machine: MetadataMachine,
    started: Instant,
    /// When the machine last received an event.
    looked: Instant,
    storage: Storage,
    store_path: PathBuf,
    fabric_key: FabricKey,
    connections: BTreeMap<ConnectionToken, Outlet>,
    metrics: Arc<ServerMetrics>,
    /// When the batch being written was handed to the store, and how many pages it moves.
    writing: (Instant, u64),
}

/// The store, or the task that is writing to it.
#[derive(Debug)]
enum Storage {
    Idle(Store),
    Writing(BatchId, JoinHandle<(Store, Result<(), StoreError>)>),
    /// The writing task panicked, and the store is lost with it.
    Gone,
}

impl Server {
    /// Creates a server. `machine` was restored from this store at time zero.
    pub(crate) fn new(
        machine: MetadataMachine,
        store: Store,
        fabric_key: FabricKey,
        metrics: Arc<ServerMetrics>,
    ) -> Self {
        Self {
            machine,
            started: Instant::now(),
            looked: Instant::now(),
            store_path: store.path().to_owned(),
            storage: Storage::Idle(store),
            fabric_key,
            connections: BTreeMap::new(),
            metrics,
            writing: (Instant::now(), 0),
        }
    }

    /// Serves until `stopped` changes. Then the batch being written is finished and answered.
    pub(crate) async fn run(
        mut self,
        mut inbound: mpsc::Receiver<Inbound>,
        mut stopped: watch::Receiver<bool>,
    ) {
        self.metrics.set_racks(self.machine.rack_states());
        loop {
            self.act();
            let deadline = self.machine.deadline();
            let deadline = deadline.map(|time| self.started + time.since(Time::ZERO));
            // Early enough to detect that this process was stopped.
            let look = self.looked + self.machine.lease() / 8;
            let deadline = deadline.map_or(look, |deadline| deadline.min(look));
            tokio::select! {
                _ = stopped.changed() => break,
                (batch, written) = self.storage.written() => self.written(batch, written),
                Some(message) = inbound.recv() => {
                    self.received(message);
                    for _ in 1..GATHER {
                        let Ok(message) = inbound.try_recv() else { break };
                        self.received(message);
                    }
                }
                () = tokio::time::sleep_until(deadline) => self.handle(Event::DeadlinePassed),
            }
        }
        if let Storage::Writing(..) = self.storage {
            let (batch, written) = self.storage.written().await;
            self.written(batch, written);
            self.act();
        }
    }

    fn handle(&mut self, event: Event) {
        let nanos = self.started.elapsed().as_nanos();
        let now = Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let lease = self.machine.lease();
        let still = self.looked.elapsed();
        if still > lease / 4 {
            warn!(
                "this server did not run for {} ms, and leases last {}: its host is overloaded or it was stopped; this pause ends no lease. If it happens often, give it a core, or start it with a longer --lease-ms",
                still.as_millis(),
                lease.as_millis()
            );
            self.machine.handle(now, Event::StoodStill);
        }
        self.looked = Instant::now();
        self.machine.handle(now, event);
    }

    fn received(&mut self, message: Inbound) {
        match message {
            Inbound::Opened { token, outlet } => {
                self.connections.insert(token, outlet);
                self.metrics.connected(self.connections.len());
            }
            Inbound::Asked { token, request: Tagged { tag, message } } => {
                self.metrics.asked(&message);
                self.handle(Event::Requested { from: token, tag, request: message });
            }
            Inbound::Closed { token } => {
                self.connections.remove(&token);
                self.metrics.connected(self.connections.len());
            }
        }
    }

    /// Executes all actions of the machine.
    fn act(&mut self) {
        while let Some(action) = self.machine.poll() {
            match action {
                Action::Persist { batch, changes } => self.persist(batch, changes),
                Action::Reply { to, tag, reply } => self.reply(to, tag, reply),
                Action::Push { to, reply } => {
                    if let Some(outlet) = self.connections.get(&to) {
                        outlet.push(reply);
                        self.metrics.pushed();
                    }
                }
                Action::Report(event) => {
                    self.metrics.heard(&event);
                    self.metrics.set_racks(self.machine.rack_states());
                    report(&event);
                }
            }
        }
    }

    fn persist(&mut self, batch: BatchId, changes: Vec<Change>) {
        match std::mem::replace(&mut self.storage, Storage::Gone) {
            Storage::Idle(mut store) => {
                self.writing = (Instant::now(), moves(&changes));
                let task = tokio::task::spawn_blocking(move || {
                    let written = store.commit(&changes);
                    (store, written)
                });
                self.storage = Storage::Writing(batch, task);
            }
            storage => {
                self.storage = storage;
                let reason =
                    "an earlier write to the store failed; start the metadata server again".into();
                self.handle(Event::CommitFailed { batch, reason });
            }
        }
    }

    fn written(
        &mut self,
        batch: BatchId,
        written: Result<(Store, Result<(), StoreError>), JoinError>,
    ) {
        let durable = matches!(&written, Ok((_, Ok(()))));
        let (since, moved) = self.writing;
        self.metrics.written(moved, since.elapsed(), durable);
        let failure = match written {
            Ok((store, Ok(()))) => {
                self.storage = Storage::Idle(store);
                return self.handle(Event::Committed { batch });
            }
            Ok((store, Err(failure))) => {
                self.storage = Storage::Idle(store);
                failure.to_string()
            }
            Err(failure) => {
                self.storage = Storage::Gone;
                failure.to_string()
            }
        };
        error!("a change could not be made durable: {failure}");
        self.handle(Event::CommitFailed { batch, reason: failure });
    }

    fn reply(&mut self, to: ConnectionToken, tag: u64, mut message: MetadataReply) {
        match &mut message {
            MetadataReply::Status(status) => {
                let file = std::fs::metadata(&self.store_path);
                status.store_bytes = file.map_or(0, |file| file.len());
            }
            // The connection uses TLS or does not leave this host, so the key is not exposed.
            MetadataReply::Registered { fabric_key, .. } => {
                *fabric_key = Some(self.fabric_key.clone());
            }
            _ => {}
        }
        if let Some(outlet) = self.connections.get(&to)
            && !outlet.answer(Tagged { tag, message })
        {
            self.connections.remove(&to);
        }
    }
}

impl Storage {
    /// Waits for the end of the batch being written; for ever when there is none. The store is gone
    /// afterwards until the caller puts it back.
    async fn written(&mut self) -> (BatchId, Result<(Store, Result<(), StoreError>), JoinError>) {
        match self {
            Self::Writing(batch, task) => (*batch, task.await),
            Self::Idle(_) | Self::Gone => pending().await,
        }
    }
}

fn report(event: &OperatorEvent) {
    match event {
        OperatorEvent::Joined { rack, incarnation, pages, lost } => {
            info!(
                "{rack} joined: incarnation {}, {} pages from {}",
                incarnation.0, pages.count, pages.first
            );
            if *lost > 0 {
                warn!("{rack} has new memory: {lost} pages of its earlier memory are lost");
            }
        }
        OperatorEvent::Left { rack } => info!("{rack} left"),
        OperatorEvent::Expired { rack } => {
            warn!("{rack} sent no heartbeat within its lease: its lease has expired")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rackpool_model::{Incarnation, MemoryId, RackId};
    use rackpool_wire::metadata::{MetadataRequest, RackAnnouncement, Refusal};

    use super::*;
    use crate::connection::Outgoing;

    const LEASE: Duration = Duration::from_secs(1);

    /// A rack's connection to the server.
    struct Rack {
        rack: RackId,
        token: ConnectionToken,
        inbox: mpsc::Sender<Inbound>,
        outgoing: Outgoing,
    }

    impl Rack {
        async fn register(rack: u16, inbox: &mpsc::Sender<Inbound>) -> Self {
            let (outlet, outgoing) = Outlet::new();
            let token = ConnectionToken(rack.into());
            inbox.send(Inbound::Opened { token, outlet }).await.unwrap();
            let mut rack = Self { rack: RackId(rack), token, inbox: inbox.clone(), outgoing };
            let announcement = RackAnnouncement {
                rack: rack.rack,
                memory: MemoryId(rack.rack.0.into()),
                incarnation: Incarnation(1),
                frames: 100,
                page_bytes: 2 << 20,
                seen: None,
                control_path: "/run/rack".into(),
                fabric_address: "tcp:127.0.0.1:1".into(),
            };
            let registered = rack.ask(MetadataRequest::Register(announcement)).await;
            assert!(matches!(registered, MetadataReply::Registered { .. }), "{registered:?}");
            rack
        }

        async fn ask(&mut self, message: MetadataRequest) -> MetadataReply {
            let request = Tagged { tag: 1, message };
            self.inbox.send(Inbound::Asked { token: self.token, request }).await.unwrap();
            self.outgoing.answers.recv().await.unwrap().message
        }

        async fn heartbeat(&mut self) -> MetadataReply {
            let (rack, incarnation) = (self.rack, Incarnation(1));
            let seen_version = 0;
            self.ask(MetadataRequest::Heartbeat { rack, incarnation, free_frames: 5, seen_version })
                .await
        }
    }

    /// Tokio's paused clock jumps at once, as for a process that was stopped, or from one timer of
    /// the server to the next while the test sleeps.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_stood_still_takes_nobody_for_dead() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let lines = std::fs::File::create(&log).unwrap();
        let logger = tracing_subscriber::fmt().with_writer(lines).finish();
        let _logs = tracing::subscriber::set_default(logger);
        let stood_still = || {
            let log = std::fs::read_to_string(&log).unwrap();
            log.matches("this server did not run for 2500 ms").count()
        };

        let (mut store, records) = Store::open(&directory.path().join("store")).unwrap();
        let machine = MetadataMachine::restore(Time::ZERO, LEASE, 1, records).unwrap();
        let key = store.fabric_key(false).unwrap();
        let server = Server::new(machine, store, key, Arc::default());
        let (inbox, inbound) = mpsc::channel(8);
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(server.run(inbound, stopped));
        let mut racks = [Rack::register(1, &inbox).await, Rack::register(2, &inbox).await];
        let MetadataReply::Renewed { version, .. } = racks[0].heartbeat().await else { panic!() };
        assert_eq!(stood_still(), 0);

        tokio::time::advance(LEASE * 5 / 2).await;
        // Each of them would be refused if its lease had ended.
        for rack in &mut racks {
            let MetadataReply::Renewed { version: now, .. } = rack.heartbeat().await else {
                panic!("refused")
            };
            assert_eq!(now, version, "nobody is dead");
        }
        assert_eq!(stood_still(), 1);

        // A server that runs ends the leases in the same time.
        tokio::time::sleep(LEASE * 5 / 2).await;
        for rack in &mut racks {
            let dead = MetadataReply::Refused(Refusal::NotMember(rack.rack));
            assert_eq!(rack.heartbeat().await, dead);
        }
        assert_eq!(stood_still(), 1);
    }
}
