use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rackpool_proto::metadata::ConnectionToken;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal, Tagged};
use rackpool_wire::{CodecError, FrameReader, encode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// Messages of all connections that wait for the server.
pub(crate) const INBOX: usize = 1024;

/// Unanswered requests of one connection; what it sends beyond them is not read.
const MAX_OUTSTANDING: usize = 32;

/// Bytes of answers that are written at once, unless one answer has more.
const WRITE_BYTES: usize = 64 << 10;

/// How long a peer may not take its answers.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// What a connection tells the server.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// It has begun. The queue holds as many answers as it may have unanswered requests.
    Opened { token: ConnectionToken, replies: mpsc::Sender<Tagged<MetadataReply>> },
    /// It has asked something.
    Asked { token: ConnectionToken, request: Tagged<MetadataRequest> },
    /// It has ended.
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
    #[error("the peer took no answer for {} s", WRITE_PATIENCE.as_secs())]
    Stuck,
}

/// Serves one connection to its end.
pub(crate) async fn run(
    stream: TcpStream,
    peer: SocketAddr,
    token: ConnectionToken,
    inbox: mpsc::Sender<Inbound>,
) {
    debug!("connection from {peer}");
    let (replies, answers) = mpsc::channel(MAX_OUTSTANDING);
    if inbox.send(Inbound::Opened { token, replies }).await.is_err() {
        return;
    }
    let ending = converse(stream, token, &inbox, answers).await;
    match ending {
        Ending::Garbage(_) | Ending::Stuck => warn!("closed the connection from {peer}: {ending}"),
        _ => debug!("connection from {peer} ended: {ending}"),
    }
    // A server that is gone needs no notice.
    let _ = inbox.send(Inbound::Closed { token }).await;
}

async fn converse(
    mut stream: TcpStream,
    token: ConnectionToken,
    inbox: &mpsc::Sender<Inbound>,
    mut answers: mpsc::Receiver<Tagged<MetadataReply>>,
) -> Ending {
    // Answers are small and each is waited for.
    if let Err(error) = stream.set_nodelay(true) {
        return error.into();
    }
    let mut frames = FrameReader::new();
    let mut outstanding = 0;
    loop {
        while outstanding < MAX_OUTSTANDING {
            let request = match frames.next() {
                Ok(Some(request)) => request,
                Ok(None) => break,
                Err(error) => return error.into(),
            };
            outstanding += 1;
            if inbox.send(Inbound::Asked { token, request }).await.is_err() {
                return Ending::Stopping;
            }
        }
        tokio::select! {
            answer = answers.recv() => {
                let Some(answer) = answer else { return Ending::Stopping };
                let (bytes, count) = encode_waiting(answer, &mut answers);
                outstanding -= count;
                match tokio::time::timeout(WRITE_PATIENCE, stream.write_all(&bytes)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return error.into(),
                    Err(_) => return Ending::Stuck,
                }
            }
            ready = stream.readable(), if outstanding < MAX_OUTSTANDING => {
                if let Err(ending) = ready.map_err(Ending::from).and_then(|()| read(&stream, &mut frames)) {
                    return ending;
                }
            }
        }
    }
}

/// Reads what is there. The buffer lives only here, so an idle connection has none.
fn read(stream: &TcpStream, frames: &mut FrameReader) -> Result<(), Ending> {
    let mut buffer = [0; 4096];
    match stream.try_read(&mut buffer) {
        Ok(0) => Err(Ending::Peer),
        Ok(length) => {
            frames.extend(&buffer[..length]);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The bytes of an answer and of those that wait behind it, and how many answers they are.
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
        // The limits on racks and names keep every answer within a message.
        warn!("an answer can't be encoded: {error}");
        let message = MetadataReply::Refused(Refusal::Invalid(error.to_string()));
        encode(&Tagged { tag: answer.tag, message }).unwrap_or_default()
    })
}
