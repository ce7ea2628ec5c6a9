use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use rackpool_proto::Time;
use rackpool_proto::metadata::{Machine, RecordError};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::info;

use crate::address_file::AddressFile;
use crate::options::Options;
use crate::server::Server;
use crate::store::{Store, StoreError};
use crate::{connection, listener, parent};

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Others than this host could connect.
    #[error(
        "--listen {0} can be reached from other hosts, but connections are not authenticated: listen on 127.0.0.1 or [::1]"
    )]
    NotLoopback(SocketAddr),
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
    /// The address can't be had.
    #[error(
        "can't listen on {address}: {source}; is another server running? Choose another --listen"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The address file can't be written.
    #[error("can't write the address file {path}: {source}")]
    AddressFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses something that it never should.
    #[error("can't watch for signals: {0}")]
    Signals(io::Error),
}

/// Runs the metadata server until SIGTERM or SIGINT. The store is locked before anything else that
/// could disturb another server is touched.
pub async fn serve(options: Options) -> Result<(), StartError> {
    if !options.listen.ip().is_loopback() {
        return Err(StartError::NotLoopback(options.listen));
    }
    let (store, records) = Store::open(&options.store)?;
    let lease = Duration::from_millis(options.lease_ms);
    let machine = Machine::restore(Time::ZERO, lease, records)
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
    let (socket, address) = bind(options.listen).await?;
    let address_file = options.address_file.as_deref();
    let _address_file = address_file
        .map(|path| AddressFile::write(path, address))
        .transpose()
        .map_err(file_error)?;
    info!("listening on {address}, store {}", options.store.display());

    let (stop, stopped) = watch::channel(false);
    let (inbox, inbound) = mpsc::channel(connection::INBOX);
    let listener = tokio::spawn(listener::run(socket, inbox, stopped.clone()));
    let server = tokio::spawn(Server::new(machine, store).run(inbound, stopped));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = parent::stdin_closed(options.stop_with_stdin) => {}
    }
    info!("stopping");
    stop.send_replace(true);
    for part in [server, listener] {
        if let Err(error) = part.await {
            tracing::error!("a part of the server broke: {error}");
        }
    }
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let socket = TcpListener::bind(address).await.map_err(failed)?;
    let bound = socket.local_addr().map_err(failed)?;
    Ok((socket, bound))
}
