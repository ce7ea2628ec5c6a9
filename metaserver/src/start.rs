use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rackpool_access::{Credentials, CredentialsError, Party, require_loopback};
use rackpool_proto::Time;
use rackpool_proto::metadata::{MetadataMachine, RecordError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::address_file::AddressFile;
use crate::limits::Limits;
use crate::listener::Listener;
use crate::metadata_server_options::MetadataServerOptions;
use crate::metrics::ServerMetrics;
use crate::server::Server;
use crate::store::{Store, StoreError};
use crate::{connection, parent_process};

/// The minimum time after which an authenticated peer without requests is disconnected.
const IDLE: Duration = Duration::from_secs(60);

/// The operator is warned when the credentials expire within this time.
const RENEWAL: Duration = Duration::from_secs(30 * 86_400);

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The credentials can't be used, or there are none and other hosts could connect.
    #[error(transparent)]
    Access(#[from] CredentialsError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store holds records that contradict each other.
    #[error(
        "{path} is damaged ({source}): restore it from a copy or choose another --store; it was left as it is"
    )]
    Records {
        /// The store.
        path: PathBuf,
        /// The contradiction.
        source: RecordError,
    },
    /// The address can't be bound.
    #[error(
        "can't listen on {address}: {source}; is another server running? Choose another --listen"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The metrics can't be served.
    #[error(transparent)]
    Metrics(#[from] rackpool_metrics::BindError),
    /// The address file can't be written.
    #[error("can't write the address file {path}: {source}")]
    AddressFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system provides no random numbers.
    #[error("no random numbers: {0}; start the metadata server again in a moment")]
    Random(io::Error),
    /// Signal handlers can't be installed, which never should happen.
    #[error("can't watch for signals: {0}")]
    Signals(io::Error),
}

impl StartError {
    /// Returns true if the options are wrong on any host.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Access(CredentialsError::NotLoopback { .. })
                | Self::Metrics(rackpool_metrics::BindError::NotLoopback(_))
        )
    }
}

/// Runs the metadata server until SIGTERM or SIGINT. The store is locked before anything else that
/// another server may be using is changed.
pub async fn serve(options: MetadataServerOptions) -> Result<(), StartError> {
    let credentials = credentials(&options)?;
    let tls = credentials.as_ref().map(Credentials::server).transpose()?.map(TlsAcceptor::from);
    let (mut store, records) = Store::open(&options.store)?;
    let fabric_key = store.fabric_key(options.new_fabric_key)?;
    let lease = Duration::from_millis(options.lease_ms);
    let machine = MetadataMachine::restore(Time::ZERO, lease, random_id()?, records)
        .map_err(|source| StartError::Records { path: options.store.clone(), source })?;
    let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;

    let file_error = |source| StartError::AddressFile {
        path: options.address_file.clone().unwrap_or_default(),
        source,
    };
    if let Some(path) = &options.address_file {
        AddressFile::clear(path).map_err(file_error)?;
    }
    let metrics = match options.metrics {
        Some(address) => Some(rackpool_metrics::bind(address).await?),
        None => None,
    };
    let (socket, address) = bind(options.listen).await?;
    let address_file = options.address_file.as_deref();
    let _address_file = address_file
        .map(|path| AddressFile::write(path, address))
        .transpose()
        .map_err(file_error)?;
    let access = if credentials.is_some() {
        "with credentials"
    } else {
        "for processes of this user and root"
    };
    info!("listening on {address}, {access}, store {}", options.store.display());

    let (stop, stopped) = watch::channel(false);
    let (inbox, inbound) = mpsc::channel(connection::INBOX);
    let idle = IDLE.max(2 * lease);
    let listener = Listener { socket, tls, limits: Limits::raise(), idle, inbox };
    let listener = tokio::spawn(listener.run(stopped.clone()));
    let expiry = credentials.as_ref().and_then(Credentials::expiry);
    let counters = Arc::new(ServerMetrics::new(expiry));
    if let Some(metrics) = metrics {
        tokio::spawn(rackpool_metrics::serve(metrics, Arc::clone(&counters) as _));
    }
    let server = Server::new(machine, store, fabric_key, counters);
    let server = tokio::spawn(server.run(inbound, stopped));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = parent_process::stdin_closed(options.stop_with_stdin) => {}
    }
    info!("stopping");
    stop.send_replace(true);
    for part in [server, listener] {
        if let Err(error) = part.await {
            tracing::error!("a task of the server failed: {error}");
        }
    }
    Ok(())
}

/// Returns the id of this incarnation of the server, which differs from those of all other
/// incarnations, also of servers with copies of its store.
fn random_id() -> Result<u64, StartError> {
    Ok(u64::from_le_bytes(rackpool_sync::random_bytes().map_err(StartError::Random)?))
}

/// Loads the credentials, if the options name a folder. Without them only loopback addresses are
/// allowed.
fn credentials(options: &MetadataServerOptions) -> Result<Option<Credentials>, CredentialsError> {
    let load = |folder: &PathBuf| Credentials::load_of(folder, Party::MetadataServer);
    let credentials = options.credentials.as_ref().map(load).transpose()?;
    require_loopback("--listen", options.listen, credentials.as_ref())?;
    if credentials.as_ref().is_some_and(|own| own.expire_within(RENEWAL)) {
        warn!("the credentials expire within 30 days: `rackpool credentials add --renew`");
    }
    Ok(credentials)
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let socket = TcpListener::bind(address).await.map_err(failed)?;
    let bound = socket.local_addr().map_err(failed)?;
    Ok((socket, bound))
}
