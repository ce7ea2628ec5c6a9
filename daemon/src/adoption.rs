//! The clients of an earlier daemon, whose files the next one adopts.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rackpool_model::ClientId;
use rackpool_output::chain;
use rackpool_ring::client_file::{ClientFile, MAX_THREADS};
use rackpool_shm::Mapping;
use rackpool_shm::directory::RackDirectory;
use rackpool_shm::file::{self, FileError};
use rackpool_shm::superblock::{FileKind, Geometry, Superblock, SuperblockError};

use crate::data_plane::DataPlane;
use crate::rack::Rack;
/// The clients of an earlier daemon.
#[derive(Default)]
pub(crate) struct Adopted {
    /// Clients that may reconnect.
    pub(crate) orphans: BTreeSet<ClientId>,
    /// The highest id of any client, including clients whose files were given up: their programs
    /// may still run, and would take a new file with the same name for theirs.
    pub(crate) last: u32,
}

/// Adopts the files of an earlier daemon's clients. Files of clients whose process has ended are
/// released at once.
pub(crate) fn adopt_clients(rack: &Rack, plane: &mut DataPlane) -> anyhow::Result<Adopted> {
    let mut adopted = Adopted::default();
    for entry in std::fs::read_dir(rack.directory.path())? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(client) = name.to_str().and_then(RackDirectory::client_of) else { continue };
        adopted.last = adopted.last.max(client.0);
        match open_client(rack, client, &entry.path()) {
            Ok(file) => {
                plane.adopt(client, Arc::new(file));
                adopted.orphans.insert(client);
            }
            // A daemon was killed while it created the file. Nothing was recorded in the file yet.
            Err(error) if is_unfinished(&entry.path())? => {
                tracing::warn!("{} is removed: {}", entry.path().display(), chain(error.as_ref()));
                std::fs::remove_file(entry.path())?;
            }
            // The client can write arbitrary bytes into its file; that must not keep the rack from
            // being served. Objects recorded in the file stay allocated, because the record is
            // unreadable.
            Err(error) if is_damage(&error) => {
                tracing::error!(
                    "{} is given up: {}",
                    entry.path().display(),
                    chain(error.as_ref())
                );
                std::fs::remove_file(entry.path())?;
            }
            Err(error) => return Err(error.context(entry.path().display().to_string())),
        }
    }
    Ok(adopted)
}

/// Returns true if the file has no superblock yet. The superblock is written before a client gets
/// the file.
fn is_unfinished(path: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(path)?;
    Ok(bytes.iter().take(4096).all(|byte| *byte == 0) || bytes.len() < 4096)
}

/// Returns true if the file's contents are wrong, rather than the file being unreadable now.
fn is_damage(error: &anyhow::Error) -> bool {
    let length = error.downcast_ref::<FileError>();
    error.is::<SuperblockError>() || matches!(length, Some(FileError::Length { .. }))
}

fn open_client(rack: &Rack, client: ClientId, path: &Path) -> anyhow::Result<ClientFile> {
    let found = file::open(path)?.context("it went away")?;
    let block = Mapping::new(&found, 4096)?;
    if found.metadata()?.len() < 4096 {
        anyhow::bail!("it is too short");
    }
    let geometry = block.view::<Superblock>(0)?.read(path)?;
    let threads = u16::try_from(geometry.threads).unwrap_or(u16::MAX);
    if !(1..=MAX_THREADS).contains(&threads) {
        anyhow::bail!(SuperblockError::Corrupt(path.to_path_buf()));
    }
    let wanted =
        Geometry { kind: FileKind::Client, client, threads: geometry.threads, ..rack.geometry };
    geometry.require(&wanted, path)?;
    let bytes = ClientFile::bytes(threads);
    file::check_len(&found, path, bytes)?;
    Ok(ClientFile::new(Mapping::new(&found, bytes)?, threads)?)
}
