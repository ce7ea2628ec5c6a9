//! The daemon's Unix socket, on which clients connect and send rare requests.

mod client;
mod open_files;
mod orphan;

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use rackpool_model::ClientId;
use rackpool_output::chain;
use tokio::net::UnixListener;

pub(crate) use orphan::watch_adopted;

use crate::data_plane::{PlaneMetrics, Waker};
use crate::link::Requester;
use crate::placement::Placement;
use crate::priority::Priority;
use crate::rack::Rack;

/// The state that every connection uses.
pub(crate) struct Control {
    pub(crate) rack: Arc<Rack>,
    pub(crate) plane: Arc<Waker>,
    pub(crate) metadata: Requester,
    pub(crate) metrics: Arc<PlaneMetrics>,
    pub(crate) fabric: String,
    pub(crate) placement: Placement,
    pub(crate) priority: Priority,
    /// Clients without a connection that may reconnect.
    pub(crate) orphans: Mutex<BTreeSet<ClientId>>,
    /// The id given to the latest client.
    pub(crate) last_client: Mutex<u32>,
}

impl Control {
    /// Returns a client id that no file of the rack has.
    pub(crate) fn next_client(&self) -> ClientId {
        let mut last = self.last_client.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            *last = last.wrapping_add(1).max(1);
            let id = ClientId(*last);
            if !self.rack.directory.client(id).exists() {
                return id;
            }
        }
    }

    fn orphans(&self) -> MutexGuard<'_, BTreeSet<ClientId>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the client is one that may reconnect, and removes it: it can be claimed
    /// once.
    pub(crate) fn claim_orphan(&self, client: ClientId) -> bool {
        self.orphans().remove(&client)
    }
}

/// Binds the socket. A socket that a dead daemon left is replaced: the caller holds the lock on the
/// rack's metadata, so no other daemon runs.
pub(crate) fn bind(path: &Path) -> anyhow::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => bail!(
            "{} exists and is not a socket, so the daemon can't listen there: remove it",
            path.display()
        ),
        Err(_) => {}
    }
    // Bind under another name and rename, so that no client finds a socket that does not listen
    // yet.
    let hidden = path.with_extension("new");
    match std::fs::remove_file(&hidden) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| hidden.display().to_string()),
    }
    let listener = UnixListener::bind(&hidden).with_context(|| {
        format!("can't listen on the socket {}: if its path is longer than 100 bytes, choose a shorter --dir", path.display())
    })?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&hidden, path)?;
    Ok(listener)
}

/// Serves clients for ever.
pub(crate) async fn serve(listener: UnixListener, control: Arc<Control>) -> anyhow::Result<()> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let control = Arc::clone(&control);
                tokio::spawn(async move {
                    if let Err(error) = client::serve(stream, &control).await {
                        tracing::warn!("a client's connection ended: {}", chain(error.as_ref()));
                    }
                });
            }
            Err(error) => {
                // Out of descriptors: another client has to leave first.
                let rack = control.rack.geometry.rack;
                let reason = open_files::explain(&error.into(), rack);
                tracing::warn!("can't accept a client's connection: {reason}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}
