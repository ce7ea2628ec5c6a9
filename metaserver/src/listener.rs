use std::time::Duration;

use rackpool_proto::metadata::ConnectionToken;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::warn;

use crate::connection::{self, Inbound};

/// Connections at the same time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 4096;

/// The pause after an accept that failed, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How long a stopping server waits for its last answers to be taken.
const FAREWELL: Duration = Duration::from_secs(1);

/// Accepts connections until told to stop, then waits for them to end.
pub(crate) async fn run(
    socket: TcpListener,
    inbox: mpsc::Sender<Inbound>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    let mut last = 0;
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => {}
            accepted = socket.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, peer)) => {
                    last += 1;
                    let token = ConnectionToken(last);
                    connections.spawn(connection::run(stream, peer, token, inbox.clone()));
                }
                Err(error) => {
                    warn!("can't accept a connection: {error}; raise the limit on open files?");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop((socket, inbox));
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(FAREWELL, ended).await.is_err() {
        warn!("some connections did not take their last answers");
    }
}
