use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::ready;
use std::time::Duration;

use rackpool_access::{CredentialsError, Party, explain, require_same_user};
use rackpool_wire::bounds::MAX_METADATA_REQUEST_BYTES;
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal, Tagged};
use rackpool_wire::{CodecError, FrameReader, encode};
use rustix::net::sockopt::set_tcp_thin_linear_timeouts;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// How long an unauthenticated peer may take for the handshake and its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// Limits the tasks that read the kernel's tables of sockets at the same time.
static LOOKS: Semaphore = Semaphore::const_new(2);

/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// The byte stream of a connection, with or without TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An authenticated connection, with its first request.
pub(crate) struct Admitted {
    pub(crate) stream: Box<dyn Duplex>,
    pub(crate) peer: SocketAddr,
    /// The peer's party; `None` if the server requires no credentials.
    pub(crate) party: Option<Party>,
    pub(crate) frames: FrameReader,
    pub(crate) first: Tagged<MetadataRequest>,
}

/// Why an unauthenticated peer is rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejection {
    #[error("it sent no request within {} s", FIRST_REQUEST.as_secs())]
    Silent,
    #[error("it closed the connection without a request")]
    Left,
    #[error("{0}")]
    Garbage(#[from] CodecError),
    #[error("it uses TLS, but this server was started without --credentials")]
    SpeaksTls,
    #[error("it has no credentials: start it with --credentials")]
    NoCredentials,
    #[error("{0}")]
    Handshake(String),
    #[error("{0}")]
    UnauthenticatedPeer(#[from] CredentialsError),
    #[error("its certificate names no party of a pool")]
    Nobody,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it sent no request, and newer connections took its place")]
    TooManyPeers,
    #[error("the limit of {0} connections is reached")]
    Full(usize),
}

/// Authenticates a peer and reads its first request, within [`FIRST_REQUEST`].
pub(crate) async fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
) -> Result<Admitted, Rejection> {
    match tokio::time::timeout(FIRST_REQUEST, knock(stream, peer, tls)).await {
        Ok(result) => result,
        Err(_) => Err(Rejection::Silent),
    }
}

async fn knock(
    mut stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
) -> Result<Admitted, Rejection> {
    // Answers are small, and the peer waits for each.
    stream.set_nodelay(true)?;
    // Lost segments are repeated at a constant interval. With exponential backoff the pauses would
    // outlast a network interruption.
    set_tcp_thin_linear_timeouts(&stream, true).map_err(io::Error::from)?;
    // A peer that sends nothing causes no allocation.
    let mut start = [0; 2];
    let length = stream.peek(&mut start).await?;
    if length == 0 {
        return Err(Rejection::Left);
    }
    let Some(tls) = tls else {
        // A request that begins with these bytes would exceed the maximum size.
        let speaks_tls = start == [TLS_HANDSHAKE, 3];
        let (frames, first) = match first_request(&mut stream).await {
            Err(Rejection::Garbage(_)) if speaks_tls => return Err(Rejection::SpeaksTls),
            asked => asked?,
        };
        // Only after the first request: the kernel's tables are long when thousands of silent peers
        // are connected.
        if let Err(why) = same_user(stream.local_addr()?, peer).await? {
            refuse(&mut stream, why.to_string()).await?;
            return Err(why.into());
        }
        return Ok(Admitted { stream: Box::new(stream), peer, party: None, frames, first });
    };
    if start[0] != TLS_HANDSHAKE {
        refuse_in_plain_words(&mut stream).await?;
        return Err(Rejection::NoCredentials);
    }
    let accepted = tls.accept(stream).await;
    let mut stream = accepted.map_err(|error| Rejection::Handshake(explain(&error)))?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let party = certificates.first().and_then(Party::of_certificate).ok_or(Rejection::Nobody)?;
    let (frames, first) = first_request(&mut stream).await?;
    Ok(Admitted { stream: Box::new(stream), peer, party: Some(party), frames, first })
}

async fn same_user(
    local: SocketAddr,
    peer: SocketAddr,
) -> io::Result<Result<(), CredentialsError>> {
    let _turn = LOOKS.acquire().await.map_err(io::Error::other)?;
    let looked = tokio::task::spawn_blocking(move || require_same_user(local, peer)).await;
    looked.map_err(io::Error::other)
}

/// Refuses a peer that was started without credentials, in plain text that it can show its
/// operator.
async fn refuse_in_plain_words(stream: &mut TcpStream) -> io::Result<()> {
    let reason = "this metadata server requires credentials: give them with --credentials";
    refuse(stream, reason.into()).await
}

async fn refuse(stream: &mut TcpStream, reason: String) -> io::Result<()> {
    let message = MetadataReply::Refused(Refusal::Denied(reason));
    let bytes = encode(&Tagged { tag: 0, message }).map_err(io::Error::other)?;
    // Read what the peer has sent: closing a socket with unread bytes would reset the connection,
    // and the peer could lose the answer.
    let _ = stream.try_read(&mut [0; 4096]);
    stream.write_all(&bytes).await?;
    stream.shutdown().await
}

async fn first_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<(FrameReader, Tagged<MetadataRequest>), Rejection> {
    let mut frames = FrameReader::with_limit(MAX_METADATA_REQUEST_BYTES);
    loop {
        if let Some(request) = frames.next()? {
            return Ok((frames, request));
        }
        match read_some(stream, &mut frames).await {
            Ok(0) => return Err(Rejection::Left),
            Ok(_) => {}
            // With TLS 1.3 a client learns only now that its certificate is refused, and the server
            // learns why the client refuses the server's.
            Err(error) => return Err(Rejection::Handshake(explain(&error))),
        }
    }
}

/// Waits for bytes and reads them; returns 0 at the end. Cancel-safe. The buffer exists only while
/// there are bytes to read, so an idle connection has none.
pub(crate) async fn read_some(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    frames: &mut FrameReader,
) -> io::Result<usize> {
    poll_fn(|context| {
        let mut bytes = [0; 4096];
        let mut buffer = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer))?;
        frames.extend(buffer.filled());
        std::task::Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}
