//! The link to the metadata server: registration, heartbeats, and the questions of others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rackpool_model::PageRange;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, RackAnnouncement, Refusal, Tagged};
use rackpool_wire::{FrameReader, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};

use crate::plane::{Command, Figures, Waker, get};

/// Between two attempts to reach the metadata server.
const RETRY: Duration = Duration::from_millis(50);
/// How long a question waits for a metadata server that is away.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question to the metadata server; no answer is given when it can't be reached.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) request: MetadataRequest,
    pub(crate) answer: oneshot::Sender<MetadataReply>,
}

/// Who asks what.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    questions: mpsc::Sender<Question>,
    beat: Arc<Notify>,
}

impl Asker {
    /// Has the next heartbeat sent at once: its answer tells what has changed.
    pub(crate) fn hurry(&self) {
        self.beat.notify_one();
    }

    /// The metadata server's answer, `None` when it can't be reached.
    pub(crate) async fn ask(&self, request: MetadataRequest) -> Option<MetadataReply> {
        let (answer, receiver) = oneshot::channel();
        self.questions.send(Question { request, answer }).await.ok()?;
        tokio::time::timeout(PATIENCE, receiver).await.ok()?.ok()
    }
}

/// The link's own state.
pub(crate) struct Link {
    pub(crate) address: String,
    pub(crate) announcement: RackAnnouncement,
    pub(crate) figures: Arc<Figures>,
    /// The pages the memory has already.
    known: Option<PageRange>,
    questions: mpsc::Receiver<Question>,
    beat: Arc<Notify>,
}

/// The metadata server does not know this memory as the one it is.
#[derive(Debug, thiserror::Error)]
#[error(
    "the metadata server at {address} gives this memory other pages than it has: it has lost its store; start it with the store that it had, or remove the rack's folder to give its contents up"
)]
struct StoreLost {
    address: String,
}

/// One connection to the metadata server.
struct Connection {
    stream: TcpStream,
    frames: FrameReader,
    next_tag: u64,
}

impl Connection {
    async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("no metadata server at {address}: start it first"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, frames: FrameReader::new(), next_tag: 0 })
    }

    async fn send(&mut self, message: MetadataRequest) -> anyhow::Result<u64> {
        self.next_tag += 1;
        let frame = encode(&Tagged { tag: self.next_tag, message })?;
        self.stream.write_all(&frame).await?;
        Ok(self.next_tag)
    }

    /// Safe to be dropped while it waits.
    async fn receive(&mut self) -> anyhow::Result<Tagged<MetadataReply>> {
        loop {
            if let Some(reply) = self.frames.next()? {
                return Ok(reply);
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes).await? {
                0 => bail!("the metadata server closed the connection"),
                count => self.frames.extend(&bytes[..count]),
            }
        }
    }
}

impl Link {
    /// A link, and the way to ask over it.
    pub(crate) fn new(
        address: String,
        announcement: RackAnnouncement,
        figures: Arc<Figures>,
        known: Option<PageRange>,
    ) -> (Self, Asker) {
        let (sender, questions) = mpsc::channel(64);
        let beat = Arc::new(Notify::new());
        let asker = Asker { questions: sender, beat: Arc::clone(&beat) };
        (Self { address, announcement, figures, known, questions, beat }, asker)
    }

    /// Registers for the first time. Fails when the metadata server refuses; waits for it when it
    /// is not there, unless `must_reach`.
    pub(crate) async fn register(&self, must_reach: bool) -> anyhow::Result<Option<PageRange>> {
        let attempt = tokio::time::timeout(PATIENCE, self.try_register()).await;
        match attempt {
            Ok(Ok((_, pages, _))) => Ok(Some(pages)),
            Ok(Err(error))
                if must_reach
                    || error.downcast_ref::<Refusal>().is_some()
                    || error.downcast_ref::<StoreLost>().is_some() =>
            {
                Err(error)
            }
            Err(_) if must_reach => bail!("the metadata server at {} is silent", self.address),
            _ => Ok(None),
        }
    }

    /// The memory has these pages from now on.
    pub(crate) const fn remember(&mut self, pages: PageRange) {
        self.known = Some(pages);
    }

    async fn try_register(&self) -> anyhow::Result<(Connection, PageRange, Duration)> {
        let mut connection = Connection::open(&self.address).await?;
        connection.send(MetadataRequest::Register(self.announcement.clone())).await?;
        match connection.receive().await?.message {
            MetadataReply::Registered { pages, lease_ms } => {
                if self.known.is_some_and(|known| known != pages) {
                    bail!(StoreLost { address: self.address.clone() });
                }
                Ok((connection, pages, Duration::from_millis(lease_ms)))
            }
            MetadataReply::Refused(refusal) => bail!(refusal),
            other => bail!("the metadata server answered {other:?} to a registration"),
        }
    }

    /// Keeps the rack a member for ever; ends only when a newer daemon serves the rack.
    pub(crate) async fn keep(mut self, plane: Arc<Waker>) -> anyhow::Result<()> {
        let mut reported = false;
        loop {
            match tokio::time::timeout(PATIENCE, self.try_register()).await {
                Ok(Ok((connection, _, lease))) => {
                    reported = false;
                    if let Err(error) = self.serve(connection, lease, &plane).await {
                        if let Some(Refusal::Superseded { .. }) = error.downcast_ref::<Refusal>() {
                            return Err(error);
                        }
                        tracing::warn!("the metadata server is away: {error:#}");
                    }
                }
                Ok(Err(error)) => {
                    if let Some(Refusal::Superseded { .. }) = error.downcast_ref::<Refusal>() {
                        return Err(error);
                    }
                    if !reported {
                        tracing::warn!("{error:#}");
                        reported = true;
                    }
                }
                Err(_) => tracing::warn!("the metadata server at {} is silent", self.address),
            }
            // Questions asked while it is away get no answer instead of a late one.
            while self.questions.try_recv().is_ok() {}
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn serve(
        &mut self,
        mut connection: Connection,
        lease: Duration,
        plane: &Waker,
    ) -> anyhow::Result<()> {
        let mut beat = tokio::time::interval(lease / 4);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen_version = 0;
        let mut asked: BTreeMap<u64, oneshot::Sender<MetadataReply>> = BTreeMap::new();
        let mut last_heard = Instant::now();
        let hurry = Arc::clone(&self.beat);
        loop {
            tokio::select! {
                () = hurry.notified() => beat.reset_immediately(),
                _ = beat.tick() => {
                    if last_heard.elapsed() > lease {
                        bail!("no answer within a lease");
                    }
                    let free = get(&self.figures.free_frames);
                    connection.send(MetadataRequest::Heartbeat {
                        rack: self.announcement.rack,
                        incarnation: self.announcement.incarnation,
                        free_frames: u32::try_from(free).unwrap_or(u32::MAX),
                        seen_version,
                    }).await?;
                }
                reply = connection.receive() => {
                    last_heard = Instant::now();
                    let Tagged { tag, message } = reply?;
                    if let Some(asker) = asked.remove(&tag) {
                        // Who no longer waits needs no answer.
                        let _ = asker.send(message);
                        continue;
                    }
                    match message {
                        MetadataReply::Renewed { version, members } => {
                            if !members.is_empty() {
                                seen_version = version;
                                plane.tell(Command::Members(members));
                            }
                        }
                        MetadataReply::Refused(refusal) => bail!(refusal),
                        other => tracing::debug!("an answer to nothing: {other:?}"),
                    }
                }
                question = self.questions.recv() => {
                    let Some(Question { request, answer }) = question else { return Ok(()) };
                    let tag = connection.send(request).await?;
                    asked.insert(tag, answer);
                }
            }
        }
    }

    /// Gives the lease back.
    pub(crate) async fn leave(address: &str, announcement: &RackAnnouncement) {
        let goodbye = async {
            let mut connection = Connection::open(address).await?;
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
