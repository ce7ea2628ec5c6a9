//! Renaming.

use crate::attr::{Caller, FileType, Ino, NewNode, RenameMode, Timestamp};
use crate::error::FsError;
use crate::format::directory_node::DirEntry;
use crate::format::keys;
use crate::namespace::names::{check_name, new_inode};
use crate::namespace::remove::UnlinkOutcome;
use crate::volume::Volume;
use crate::volume::transaction::FsTransaction;
use crate::volume_memory::VolumeMemory;

/// A name in a directory.
#[derive(Clone, Copy)]
struct Name<'a> {
    parent: Ino,
    name: &'a [u8],
}

/// The most directories of a path; a longer path is a cycle.
const MAX_DEPTH: u32 = 1 << 20;

impl<M: VolumeMemory> Volume<M> {
    /// Renames `name` in `parent` to `new_name` in `new_parent`, atomically.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        for name in [name, new_name] {
            if matches!(name, b"." | b"..") {
                return Err(FsError::InvalidArgument);
            }
            check_name(name)?;
        }
        let (from, to) = (Name { parent, name }, Name { parent: new_parent, name: new_name });
        let now = Timestamp::now();
        let left = match mode {
            RenameMode::Whiteout { owner, .. } => {
                let whiteout = self.new_ino()?;
                self.transact_growing(|work| {
                    let left = work.rename(from, to, mode, now)?;
                    work.leave_whiteout(from, whiteout, owner, now)?;
                    Ok(left)
                })?
            }
            _ => self.transact(|work| work.rename(from, to, mode, now))?,
        };
        self.finish_removal(left);
        Ok(())
    }
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    fn rename(
        &mut self,
        from: Name<'_>,
        to: Name<'_>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<UnlinkOutcome, FsError> {
        self.inode(from.parent)?.expect_directory()?;
        self.inode(to.parent)?.expect_directory()?;
        let source = self.entry(from.parent, from.name)?.ok_or(FsError::NotFound)?;
        let target = self.entry(to.parent, to.name)?;
        match (mode, &target) {
            (RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. }, Some(_)) => {
                return Err(FsError::Exists);
            }
            (RenameMode::Exchange, None) => return Err(FsError::NotFound),
            (_, Some(target)) if target.ino == source.ino => return Ok(UnlinkOutcome::Done),
            _ => {}
        }
        self.check_moves(from.parent, to.parent, &source)?;
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                self.check_moves(to.parent, from.parent, &target)?;
                self.place(from, &target, to.parent, now)?;
                self.place(to, &source, from.parent, now)?;
                Ok(UnlinkOutcome::Done)
            }
            target => {
                let left = match target {
                    Some(target) => self.replace(&source, to, &target, now)?,
                    None => UnlinkOutcome::Done,
                };
                let mut directory = self.inode(from.parent)?;
                self.take_name(from.parent, &mut directory, from.name, source.kind, now)?;
                let mut directory = self.inode(to.parent)?;
                let (ino, kind) = (source.ino, source.kind);
                self.add_name(to.parent, &mut directory, to.name, ino, kind, now)?;
                self.set_parent(&source, to.parent, now)?;
                Ok(left)
            }
        }
    }

    /// Creates a whiteout under a name that was just removed. Does nothing if the name exists: then
    /// the old and the new name refer to the same file.
    fn leave_whiteout(
        &mut self,
        at: Name<'_>,
        ino: Ino,
        owner: Caller,
        now: Timestamp,
    ) -> Result<(), FsError> {
        if self.entry(at.parent, at.name)?.is_some() {
            return Ok(());
        }
        let mut directory = self.inode(at.parent)?;
        let mut whiteout = new_inode(&directory, NewNode::CharDevice(0), 0, owner, now)?;
        self.add_name(at.parent, &mut directory, at.name, ino, whiteout.kind, now)?;
        self.set_inode(ino, &mut whiteout);
        Ok(())
    }

    /// Removes what the new name refers to.
    fn replace(
        &mut self,
        source: &DirEntry,
        to: Name<'_>,
        target: &DirEntry,
        now: Timestamp,
    ) -> Result<UnlinkOutcome, FsError> {
        let mut inode = self.named(target.ino)?;
        match (source.kind, inode.kind) {
            (FileType::Directory, FileType::Directory) if inode.entries > 0 => {
                return Err(FsError::NotEmpty);
            }
            (FileType::Directory, FileType::Directory) => {}
            (FileType::Directory, _) => return Err(FsError::NotDirectory),
            (_, FileType::Directory) => return Err(FsError::IsDirectory),
            _ => {}
        }
        let mut directory = self.inode(to.parent)?;
        self.take_name(to.parent, &mut directory, to.name, inode.kind, now)?;
        self.unname(target.ino, &mut inode, now)
    }

    /// Makes an existing name refer to an inode from the directory `before`, as one half of an
    /// exchange.
    fn place(
        &mut self,
        at: Name<'_>,
        entry: &DirEntry,
        before: Ino,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.set_entry(at.parent, at.name, entry.ino, entry.kind)?;
        let mut directory = self.inode(at.parent)?;
        if entry.kind == FileType::Directory && at.parent != before {
            directory.nlink = directory.nlink.checked_add(1).ok_or(FsError::TooManyLinks)?;
        }
        directory.touch(now);
        self.set_inode(at.parent, &mut directory);
        if entry.kind == FileType::Directory && at.parent != before {
            let mut directory = self.inode(before)?;
            directory.nlink = directory.nlink.saturating_sub(1).max(2);
            self.set_inode(before, &mut directory);
        }
        self.set_parent(entry, at.parent, now)
    }

    /// Records in an inode that it was renamed.
    fn set_parent(&mut self, entry: &DirEntry, parent: Ino, now: Timestamp) -> Result<(), FsError> {
        let mut inode = self.named(entry.ino)?;
        inode.ctime = now;
        if inode.kind == FileType::Directory {
            inode.parent = parent;
        }
        self.set_inode(entry.ino, &mut inode);
        Ok(())
    }

    /// Refuses to move a directory into itself or below. All such moves change one key, so that no
    /// two of them can make a cycle together.
    fn check_moves(&mut self, from: Ino, to: Ino, entry: &DirEntry) -> Result<(), FsError> {
        if entry.kind != FileType::Directory || from == to {
            return Ok(());
        }
        let moves = self.get(keys::MOVES)?;
        let count = moves
            .as_deref()
            .and_then(<[u8]>::first_chunk)
            .map_or(0, |count| u64::from_le_bytes(*count));
        self.set(keys::MOVES, Some(count.wrapping_add(1).to_le_bytes().to_vec()));
        let mut at = to;
        for _ in 0..MAX_DEPTH {
            if at == entry.ino {
                return Err(FsError::InvalidArgument);
            }
            if at == Ino::ROOT {
                return Ok(());
            }
            let value = self.peek(&keys::inode(at))?;
            let Some(value) = value else { return Err(self.torn("a directory has no parent")) };
            at = crate::format::inode::Inode::decode(&value)?.parent;
        }
        Err(FsError::Damaged("directories in a circle"))
    }
}
