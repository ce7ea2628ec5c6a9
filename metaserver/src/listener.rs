use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use rackpool_proto::metadata::ConnectionToken;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::admission::{Admitted, Rejection, admit};
use crate::admission_limiter::AdmissionLimiter;
use crate::connection::{self, Inbound};
use crate::limits::Limits;
use crate::rejection_log::Complaints;

/// Pause after a failed `accept`, most likely for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a stopping server waits until its last answers are sent.
const FAREWELL: Duration = Duration::from_secs(1);

/// The listening socket and what all connections share.
pub(crate) struct Listener {
    pub(crate) socket: TcpListener,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) limits: Limits,
    /// How long an authenticated peer may stay without a request.
    pub(crate) idle: Duration,
    pub(crate) inbox: mpsc::Sender<Inbound>,
}

/// Connections whose peers are not authenticated yet. Silent peers are dropped for later ones.
#[derive(Default)]
struct UnauthenticatedPeers {
    tasks: JoinSet<(u64, SocketAddr, Result<Admitted, Rejection>)>,
    /// By the number of the connection.
    handles: BTreeMap<u64, (AbortHandle, SocketAddr)>,
    admission_limiter: AdmissionLimiter,
    last: u64,
}

impl UnauthenticatedPeers {
    fn take_in(&mut self, stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>) {
        self.last += 1;
        let number = self.last;
        let handle =
            self.tasks.spawn(async move { (number, peer, admit(stream, peer, tls).await) });
        self.handles.insert(number, (handle, peer));
        self.admission_limiter.come(number, peer);
    }

    /// Drops the oldest peer of the network with the most peers.
    fn make_room(&mut self) -> Option<SocketAddr> {
        let (handle, peer) = self.forget(self.admission_limiter.gives_way()?)?;
        handle.abort();
        Some(peer)
    }

    /// Removes a peer that is authenticated, rejected or dropped.
    fn forget(&mut self, number: u64) -> Option<(AbortHandle, SocketAddr)> {
        let (handle, peer) = self.handles.remove(&number)?;
        self.admission_limiter.leave(number, peer);
        Some((handle, peer))
    }

    /// Returns the next peer that was authenticated or rejected; waits for ever when there is none.
    /// Cancel-safe.
    async fn next(&mut self) -> (SocketAddr, Result<Admitted, Rejection>) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok((number, peer, result))) => {
                    self.forget(number);
                    return (peer, result);
                }
                // This peer was dropped for a later one.
                Some(Err(_)) => {}
                None => pending().await,
            }
        }
    }
}

impl Listener {
    /// Accepts connections until `stopped` changes, then waits for them to end.
    pub(crate) async fn run(self, mut stopped: watch::Receiver<bool>) {
        let mut unauthenticated_peers = UnauthenticatedPeers::default();
        let mut connections = JoinSet::new();
        let mut complaints = Complaints::new();
        let mut last = 0;
        loop {
            tokio::select! {
                _ = stopped.changed() => break,
                Some(_) = connections.join_next() => {}
                (peer, result) = unauthenticated_peers.next() => {
                    let room = connections.len() < self.limits.known;
                    match result.and_then(|known| room.then_some(known).ok_or(Rejection::Full(self.limits.known))) {
                        Ok(known) => {
                            last += 1;
                            let (token, inbox) = (ConnectionToken(last), self.inbox.clone());
                            connections.spawn(connection::run(known, token, inbox, self.idle));
                        }
                        Err(why) => complaints.rejected(peer, &why),
                    }
                }
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, peer)) => {
                        if unauthenticated_peers.handles.len() >= self.limits.unauthenticated_peers
                            && let Some(gone) = unauthenticated_peers.make_room()
                        {
                            complaints.rejected(gone, &Rejection::TooManyPeers);
                        }
                        unauthenticated_peers.take_in(stream, peer, self.tls.clone());
                    }
                    Err(error) => {
                        warn!("can't accept a connection: {error}; if too many files are open, raise the limit (LimitNOFILE= of systemd)");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                () = sleep_until(complaints.deadline()) => complaints.tell_if_due(),
            }
        }
        drop((self.socket, self.inbox, unauthenticated_peers));
        let ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, ended).await.is_err() {
            warn!("some connections did not read their last answers before the server stopped");
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => pending().await,
    }
}
