//! The index of files in which a mount has locks, so that clearing up after a mount need not visit
//! all files.

use crate::attr::Ino;
use crate::error::FsError;
use crate::format::keys::{self, LOCK_LISTS};
use crate::format::session::Session;
use crate::volume::Volume;
use crate::volume::transaction::FsTransaction;
use crate::volume_memory::VolumeMemory;

/// The most files in one of a mount's lists.
const MAX_FILES: usize = 1024;

fn decode(value: Option<&[u8]>) -> Vec<Ino> {
    let numbers = value.unwrap_or_default().as_chunks().0.iter();
    numbers.map(|number| Ino(u64::from_le_bytes(*number))).collect()
}

/// Encodes a list; `None` for an empty one, which the table does not store.
fn encode(files: &[Ino]) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = files.iter().flat_map(|ino| ino.0.to_le_bytes()).collect();
    Some(bytes).filter(|bytes| !bytes.is_empty())
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    /// Records that a mount has locks of a file.
    pub(crate) fn index_locks(&mut self, session: Session, ino: Ino) -> Result<(), FsError> {
        let key = keys::locked_by(session, ino);
        let mut files = decode(self.get(&key)?.as_deref());
        if files.contains(&ino) {
            return Ok(());
        }
        if files.len() >= MAX_FILES {
            return Err(FsError::NoLocks);
        }
        files.push(ino);
        self.set(&key, encode(&files));
        Ok(())
    }
}

impl<M: VolumeMemory> Volume<M> {
    /// Removes a mount's locks of a file, and the file from the mount's list, in one transaction.
    pub(crate) fn expel(&self, session: Session, ino: Ino) -> Result<(), FsError> {
        self.transact(|work| {
            let mut locks = work.locks(ino)?;
            locks.expel(session);
            work.set_locks(ino, &locks)?;
            let key = keys::locked_by(session, ino);
            let mut files = decode(work.get(&key)?.as_deref());
            files.retain(|file| *file != ino);
            work.set(&key, encode(&files));
            Ok(())
        })
    }

    /// Removes all locks of a mount that ends, or is gone.
    pub(crate) fn expel_everywhere(&self, session: Session) -> Result<(), FsError> {
        for list in 0..LOCK_LISTS {
            let files = decode(self.value(&keys::lock_list(session, list))?.as_deref());
            for ino in files {
                self.expel(session, ino)?;
            }
        }
        Ok(())
    }
}
