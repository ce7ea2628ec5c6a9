//! Looking up and creating names.

use std::sync::Arc;

use crate::attr::{Attr, Caller, FileType, Ino, NewNode, Timestamp};
use crate::error::FsError;
use crate::format::inode::Inode;
use crate::format::keys;
use crate::volume::open_file::OpenFile;
use crate::volume::transaction::FsTransaction;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

const MAX_NAME: usize = 255;
const MAX_TARGET: usize = 4095;
const MAX_LINKS: u32 = 1 << 31;
/// How many inode numbers a mount reserves at once.
const INO_RANGE: u64 = 1024;
/// The value of `entries` in a file that never had a name.
const UNNAMED: u64 = 1;
const SET_GROUP_ID: u32 = 0o2000;

/// Checks that bytes can be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        b"" => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::InvalidArgument),
        _ if name.len() > MAX_NAME => Err(FsError::NameTooLong),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(FsError::InvalidArgument),
        _ => Ok(()),
    }
}

impl NewNode<'_> {
    const fn kind(self) -> FileType {
        match self {
            Self::File => FileType::File,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharDevice(_) => FileType::CharDevice,
            Self::BlockDevice(_) => FileType::BlockDevice,
        }
    }
}

/// Returns the inode for something created in the directory `parent`.
pub(crate) fn new_inode(
    parent: &Inode,
    node: NewNode<'_>,
    mode: u32,
    caller: Caller,
    now: Timestamp,
) -> Result<Inode, FsError> {
    let kind = node.kind();
    let mut inode = Inode::new(kind, mode, caller, now);
    if parent.mode & SET_GROUP_ID != 0 {
        inode.gid = parent.gid;
        if kind == FileType::Directory {
            inode.mode |= SET_GROUP_ID;
        }
    }
    match node {
        NewNode::Symlink(target) => {
            inode.target = target.to_vec();
            inode.mode = 0o777;
        }
        NewNode::CharDevice(device) | NewNode::BlockDevice(device) => inode.rdev = device,
        _ => {}
    }
    if kind != FileType::Symlink {
        inode.inherit_acl(parent, caller.umask)?;
    }
    Ok(inode)
}

impl<M: VolumeMemory> Volume<M> {
    /// Returns the attributes of what `name` refers to in the directory `parent`. `.` and `..` are
    /// accepted.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        match name {
            b"." => return self.attr(parent),
            b".." => return self.attr(self.inode(parent)?.parent),
            _ => check_name(name)?,
        }
        loop {
            let entry = self.find_entry(parent, name)?;
            match self.attr(entry.ino) {
                // The entry was removed since, or the volume is damaged.
                Err(FsError::NotFound) if self.find_entry(parent, name)? == entry => {
                    match self.attr(entry.ino) {
                        Err(FsError::NotFound) => {
                            return Err(FsError::Damaged("an entry names no inode"));
                        }
                        found => return found,
                    }
                }
                Err(FsError::NotFound) => {}
                found => return found,
            }
        }
    }

    /// Returns an inode number that was never used.
    pub(crate) fn new_ino(&self) -> Result<Ino, FsError> {
        let mut inos = lock(&self.inos);
        if let Some(ino) = inos.next() {
            return Ok(Ino(ino));
        }
        let first = self.transact_growing(|work| {
            let value = work.get(keys::INOS)?;
            let next = value.as_deref().and_then(<[u8]>::first_chunk);
            let next = u64::from_le_bytes(*next.ok_or(FsError::Damaged("the inode counter"))?);
            let after = next.checked_add(INO_RANGE).filter(|after| after >> 56 == 0);
            let after = after.ok_or(FsError::NoSpace)?;
            work.set(keys::INOS, Some(after.to_le_bytes().to_vec()));
            Ok(next)
        })?;
        *inos = first + 1..first + INO_RANGE;
        Ok(Ino(first))
    }

    /// Creates an entry `name` in the directory `parent`. The directory's default ACL, or without
    /// one the caller's umask, restricts the permission bits of `mode`; the new inode inherits that
    /// ACL. Its owner is the caller; its group is the caller's, or the directory's if that is
    /// set-group-id.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        node: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<Attr, FsError> {
        check_new_name(name)?;
        if let NewNode::Symlink(target) = node {
            match target.len() {
                0 => return Err(FsError::NotFound),
                len if len > MAX_TARGET => return Err(FsError::NameTooLong),
                _ => {}
            }
        }
        let ino = self.new_ino()?;
        let make = |directory: &Inode, now| {
            let mut inode = new_inode(directory, node, mode, caller, now)?;
            inode.parent = if inode.kind == FileType::Directory { parent } else { Ino(0) };
            Ok(inode)
        };
        Ok(self.create_inode(parent, name, ino, make)?.attr(ino))
    }

    /// Creates a file as [`create`](Self::create) does and [`open`](Self::open)s it, in one
    /// transaction. The caller must [`release`](Self::release) it once.
    pub fn create_open(
        &self,
        parent: Ino,
        name: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Attr, FsError> {
        check_new_name(name)?;
        let ino = self.new_ino()?;
        let make = |directory: &Inode, now| {
            let mut inode = new_inode(directory, NewNode::File, mode, caller, now)?;
            inode.opens.push(self.session);
            Ok(inode)
        };
        // The lock is held until the file is in the map: another thread that opened and released
        // the file in between would end this open as well.
        let mut files = lock(self.files_of(ino));
        let created = self.create_inode(parent, name, ino, make);
        // After a failure too the file may exist, open; a sweep clears that up.
        if matches!(created, Ok(_) | Err(FsError::Io(_))) {
            files.insert(ino, Arc::new(OpenFile::new(ino, created.is_ok().into())));
        }
        Ok(created?.attr(ino))
    }

    /// Creates a file without a name, with the attributes that it would get in the directory
    /// `parent`, and opens it. [`link`](Self::link) can give it a name; otherwise the last
    /// [`release`](Self::release) frees it.
    pub fn create_unnamed(&self, parent: Ino, mode: u32, caller: Caller) -> Result<Attr, FsError> {
        let (ino, now) = (self.new_ino()?, Timestamp::now());
        // As in `create_open`.
        let mut files = lock(self.files_of(ino));
        let created = self.transact_growing(|work| {
            let directory = work.inode(parent)?;
            directory.expect_directory()?;
            let mut inode = new_inode(&directory, NewNode::File, mode, caller, now)?;
            inode.opens.push(self.session);
            (inode.nlink, inode.entries) = (0, UNNAMED);
            work.set_inode(ino, &mut inode);
            work.add_orphan(ino)?;
            Ok(inode)
        });
        if matches!(created, Ok(_) | Err(FsError::Io(_))) {
            files.insert(ino, Arc::new(OpenFile::new(ino, created.is_ok().into())));
        }
        Ok(created?.attr(ino))
    }

    /// Creates the inode that `make` returns under a name that does not exist yet.
    fn create_inode(
        &self,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        make: impl Fn(&Inode, Timestamp) -> Result<Inode, FsError>,
    ) -> Result<Inode, FsError> {
        let now = Timestamp::now();
        self.transact_growing(|work| {
            let mut directory = work.inode(parent)?;
            directory.expect_directory()?;
            if work.entry(parent, name)?.is_some() {
                return Err(FsError::Exists);
            }
            let mut inode = make(&directory, now)?;
            work.add_name(parent, &mut directory, name, ino, inode.kind, now)?;
            work.set_inode(ino, &mut inode);
            Ok(inode)
        })
    }

    /// Gives an inode that is no directory another name. Returns the new attributes.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr, FsError> {
        check_new_name(name)?;
        let now = Timestamp::now();
        let inode = self.transact_growing(|work| {
            let mut directory = work.inode(parent)?;
            directory.expect_directory()?;
            if work.entry(parent, name)?.is_some() {
                return Err(FsError::Exists);
            }
            let mut inode = work.inode(ino)?;
            match inode.nlink {
                _ if inode.kind == FileType::Directory => return Err(FsError::Permission),
                0 if inode.entries == UNNAMED => {
                    (inode.nlink, inode.entries) = (1, 0);
                    work.drop_orphan(ino)?;
                }
                // An inode that has lost its last name never gets one again.
                0 => return Err(FsError::NotFound),
                MAX_LINKS.. => return Err(FsError::TooManyLinks),
                _ => inode.nlink += 1,
            }
            inode.ctime = now;
            work.add_name(parent, &mut directory, name, ino, inode.kind, now)?;
            work.set_inode(ino, &mut inode);
            Ok(inode)
        })?;
        Ok(self.with_lazy(ino, inode).attr(ino))
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino)?;
        if inode.kind != FileType::Symlink {
            return Err(FsError::InvalidArgument);
        }
        Ok(inode.target)
    }
}

/// Checks that a name can be created: `.` and `..` exist.
fn check_new_name(name: &[u8]) -> Result<(), FsError> {
    if matches!(name, b"." | b"..") { Err(FsError::Exists) } else { check_name(name) }
}

impl<M: VolumeMemory> FsTransaction<'_, M> {
    /// Adds an entry that does not exist yet, and counts it in its directory.
    pub(crate) fn add_name(
        &mut self,
        parent: Ino,
        directory: &mut Inode,
        name: &[u8],
        ino: Ino,
        kind: FileType,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.set_entry(parent, name, ino, kind)?;
        directory.entries = directory.entries.saturating_add(1);
        if kind == FileType::Directory {
            directory.nlink = directory.nlink.checked_add(1).ok_or(FsError::TooManyLinks)?;
        }
        directory.touch(now);
        self.set_inode(parent, directory);
        Ok(())
    }

    /// Removes an entry, also from the count of its directory.
    pub(crate) fn take_name(
        &mut self,
        parent: Ino,
        directory: &mut Inode,
        name: &[u8],
        kind: FileType,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.remove_entry(parent, name)?;
        directory.entries = directory.entries.saturating_sub(1);
        if kind == FileType::Directory {
            directory.nlink = directory.nlink.saturating_sub(1).max(2);
        }
        directory.touch(now);
        self.set_inode(parent, directory);
        Ok(())
    }
}
