//! Housekeeping: clears up after mounts that are gone, and frees inodes without a name.

use crate::attr::{FileType, Ino};
use crate::error::FsError;
use crate::format::directory_node::NodePath;
use crate::format::keys::{self, ORPHAN_LISTS};
use crate::format::orphans::orphans_in;
use crate::format::session::Session;
use crate::volume::transaction::Updated;
use crate::volume::{MAX_SLOTS, Volume, lock};
use crate::volume_memory::VolumeMemory;

impl<M: VolumeMemory> Volume<M> {
    /// Stores delayed times, clears up after mounts that are gone, and frees inodes without a name
    /// that no mount has open. One thread should call it about once a second. It does not wait for
    /// other mounts.
    ///
    /// # Errors
    /// The first error; the sweep continues after it, and the next call repeats what failed.
    pub fn sweep(&self) -> Result<(), FsError> {
        let flushed = self.settle_marks().and(self.flush_all());
        let recovered = self.recover_mounts();
        let mut purged = Ok(());
        for list in 0..ORPHAN_LISTS {
            let value = self.value(&keys::orphan_list(list))?;
            for ino in orphans_in(value.as_deref()) {
                match self.purge(ino) {
                    // Another mount holds the inode.
                    Ok(()) | Err(FsError::Busy) => {}
                    Err(error) => purged = purged.and(Err(error)),
                }
            }
        }
        self.keep_reserve();
        flushed.and(recovered).and(purged).and(self.scrub_heads())
    }

    /// Resolves the transactions of mounts that are gone, and removes their locks and entries.
    fn recover_mounts(&self) -> Result<(), FsError> {
        let value = self.value(keys::MOUNTS)?.unwrap_or_default();
        let mounts = Session::decode_all(&value)?;
        for gone in mounts.into_iter().filter(|session| !self.is_alive(*session)) {
            self.with_access(|access| {
                access.recover(gone.token, MAX_SLOTS).map_err(FsError::of_table::<M>)
            })?;
            self.expel_everywhere(gone)?;
            self.change_mounts(|mounts| mounts.retain(|session| *session != gone))?;
        }
        Ok(())
    }

    fn change_mounts(&self, change: impl Fn(&mut Vec<Session>)) -> Result<(), FsError> {
        self.transact(|work| {
            let value = work.get(keys::MOUNTS)?.unwrap_or_default();
            let mut mounts = Session::decode_all(&value)?;
            change(&mut mounts);
            let mut bytes = Vec::new();
            mounts.iter().for_each(|session| session.encode(&mut bytes));
            work.set(keys::MOUNTS, Some(bytes));
            Ok(())
        })
    }

    /// Adds this mount to the list of mounts, so that other mounts clear up after it.
    pub(crate) fn register_mount(&self) -> Result<(), FsError> {
        self.change_mounts(|mounts| mounts.push(self.session))
    }

    /// Removes this mount from the list, after its locks and the records of its transactions.
    pub(crate) fn unregister_mount(&self) -> Result<(), FsError> {
        self.expel_everywhere(self.session)?;
        self.with_access(|access| {
            access.recover(self.session.token, MAX_SLOTS).map_err(FsError::of_table::<M>)
        })?;
        self.change_mounts(|mounts| mounts.retain(|session| *session != self.session))
    }

    /// Frees an inode that has no name, unless a mount has it open.
    pub(crate) fn purge(&self, ino: Ino) -> Result<(), FsError> {
        if !lock(&self.purging).insert(ino) {
            return Ok(());
        }
        let result = self.purge_alone(ino);
        lock(&self.purging).remove(&ino);
        result
    }

    fn purge_alone(&self, ino: Ino) -> Result<(), FsError> {
        // The lock keeps this mount's threads from opening the inode.
        let files = lock(self.files_of(ino));
        let is_open_here = files.get(&ino).is_some_and(|file| file.is_open());
        let has_it_open = |session: &Session| match *session == self.session {
            true => is_open_here,
            false => self.is_alive(*session),
        };
        let claimed = self.update(ino, |inode| {
            if inode.nlink > 0 || inode.opens.iter().any(has_it_open) {
                return Ok(false);
            }
            self.check_claim(inode.claim)?;
            inode.opens.clear();
            inode.claim = Some(self.session);
            Ok(true)
        });
        drop(files);
        let inode = match claimed {
            Ok(Updated { value: true, inode }) => inode,
            Ok(Updated { value: false, .. }) => return Ok(()),
            // Another mount has freed it.
            Err(FsError::NotFound) => return self.transact(|work| work.drop_orphan(ino)),
            Err(error) => return Err(error),
        };
        match inode.kind {
            FileType::Directory => self.free_nodes(ino, NodePath { depth: 0, prefix: 0 })?,
            FileType::File => self.free_contents(ino, &inode)?,
            _ => {}
        }
        self.transact(|work| {
            // The inode is still claimed, so no other mount has changed it.
            work.inode(ino)?;
            work.remove_orphan(ino)
        })?;
        self.free_head(inode.head, ino)
    }
}
