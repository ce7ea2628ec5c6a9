//! Removing names, and freeing inodes without a name.

use crate::attr::{FileType, Ino, Timestamp};
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::keys;
use crate::format::orphans::{encode_orphans, orphans_in};
use crate::namespace::names::check_name;
use crate::volume::Volume;
use crate::volume::transaction::FsTransaction;
use crate::volume_memory::VolumeMemory;

/// What remains of an inode that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnlinkOutcome {
    /// Nothing has to be done.
    Done,
    /// It is in an orphan list and has to be freed.
    Orphan(Ino),
    /// It is in an orphan list with this mount among its sessions, which may still use it.
    Kept(Ino),
}

impl<M: VolumeMemory> Volume<M> {
    /// Removes a name of anything but a directory. An inode without another name is freed when no
    /// mount has it open.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        let now = Timestamp::now();
        let left = self.transact(|work| {
            let mut directory = work.inode(parent)?;
            directory.expect_directory()?;
            let entry = work.entry(parent, name)?.ok_or(FsError::NotFound)?;
            let mut inode = work.named(entry.ino)?;
            if inode.kind == FileType::Directory {
                return Err(FsError::IsDirectory);
            }
            work.take_name(parent, &mut directory, name, inode.kind, now)?;
            work.unname(entry.ino, &mut inode, now)
        })?;
        self.finish_removal(left);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        match name {
            b"." => return Err(FsError::InvalidArgument),
            b".." => return Err(FsError::NotEmpty),
            _ => check_name(name)?,
        }
        let now = Timestamp::now();
        let left = self.transact(|work| {
            let mut directory = work.inode(parent)?;
            directory.expect_directory()?;
            let entry = work.entry(parent, name)?.ok_or(FsError::NotFound)?;
            let mut inode = work.named(entry.ino)?;
            inode.expect_directory()?;
            if inode.entries != 0 {
                return Err(FsError::NotEmpty);
            }
            work.take_name(parent, &mut directory, name, FileType::Directory, now)?;
            work.unname(entry.ino, &mut inode, now)
        })?;
        self.finish_removal(left);
        Ok(())
    }

    /// Frees what a removal has left, if that is possible now; otherwise a later sweep does.
    pub(crate) fn finish_removal(&self, left: UnlinkOutcome) {
        match left {
            UnlinkOutcome::Done => {}
            UnlinkOutcome::Orphan(ino) => drop(self.purge(ino)),
            UnlinkOutcome::Kept(ino) => self.keep(ino),
        }
    }
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    /// Removes one name from an inode that was read; a directory loses all its links.
    pub(crate) fn unname(
        &mut self,
        ino: Ino,
        inode: &mut Inode,
        now: Timestamp,
    ) -> Result<UnlinkOutcome, FsError> {
        inode.nlink = match inode.kind {
            FileType::Directory => 0,
            _ => inode.nlink.saturating_sub(1),
        };
        inode.ctime = now;
        if inode.nlink > 0 {
            self.set_inode(ino, inode);
            return Ok(UnlinkOutcome::Done);
        }
        if self.volume.keeps(inode.kind) {
            let session = self.volume.session;
            inode.opens.retain(|other| *other != session);
            inode.opens.push(session);
            self.set_inode(ino, inode);
            self.add_orphan(ino)?;
            return Ok(UnlinkOutcome::Kept(ino));
        }
        let has_nodes =
            inode.kind == FileType::Directory && self.peek(&keys::node(ino, 0, 0))?.is_some();
        if inode.opens.is_empty() && inode.head == 0 && !has_nodes && inode.claim.is_none() {
            self.set(&keys::inode(ino), None);
            return Ok(UnlinkOutcome::Done);
        }
        self.set_inode(ino, inode);
        self.add_orphan(ino)?;
        Ok(UnlinkOutcome::Orphan(ino))
    }

    /// Adds an inode without a name to its list of orphans.
    pub(crate) fn add_orphan(&mut self, ino: Ino) -> Result<(), FsError> {
        let list = keys::orphans_of(ino);
        let mut orphans = orphans_in(self.get(&list)?.as_deref());
        orphans.push(ino);
        self.set(&list, encode_orphans(&orphans));
        Ok(())
    }

    /// Deletes the inode of an orphan, and removes it from its list.
    pub(crate) fn remove_orphan(&mut self, ino: Ino) -> Result<(), FsError> {
        self.set(&keys::inode(ino), None);
        self.drop_orphan(ino)
    }

    /// Removes an inode from its list of orphans.
    pub(crate) fn drop_orphan(&mut self, ino: Ino) -> Result<(), FsError> {
        let list = keys::orphans_of(ino);
        let mut orphans = orphans_in(self.get(&list)?.as_deref());
        orphans.retain(|orphan| *orphan != ino);
        self.set(&list, encode_orphans(&orphans));
        Ok(())
    }
}
