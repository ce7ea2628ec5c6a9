use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::Source;
use crate::page::render;
use crate::process;
use crate::request::{Asked, MAX_HEAD, Served, read};

/// Maximum number of simultaneous connections.
const CONNECTIONS: usize = 32;
/// Maximum duration of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`: a connection has to end before the next can be accepted.
const RETRY: Duration = Duration::from_millis(100);

/// Content type of answers other than metrics.
const WORDS: &str = "text/plain; charset=utf-8";

/// Why metrics are not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Other hosts could connect to the address.
    #[error(
        "--metrics {0}: metrics are served to this host only: take a loopback address like 127.0.0.1:{port}, and let an agent on this host pass them on", port = .0.port()
    )]
    NotLoopback(SocketAddr),
    /// The address can't be bound.
    #[error("can't listen on --metrics {address}: {source}; choose another one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The thread that serves metrics can't be started.
    #[error("no thread can be started for --metrics: {0}")]
    Thread(#[from] io::Error),
}

/// Refuses an address of `--metrics` that other hosts could reach.
///
/// # Errors
/// When the address is not a loopback address.
pub fn check(address: SocketAddr) -> Result<(), BindError> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(BindError::NotLoopback(address))
}

/// Binds the loopback address of `--metrics`; port 0 takes a free port. Logs the address.
///
/// # Errors
/// When other hosts could connect, or the address can't be bound.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    check(address)?;
    process::started();
    let failed = |source| BindError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    tracing::info!("metrics at http://{}/metrics", listener.local_addr().map_err(failed)?);
    Ok(listener)
}

/// Serves the metrics for ever. A connection ends after 5 s at the latest, whatever its peer sends
/// or fails to read.
pub async fn serve(listener: TcpListener, source: Arc<dyn Source>) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    let _place = place;
                    let answered = tokio::time::timeout(TIMEOUT, answer(stream, &source)).await;
                    if !matches!(answered, Ok(Ok(()))) {
                        tracing::debug!("a scrape ended early: {answered:?}");
                    }
                });
            }
            Err(error) => {
                tracing::debug!("can't accept a scrape: {error}");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Reads one request and writes one answer.
async fn answer(mut stream: TcpStream, source: &Arc<dyn Source>) -> io::Result<()> {
    let mut head = Vec::new();
    let asked = loop {
        match read(&head) {
            Asked::Unfinished => {}
            asked => break asked,
        }
        let mut bytes = [0; 1024];
        let room = bytes.len().min(MAX_HEAD - head.len());
        match stream.read(&mut bytes[..room]).await? {
            0 => return Ok(()),
            count => head.extend_from_slice(&bytes[..count]),
        }
    };
    let (what, with_text) = match asked {
        Asked::Served { what, with_text } => (Ok(what), with_text),
        Asked::Wrong(status) => (Err(status), true),
        Asked::Unfinished => return Ok(()),
    };
    let (status, kind, text) = match what {
        Ok(Served::Metrics(format)) => match render(source, format) {
            Ok(text) => ("200 OK", format.content_type(), text),
            Err(_) => ("500 Internal Server Error", WORDS, "no metrics\n".into()),
        },
        Ok(Served::Health) => match source.health() {
            Ok(()) => ("200 OK", WORDS, "ok\n".into()),
            Err(reason) => ("503 Service Unavailable", WORDS, reason + "\n"),
        },
        Err(status) => (status, WORDS, format!("{status}: ask GET /metrics or /healthz\n")),
    };
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        text.len()
    )
    .into_bytes();
    if with_text {
        bytes.extend_from_slice(text.as_bytes());
    }
    stream.write_all(&bytes).await?;
    stream.shutdown().await?;
    // Read the rest of the input: closing a socket with unread bytes would reset the connection,
    // and the peer could lose the answer.
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
