//! Clients whose connection has ended but whose process may live. Such a client uses its memory and
//! may reconnect, until its process ends or releases its file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rackpool_model::ClientId;
use rackpool_shm::superblock::{OwnerProcess, SUPERBLOCK_BYTES, Superblock};
use rackpool_shm::{Mapping, file};

use super::Control;
use crate::data_plane::Command;

/// Interval between two checks of a process.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client whose process id is unknown here may take to reconnect.
const UNSEEN: Duration = Duration::from_secs(60);

/// Returns the process that a client's file names as its owner.
pub(super) fn owner_of(path: &Path) -> Option<OwnerProcess> {
    Some(map_block(path)?.view::<Superblock>(0).ok()?.owner())
}

fn map_block(path: &Path) -> Option<Mapping> {
    let file = file::open(path).ok()??;
    Mapping::new(&file, SUPERBLOCK_BYTES).ok()
}

/// Waits until the client has reconnected; reports it as gone when it can't any more.
pub(crate) fn watch_orphan(control: &Arc<Control>, client: ClientId, owner: OwnerProcess) {
    control.orphans().insert(client);
    let control = Arc::clone(control);
    tokio::spawn(async move {
        let deadline = tokio::time::Instant::now() + UNSEEN;
        let path = control.rack.directory.client(client);
        let block = map_block(&path);
        let has_closed = || {
            let block = block.as_ref().and_then(|block| block.view::<Superblock>(0).ok());
            block.is_some_and(Superblock::is_closed)
        };
        let may_live = || match owner.pid {
            // A process that does not have the file, or no longer, can't reconnect with it.
            _ if has_closed() || !file::is_held(&path) => false,
            0 => tokio::time::Instant::now() < deadline,
            _ => control.rack.client_host.is_alive(owner),
        };
        while may_live() {
            tokio::time::sleep(LOOK).await;
            if !control.orphans().contains(&client) {
                tracing::info!("client {} has reconnected", client.0);
                return;
            }
        }
        if control.claim_orphan(client) {
            tracing::info!(
                "client {} of an earlier daemon has ended or closed the pool: its resources are released",
                client.0
            );
            control.plane.tell(Command::Gone { client });
        }
    });
}

/// Watches the clients that an earlier daemon served.
pub(crate) fn watch_adopted(control: &Arc<Control>, clients: impl IntoIterator<Item = ClientId>) {
    for client in clients {
        let owner = owner_of(&control.rack.directory.client(client)).unwrap_or_default();
        watch_orphan(control, client, owner);
    }
}
