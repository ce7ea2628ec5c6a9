//! Connecting to the metadata server: allowed addresses, and TLS with credentials.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rackpool_access::{
    Credentials, CredentialsError, explain, require_loopback, require_server_of_same_user,
};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Tagged};
use rackpool_wire::{FrameReader, encode};
use rustix::net::sockopt::set_tcp_thin_linear_timeouts;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// Connection timeout. The kernel repeats a lost SYN after a second; a new attempt is faster after
/// a network interruption.
const CONNECT: Duration = Duration::from_millis(500);

/// The byte stream of a connection, with or without TLS.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The metadata server's address and this daemon's credentials.
#[derive(Clone)]
pub(crate) struct MetadataConnector {
    address: String,
    credentials: Option<Arc<Credentials>>,
}

impl MetadataConnector {
    pub(crate) fn new(address: String, credentials: Option<Credentials>) -> Self {
        Self { address, credentials: credentials.map(Arc::new) }
    }

    /// Returns this daemon's credentials.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_deref()
    }

    /// Returns the server's address, for messages.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let address = &self.address;
        let found = lookup_host(address)
            .await
            .with_context(|| format!("--metadata {address}: no such host and port"))?;
        let found: Vec<_> = found.collect();
        for address in &found {
            require_loopback("--metadata", *address, self.credentials.as_deref())?;
        }
        let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(found.as_slice()));
        let stream = connecting
            .await
            .map_err(|_| anyhow!("its host does not answer within {} ms", CONNECT.as_millis()))
            .and_then(|connected| Ok(connected?))
            .with_context(|| format!("no metadata server at {address}: start it first"))?;
        stream.set_nodelay(true)?;
        // The kernel repeats lost heartbeats about every 200 ms. With exponential backoff the
        // pauses would outlast a network interruption.
        set_tcp_thin_linear_timeouts(&stream, true)?;
        let stream: Box<dyn Duplex> = match &self.credentials {
            None => {
                let (local, server) = (stream.local_addr()?, stream.peer_addr()?);
                let look = move || require_server_of_same_user(local, server);
                tokio::task::spawn_blocking(look).await?.map_err(|error| match error {
                    // The server's process has ended meanwhile. That is transient, not a refusal.
                    CredentialsError::NobodysConnection { .. } => anyhow!("{error}"),
                    refused => refused.into(),
                })?;
                Box::new(stream)
            }
            Some(credentials) => {
                let connector = TlsConnector::from(credentials.client()?);
                let connected = connector.connect(credentials.server_name()?, stream).await;
                Box::new(connected.map_err(|error| self.broken(&error))?)
            }
        };
        Ok(Connection { server: self.clone(), stream, frames: FrameReader::new(), next_tag: 0 })
    }

    fn broken(&self, error: &std::io::Error) -> anyhow::Error {
        anyhow!("the metadata server at {}: {}", self.address, explain(error))
    }
}

/// One connection to the metadata server.
pub(crate) struct Connection {
    server: MetadataConnector,
    stream: Box<dyn Duplex>,
    frames: FrameReader,
    next_tag: u64,
}

impl Connection {
    pub(crate) async fn send(&mut self, message: MetadataRequest) -> anyhow::Result<u64> {
        self.next_tag += 1;
        let frame = encode(&Tagged { tag: self.next_tag, message })?;
        let sent = async {
            self.stream.write_all(&frame).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| self.server.broken(&error))?;
        Ok(self.next_tag)
    }

    /// Returns the next answer. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> anyhow::Result<Tagged<MetadataReply>> {
        loop {
            if let Some(reply) = self.frames.next()? {
                return Ok(reply);
            }
            let mut bytes = [0; 16 << 10];
            match self.stream.read(&mut bytes).await {
                Ok(0) => {
                    return Err(anyhow!("the metadata server closed the connection"));
                }
                Ok(count) => self.frames.extend(&bytes[..count]),
                Err(error) => return Err(self.server.broken(&error)),
            }
        }
    }
}
