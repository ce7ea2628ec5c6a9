use std::convert::Infallible;
use std::io;
use std::time::Duration;

use rackpool_proto::metadata::ConnectionToken;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, PUSHED, Refusal, Tagged};
use rackpool_wire::{CodecError, Unreadable, encode};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::admission::{Admitted, Duplex, read_some};
use crate::permission::permit;

/// Capacity of the server's inbox, in messages of all connections.
pub(crate) const INBOX: usize = 1024;

/// Maximum number of unanswered requests of a connection; the server does not read further ones.
const MAX_OUTSTANDING: usize = 32;

/// Bytes of answers that are written at once, unless one answer is longer.
const WRITE_BYTES: usize = 64 << 10;

/// How long a peer may take to accept its answers.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of pushed messages that wait to be sent. Further ones are dropped: racks ask
/// again.
const MAX_PUSHED: usize = 256;

/// The server's end of a connection's queues.
#[derive(Debug)]
pub(crate) struct Outlet {
    answers: mpsc::Sender<Tagged<MetadataReply>>,
    pushed: mpsc::Sender<Tagged<MetadataReply>>,
}

/// The messages to be sent over a connection.
pub(crate) struct Outgoing {
    /// The capacity is the maximum number of unanswered requests.
    pub(crate) answers: mpsc::Receiver<Tagged<MetadataReply>>,
    pushed: mpsc::Receiver<Tagged<MetadataReply>>,
}

impl Outlet {
    pub(crate) fn new() -> (Self, Outgoing) {
        let (answers, outgoing_answers) = mpsc::channel(MAX_OUTSTANDING);
        let (pushed, outgoing_pushed) = mpsc::channel(MAX_PUSHED);
        (Self { answers, pushed }, Outgoing { answers: outgoing_answers, pushed: outgoing_pushed })
    }

    /// Queues an answer. Returns false if the connection has ended. The queue can't be full,
    /// because its capacity is the maximum number of unanswered requests.
    pub(crate) fn answer(&self, answer: Tagged<MetadataReply>) -> bool {
        self.answers.try_send(answer).is_ok()
    }

    /// Queues a message without a request. Drops it if the queue is full, because the peer reads
    /// too slowly.
    pub(crate) fn push(&self, message: MetadataReply) {
        if self.pushed.try_send(Tagged { tag: PUSHED, message }).is_err() {
            debug!("a peer does not read its notifications about swaps");
        }
    }
}

/// A message from a connection to the server.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// The connection has begun.
    Opened { token: ConnectionToken, outlet: Outlet },
    /// The peer has sent a request.
    Asked { token: ConnectionToken, request: Tagged<MetadataRequest> },
    /// The connection has ended.
    Closed { token: ConnectionToken },
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("the peer closed it")]
    Peer,
    #[error("the server stops")]
    Stopping,
    #[error("{0}")]
    Garbage(#[from] CodecError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the peer read no answer for {} s", WRITE_TIMEOUT.as_secs())]
    Stuck,
    #[error("the peer sent no request for {} s", .0.as_secs())]
    Idle(Duration),
}

/// Serves one connection to its end. A peer that sends no request for `idle` is disconnected.
pub(crate) async fn run(
    admitted: Admitted,
    token: ConnectionToken,
    inbox: mpsc::Sender<Inbound>,
    idle: Duration,
) {
    let peer = admitted.peer;
    match admitted.party {
        Some(party) => debug!("connection from {peer}, {party}"),
        None => debug!("connection from {peer}"),
    }
    let (outlet, outgoing) = Outlet::new();
    if inbox.send(Inbound::Opened { token, outlet }).await.is_err() {
        return;
    }
    let Err(ending) = converse(admitted, token, &inbox, outgoing, idle).await;
    match ending {
        Ending::Garbage(_) | Ending::Stuck => warn!("closed the connection from {peer}: {ending}"),
        _ => debug!("connection from {peer} ended: {ending}"),
    }
    // A server that has stopped needs no notification.
    let _ = inbox.send(Inbound::Closed { token }).await;
}

async fn converse(
    admitted: Admitted,
    token: ConnectionToken,
    inbox: &mpsc::Sender<Inbound>,
    Outgoing { mut answers, mut pushed }: Outgoing,
    idle: Duration,
) -> Result<Infallible, Ending> {
    let Admitted { mut stream, peer, party, mut frames, first } = admitted;
    let mut first = Some(first);
    let mut outstanding = 0;
    let mut heard = Instant::now();
    loop {
        while outstanding < MAX_OUTSTANDING {
            let asked = match first.take() {
                Some(request) => Some(request),
                None => match frames.next_request()? {
                    Some(Ok(request)) => Some(request),
                    // A daemon's connection carries the requests of all clients of its rack, so
                    // only this request is refused.
                    Some(Err(Unreadable { tag, reason })) => {
                        debug!("refused a request of {peer}: {reason}");
                        let message = MetadataReply::Refused(Refusal::OutOfBounds(reason));
                        write(&mut *stream, &encode_answer(Tagged { tag, message })).await?;
                        continue;
                    }
                    None => None,
                },
            };
            let Some(request) = asked else { break };
            // Swap messages have no answer. A peer that sends many is slowed down by the inbox.
            let is_answered = !matches!(request.message, MetadataRequest::Swap { .. });
            if let Err(refusal) = permit(party, &request.message) {
                let tag = if is_answered { request.tag } else { PUSHED };
                let answer = Tagged { tag, message: MetadataReply::Refused(refusal) };
                write(&mut *stream, &encode_answer(answer)).await?;
                continue;
            }
            outstanding += usize::from(is_answered);
            if inbox.send(Inbound::Asked { token, request }).await.is_err() {
                return Err(Ending::Stopping);
            }
        }
        tokio::select! {
            answer = answers.recv() => {
                let answer = answer.ok_or(Ending::Stopping)?;
                let (bytes, count) = encode_waiting(answer, &mut answers);
                outstanding -= count;
                write(&mut *stream, &bytes).await?;
                heard = Instant::now();
            }
            message = pushed.recv() => {
                let (bytes, _) = encode_waiting(message.ok_or(Ending::Stopping)?, &mut pushed);
                write(&mut *stream, &bytes).await?;
            }
            read = read_some(&mut *stream, &mut frames), if outstanding < MAX_OUTSTANDING => {
                if read? == 0 {
                    return Err(Ending::Peer);
                }
                heard = Instant::now();
            }
            () = tokio::time::sleep_until(heard + idle), if outstanding == 0 => {
                return Err(Ending::Idle(idle));
            }
        }
    }
}

async fn write(stream: &mut dyn Duplex, bytes: &[u8]) -> Result<(), Ending> {
    let written = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    match tokio::time::timeout(WRITE_TIMEOUT, written).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Ending::Stuck),
    }
}

/// Encodes an answer and the answers that wait behind it. Returns the bytes and the number of
/// answers.
fn encode_waiting(
    first: Tagged<MetadataReply>,
    answers: &mut mpsc::Receiver<Tagged<MetadataReply>>,
) -> (Vec<u8>, usize) {
    let mut bytes = encode_answer(first);
    let mut count = 1;
    while bytes.len() < WRITE_BYTES
        && let Ok(answer) = answers.try_recv()
    {
        bytes.extend(encode_answer(answer));
        count += 1;
    }
    (bytes, count)
}

fn encode_answer(answer: Tagged<MetadataReply>) -> Vec<u8> {
    encode(&answer).unwrap_or_else(|error| {
        // The bounds on racks and names keep every answer within a message, so this does not
        // happen.
        warn!("an answer can't be encoded: {error}");
        let message = MetadataReply::Refused(Refusal::Invalid(error.to_string()));
        encode(&Tagged { tag: answer.tag, message }).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use rackpool_wire::FrameReader;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn admitted(stream: tokio::io::DuplexStream) -> Admitted {
        Admitted {
            stream: Box::new(stream),
            peer: ([127, 0, 0, 1], 1).into(),
            party: None,
            frames: FrameReader::new(),
            first: Tagged { tag: 1, message: MetadataRequest::Status },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_any_more_is_let_go_but_not_while_it_waits() {
        const IDLE: Duration = Duration::from_secs(60);
        let (mut peer, stream) = tokio::io::duplex(4096);
        let (inbox, mut inbound) = mpsc::channel(8);
        let served = tokio::spawn(run(admitted(stream), ConnectionToken(7), inbox, IDLE));
        let Some(Inbound::Opened { outlet, .. }) = inbound.recv().await else { panic!() };
        let Some(Inbound::Asked { .. }) = inbound.recv().await else { panic!() };
        tokio::time::sleep(10 * IDLE).await;
        assert!(!served.is_finished(), "the answer is owed");
        assert!(outlet.answer(Tagged { tag: 1, message: MetadataReply::Left }));
        let answered = Instant::now();
        let mut answer = Vec::new();
        peer.read_to_end(&mut answer).await.unwrap();
        assert!(!answer.is_empty());
        assert_eq!(answered.elapsed().as_secs(), IDLE.as_secs());
        assert!(matches!(inbound.recv().await, Some(Inbound::Closed { .. })));
    }
}
