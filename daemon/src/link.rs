//! The link to the metadata server: registration, heartbeats, and requests of other tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use rackpool_access::CredentialsError;
use rackpool_fabric::Keyring;
use rackpool_model::{PageRange, StorePosition};
use rackpool_output::chain;
use rackpool_sync::atomic::{AtomicBool, Ordering};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement, Refusal, Tagged};
use rackpool_wire::swap::ToServer;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::data_plane::{Command, PlaneMetrics, Waker, get, set};
use crate::metadata_connector::{Connection, MetadataConnector};

/// Heartbeats in each lease time.
const BEATS: u32 = 4;
/// Pause between two attempts to reach the metadata server.
const RETRY: Duration = Duration::from_millis(50);
/// How long a connected metadata server may take to answer: its disk or its host may be slow.
/// Shorter than the timeout of clients that wait for their daemon.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Capacity of the queue of swap messages. Messages beyond it are dropped; the machines repeat
/// them.
const SWAP_MESSAGES: usize = 512;
/// Maximum number of unanswered changes. A change is answered when it is durable. The metadata
/// server stops reading a connection with 32 unanswered requests, so this limit leaves room for
/// heartbeats and look-ups.
const CHANGES: usize = 16;

/// A request to the metadata server. `answer` is dropped when the server can't be reached.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: MetadataRequest,
    pub(crate) answer: oneshot::Sender<MetadataReply>,
}

/// A handle to send requests over the link.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    questions: mpsc::Sender<Question>,
    /// Changes, whose answers wait for a durable write.
    changes: mpsc::Sender<Question>,
    swaps: mpsc::Sender<ToServer>,
    beat: Arc<Notify>,
}

impl Requester {
    /// Makes the link send the next heartbeat at once; its answer reports changes of the
    /// membership.
    pub(crate) fn hurry(&self) {
        self.beat.notify_one();
    }

    /// Sends a swap message. The message is lost when the metadata server can't be reached.
    pub(crate) fn tell(&self, message: ToServer) {
        if self.swaps.try_send(message).is_err() {
            tracing::debug!("not sent to the metadata server: {message:?}");
        }
    }

    /// Returns the metadata server's answer; `None` when it can't be reached or does not answer
    /// within [`TIMEOUT`]. A request outside its bounds is refused here, because one connection
    /// serves all clients of the rack.
    pub(crate) async fn ask(&self, request: MetadataRequest) -> Option<MetadataReply> {
        if let Err(reason) = request.check() {
            return Some(MetadataReply::Refused(Refusal::OutOfBounds(reason)));
        }
        let line = match request {
            MetadataRequest::PutRoot { .. } => &self.changes,
            _ => &self.questions,
        };
        let (answer, receiver) = oneshot::channel();
        let answered = async {
            line.send(Question { request, answer }).await.ok()?;
            receiver.await.ok()
        };
        tokio::time::timeout(TIMEOUT, answered).await.ok()?
    }
}

/// The unanswered requests of a connection, by tag.
#[derive(Debug, Default)]
struct Unanswered {
    requesters: BTreeMap<u64, oneshot::Sender<MetadataReply>>,
    changes: BTreeSet<u64>,
}

impl Unanswered {
    /// Passes an answer on to its requester. Returns the answer if no request has the tag.
    fn answered(&mut self, tag: u64, message: MetadataReply) -> Option<MetadataReply> {
        self.changes.remove(&tag);
        let Some(requester) = self.requesters.remove(&tag) else { return Some(message) };
        // The requester may have stopped waiting.
        let _ = requester.send(message);
        None
    }
}

/// The answer to a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    pub(crate) pages: PageRange,
    /// The commit that the answer is based on.
    pub(crate) position: StorePosition,
}

/// The state of the link.
pub(crate) struct MetadataLink {
    server: MetadataConnector,
    /// Set when a registration was sent and not refused: the server may have registered the rack.
    is_in_doubt: AtomicBool,
    pub(crate) announcement: RackAnnouncement,
    pub(crate) metrics: Arc<PlaneMetrics>,
    /// The pages that the memory already has.
    known: Option<PageRange>,
    /// The fabric's keyring, which receives the pool's key.
    keyring: Keyring,
    /// The lease time from this daemon's options.
    lease: Duration,
    questions: mpsc::Receiver<Question>,
    changes: mpsc::Receiver<Question>,
    swaps: mpsc::Receiver<ToServer>,
    beat: Arc<Notify>,
}

/// The metadata server's store is not the one that registered this memory, or is older.
#[derive(Debug, thiserror::Error)]
#[error(
    "the metadata server at {address} has lost its store, or has an older copy of it, or another one: start it with the store that it had, or remove the rack's folder to start with an empty rack"
)]
struct StoreLost {
    address: String,
}

/// The metadata server accepts connections, or its host drops packets, and no answer comes.
#[derive(Debug, thiserror::Error)]
#[error(
    "the metadata server at {address} gave no answer within {} s: read its log, and check on its host whether the process is stopped, its disk hangs or a firewall drops the packets of this daemon; start this daemon again if it does not continue by itself",
    TIMEOUT.as_secs()
)]
struct Silent {
    address: String,
}

/// Racks with different lease times could not rely on each other's leases.
#[derive(Debug, thiserror::Error)]
#[error(
    "leases of this pool last {pool_ms} ms, and this daemon was started with {own_ms} ms: start it with --lease-ms {pool_ms}, like all daemons of the pool"
)]
struct OtherLease {
    pool_ms: u64,
    own_ms: u128,
}

impl MetadataLink {
    /// Creates a link and the handle to send requests over it.
    pub(crate) fn new(
        server: MetadataConnector,
        announcement: RackAnnouncement,
        metrics: Arc<PlaneMetrics>,
        known: Option<PageRange>,
        keyring: Keyring,
        lease: Duration,
    ) -> (Self, Requester) {
        let (sender, questions) = mpsc::channel(64);
        let (changes_sender, changes) = mpsc::channel(64);
        let (swaps_sender, swaps) = mpsc::channel(SWAP_MESSAGES);
        let beat = Arc::new(Notify::new());
        let requester = Requester {
            questions: sender,
            changes: changes_sender,
            swaps: swaps_sender,
            beat: Arc::clone(&beat),
        };
        let link = Self {
            server,
            is_in_doubt: AtomicBool::new(false),
            announcement,
            metrics,
            known,
            keyring,
            lease,
            questions,
            changes,
            swaps,
            beat,
        };
        (link, requester)
    }

    /// Registers for the first time. Returns `None` when the metadata server can't be reached,
    /// unless `must_reach`.
    ///
    /// # Errors
    /// When the metadata server refuses, or can't be reached and `must_reach` is set.
    pub(crate) async fn register(
        &mut self,
        must_reach: bool,
    ) -> anyhow::Result<Option<Registered>> {
        let attempt = tokio::time::timeout(TIMEOUT, self.try_register()).await;
        match attempt {
            Ok(Ok((_, registered))) => {
                self.announcement.seen = Some(registered.position);
                Ok(Some(registered))
            }
            Ok(Err(error))
                if must_reach
                    || error.downcast_ref::<Refusal>().is_some()
                    || error.downcast_ref::<CredentialsError>().is_some()
                    || error.downcast_ref::<StoreLost>().is_some()
                    || error.downcast_ref::<OtherLease>().is_some() =>
            {
                Err(error)
            }
            Err(_) if must_reach => bail!(Silent { address: self.server.address().to_owned() }),
            _ => Ok(None),
        }
    }

    /// Returns true if the metadata server may have registered the rack, as far as this daemon
    /// knows.
    pub(crate) fn may_be_registered(&self) -> bool {
        self.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Records the pages that the memory has from now on.
    pub(crate) const fn remember(&mut self, pages: PageRange) {
        self.known = Some(pages);
    }

    async fn try_register(&self) -> anyhow::Result<(Connection, Registered)> {
        let mut connection = self.server.connect().await?;
        self.is_in_doubt.store(true, Ordering::Relaxed);
        connection.send(MetadataRequest::Register(self.announcement.clone())).await?;
        match connection.receive().await?.message {
            MetadataReply::Registered { pages, lease_ms, position, fabric_key } => {
                // The server has checked the same; the rack does not rely on that.
                let is_later =
                    |seen: StorePosition| seen.store != position.store || seen > position;
                let is_stale = self.announcement.seen.is_some_and(is_later);
                if is_stale || self.known.is_some_and(|known| known != pages) {
                    bail!(StoreLost { address: self.server.address().to_owned() });
                }
                if fabric_key.is_some_and(|key| self.keyring.replace(key)) {
                    tracing::debug!("got the pool's fabric key");
                }
                let lease = Duration::from_millis(lease_ms);
                if lease != self.lease {
                    bail!(OtherLease { pool_ms: lease_ms, own_ms: self.lease.as_millis() });
                }
                Ok((connection, Registered { pages, position }))
            }
            MetadataReply::Refused(refusal) => {
                self.is_in_doubt.store(false, Ordering::Relaxed);
                bail!(refusal)
            }
            other => bail!(
                "the metadata server answered {other:?} to a registration: run the same release of it and of the daemons"
            ),
        }
    }

    /// Keeps the rack registered for ever. Returns only when a newer daemon serves the rack.
    pub(crate) async fn keep(mut self, plane: Arc<Waker>) -> anyhow::Result<()> {
        let mut reported = false;
        loop {
            match tokio::time::timeout(TIMEOUT, self.try_register()).await {
                Ok(Ok((connection, Registered { position, .. }))) => {
                    reported = false;
                    set(&self.metrics.is_member, 1);
                    self.heard_of(position, &plane);
                    let served = self.serve(connection, &plane).await;
                    set(&self.metrics.is_member, 0);
                    if let Err(error) = served {
                        if let Some(Refusal::Superseded { .. }) = error.downcast_ref::<Refusal>() {
                            return Err(error);
                        }
                        tracing::warn!("the metadata server is away: {}", chain(error.as_ref()));
                    }
                }
                Ok(Err(error)) => {
                    if let Some(Refusal::Superseded { .. }) = error.downcast_ref::<Refusal>() {
                        return Err(error);
                    }
                    if !reported {
                        tracing::warn!("{}", chain(error.as_ref()));
                        reported = true;
                    }
                }
                Err(_) => {
                    tracing::warn!("{}", Silent { address: self.server.address().to_owned() })
                }
            }
            // Drop the requests that arrived meanwhile: requesters get no answer rather than a late
            // one.
            while self.questions.try_recv().is_ok() {}
            while self.changes.try_recv().is_ok() {}
            while self.swaps.try_recv().is_ok() {}
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn serve(&mut self, mut connection: Connection, plane: &Waker) -> anyhow::Result<()> {
        let lease = self.lease;
        let mut beat = tokio::time::interval(lease / BEATS);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen_version = 0;
        let mut asked = Unanswered::default();
        // Counts heartbeats without an answer. The time since the last answer would be misleading:
        // while this process is stopped, its clock advances and answers wait to be read.
        let mut unanswered = 0;
        let hurry = Arc::clone(&self.beat);
        loop {
            tokio::select! {
                () = hurry.notified() => beat.reset_immediately(),
                due = beat.tick() => {
                    if unanswered > BEATS {
                        bail!("no answer within a lease");
                    }
                    unanswered += 1;
                    self.say_if_starved(due.elapsed(), lease);
                    self.send_heartbeat(&mut connection, seen_version).await?;
                }
                reply = connection.receive() => {
                    unanswered = 0;
                    let Tagged { tag, message } = reply?;
                    let Some(message) = asked.answered(tag, message) else { continue };
                    if let MetadataReply::Renewed { position, .. } = &message {
                        self.heard_of(*position, plane);
                    }
                    match message {
                        MetadataReply::Renewed { version, members, .. }
                        | MetadataReply::Members { version, members } => {
                            if !members.is_empty() {
                                seen_version = version;
                                plane.tell(Command::Members(members));
                            }
                        }
                        MetadataReply::Swap { message, position } => {
                            self.heard_of(position, plane);
                            plane.tell(Command::ServerSent(message));
                        }
                        MetadataReply::Refused(refusal) => bail!(refusal),
                        other => tracing::debug!("the metadata server answered a request that was not sent: {other:?}"),
                    }
                }
                message = self.swaps.recv() => {
                    let Some(message) = message else { return Ok(()) };
                    let RackAnnouncement { rack, incarnation, .. } = self.announcement;
                    connection.send(MetadataRequest::Swap { rack, incarnation, message }).await?;
                }
                question = self.questions.recv() => {
                    let Some(Question { request, answer }) = question else { return Ok(()) };
                    // The requester will contact the page's home and must know whether that rack is
                    // alive. The members may have changed since the last heartbeat, so a heartbeat
                    // is sent first: its answer arrives before that of the request.
                    if matches!(request, MetadataRequest::Locate { .. }) {
                        self.send_heartbeat(&mut connection, seen_version).await?;
                    }
                    let tag = connection.send(request).await?;
                    asked.requesters.insert(tag, answer);
                }
                change = self.changes.recv(), if asked.changes.len() < CHANGES => {
                    let Some(Question { request, answer }) = change else { return Ok(()) };
                    // The requester has given up; its client has learned that the change may not
                    // have been made.
                    if answer.is_closed() {
                        continue;
                    }
                    let tag = connection.send(request).await?;
                    asked.requesters.insert(tag, answer);
                    asked.changes.insert(tag);
                }
            }
        }
    }

    /// Warns if a heartbeat is sent late, because this process did not run in time.
    fn say_if_starved(&self, late: Duration, lease: Duration) {
        if late > lease / BEATS {
            tracing::warn!(
                "{}: a heartbeat is {} ms late, and leases last {}: this host is overloaded or the daemon was stopped; if it happens often, give the daemon a core (--cpu), or start all daemons and the metadata server with a longer --lease-ms",
                self.announcement.rack,
                late.as_millis(),
                lease.as_millis()
            );
        }
    }

    /// Passes the metadata server's last commit to the data plane, which stores it before it acts
    /// on what follows.
    fn heard_of(&mut self, position: StorePosition, plane: &Waker) {
        if self.announcement.seen < Some(position) {
            self.announcement.seen = Some(position);
            plane.tell(Command::Committed(position));
        }
    }

    async fn send_heartbeat(
        &self,
        connection: &mut Connection,
        seen_version: u64,
    ) -> anyhow::Result<()> {
        let free = get(&self.metrics.free_frames);
        let heartbeat = MetadataRequest::Heartbeat {
            rack: self.announcement.rack,
            incarnation: self.announcement.incarnation,
            free_frames: u32::try_from(free).unwrap_or(u32::MAX),
            seen_version,
        };
        connection.send(heartbeat).await.map(drop)
    }

    /// Gives up the rack's lease at the metadata server.
    pub(crate) async fn leave(server: &MetadataConnector, announcement: &RackAnnouncement) {
        let goodbye = async {
            let mut connection = server.connect().await?;
            let (rack, incarnation) = (announcement.rack, announcement.incarnation);
            connection.send(MetadataRequest::Leave { rack, incarnation }).await?;
            connection.receive().await
        };
        match tokio::time::timeout(Duration::from_millis(500), goodbye).await {
            Ok(Ok(_)) => {}
            _ => tracing::debug!("the lease runs out by itself"),
        }
    }
}

#[cfg(test)]
mod tests;
