//! Look-ups, folders, links, renames.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, RenameFlags};
use rackpool_fs::{Attr, Caller, FsError, Ino, NewNode, RenameMode};
use rustix::fs::FileType;

use super::{Answer, Shell};
use crate::device::Directory;

impl Shell {
    pub(super) fn lookup(&self, parent: Ino, name: &OsStr) -> Answer<Attr> {
        let found = self.volume.lookup(parent, name.as_bytes());
        found.map_err(|error| self.failed("a look-up", &error))
    }

    pub(super) fn make(
        &self,
        parent: Ino,
        name: &OsStr,
        node: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Answer<Attr> {
        let made = self.volume.create(parent, name.as_bytes(), node, mode & 0o7777, caller);
        made.map_err(|error| self.failed("creating a file", &error))
    }

    /// Serves mknod(2).
    pub(super) fn make_node(
        &self,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        device: u32,
        caller: Caller,
    ) -> Answer<Attr> {
        let node = match FileType::from_raw_mode(mode) {
            FileType::RegularFile => NewNode::File,
            FileType::Fifo => NewNode::Fifo,
            FileType::Socket => NewNode::Socket,
            FileType::CharacterDevice => NewNode::CharDevice(device),
            FileType::BlockDevice => NewNode::BlockDevice(device),
            _ => return Err(Errno::EINVAL),
        };
        self.make(parent, name, node, mode, caller)
    }

    /// Creates a file and opens it. If another mount has created the name first, `ESTALE` makes the
    /// kernel look it up again: only the kernel can tell whether the caller may open that file.
    pub(super) fn create(
        &self,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: i32,
        caller: Caller,
    ) -> Answer<Attr> {
        let exclusive = flags & nix::libc::O_EXCL != 0;
        let made = self.volume.create_open(parent, name.as_bytes(), mode & 0o7777, caller);
        made.map_err(|error| match error {
            FsError::Exists if !exclusive => Errno::ESTALE,
            error => self.failed("creating a file", &error),
        })
    }

    /// Creates a file without a name, and opens it.
    pub(super) fn create_unnamed(&self, parent: Ino, mode: u32, caller: Caller) -> Answer<Attr> {
        let made = self.volume.create_unnamed(parent, mode & 0o7777, caller);
        made.map_err(|error| self.failed("creating a file without a name", &error))
    }

    pub(super) fn link(&self, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Attr> {
        let linked = self.volume.link(ino, parent, name.as_bytes());
        linked.map_err(|error| self.failed("a link", &error))
    }

    pub(super) fn unlink(&self, parent: Ino, name: &OsStr) -> Answer<()> {
        let removed = self.volume.unlink(parent, name.as_bytes());
        removed.map_err(|error| self.failed("removing a name", &error))
    }

    pub(super) fn rmdir(&self, parent: Ino, name: &OsStr) -> Answer<()> {
        let removed = self.volume.rmdir(parent, name.as_bytes());
        removed.map_err(|error| self.failed("removing a folder", &error))
    }

    pub(super) fn rename(
        &self,
        parent: Ino,
        name: &OsStr,
        new_parent: Ino,
        new_name: &OsStr,
        flags: RenameFlags,
        owner: Caller,
    ) -> Answer<()> {
        const WHITEOUT_NOREPLACE: RenameFlags =
            RenameFlags::RENAME_WHITEOUT.union(RenameFlags::RENAME_NOREPLACE);
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            RenameFlags::RENAME_WHITEOUT => RenameMode::Whiteout { owner, replaces: true },
            flags if flags == WHITEOUT_NOREPLACE => RenameMode::Whiteout { owner, replaces: false },
            _ => return Err(Errno::EINVAL),
        };
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let renamed = self.volume.rename(parent, name, new_parent, new_name, mode);
        renamed.map_err(|error| self.failed("a rename", &error))
    }

    pub(super) fn readlink(&self, ino: Ino) -> Answer<Vec<u8>> {
        let target = self.volume.readlink(ino);
        target.map_err(|error| self.failed_inode("reading a link", &error))
    }

    /// Lists a folder from behind a cookie, as far as the answer has room.
    pub(super) fn list(&self, ino: Ino, cookie: u64, into: &mut Directory) -> Answer<()> {
        let mut visit = |entry: rackpool_fs::ReadDirEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            into.add(entry.ino, entry.cookie, entry.kind, name)
        };
        let listed = self.volume.read_dir(ino, cookie, &mut visit);
        listed.map_err(|error| self.failed_inode("listing a folder", &error))
    }
}
