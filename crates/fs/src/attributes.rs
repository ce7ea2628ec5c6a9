//! Attributes and extended attributes.

use crate::attr::{Attr, Caller, Ino, Kind, NewTime, SetAttr, Time, XattrMode};
use crate::error::FsError;
use crate::inode::Inode;
use crate::medium::Medium;
use crate::volume::Volume;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
const MAX_XATTR_NAME: usize = 255;
/// All extended attributes of an inode together, names included, in bytes.
const MAX_XATTRS: usize = 8192;

/// A new owner or group takes away the rights that the file lent to who executes it.
fn drop_privileges(inode: &mut Inode) {
    if inode.kind == Kind::Directory {
        return;
    }
    inode.mode &= !SET_USER_ID;
    if inode.mode & GROUP_EXECUTES != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
}

fn apply(inode: &mut Inode, change: &SetAttr, now: Time) {
    let time = |new| match new {
        NewTime::Now => now,
        NewTime::At(time) => time,
    };
    if change.uid.is_some() || change.gid.is_some() {
        drop_privileges(inode);
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
    }
    if let Some(mode) = change.mode {
        inode.mode = mode & 0o7777;
    }
    inode.atime = change.atime.map_or(inode.atime, time);
    inode.mtime = change.mtime.map_or(inode.mtime, time);
    inode.ctime = change.ctime.unwrap_or(now);
}

impl<M: Medium> Volume<M> {
    /// The attributes of an inode.
    pub fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let inode = match self.opened(ino) {
            Some(file) => self.inode_of(&file)?,
            None => self.inode(ino)?,
        };
        Ok(inode.attr(ino))
    }

    /// Changes attributes, and gives what they are then. Who may do so is the caller's to check, but
    /// for what depends on the change itself: a new owner or group clears set-user-id and
    /// set-group-id of what is no directory.
    pub fn set_attr(&self, ino: Ino, change: &SetAttr, _: Caller) -> Result<Attr, FsError> {
        if let Some(size) = change.size {
            self.set_size(ino, size)?;
        }
        let others = SetAttr { size: None, ..*change };
        if others == SetAttr::default() {
            return self.attr(ino);
        }
        let now = Time::now();
        let change = |inode: &mut Inode| {
            apply(inode, change, now);
            Ok(())
        };
        let ((), inode) = match self.opened(ino) {
            Some(file) => self.update_with_lazy(&file, change)?,
            None => self.update(ino, change)?,
        };
        Ok(inode.attr(ino))
    }

    /// Clears set-user-id, and set-group-id if the group executes the file: somebody without
    /// privileges changes its contents.
    pub fn drop_privileges(&self, ino: Ino) -> Result<(), FsError> {
        let now = Time::now();
        self.update(ino, |inode| {
            let before = inode.mode;
            drop_privileges(inode);
            if inode.mode != before {
                inode.ctime = now;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// The value of an extended attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino)?;
        let found = inode.xattrs.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).ok_or(FsError::NoAttribute)
    }

    /// Sets an extended attribute. All of an inode's have at most 8 KiB together.
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        if name.is_empty() || name.len() > MAX_XATTR_NAME || value.len() > MAX_XATTRS {
            return Err(FsError::AttributeTooLarge(MAX_XATTRS));
        }
        let now = Time::now();
        self.transact_growing(|work| {
            let mut inode = work.inode(ino)?;
            let known = inode.xattrs.iter_mut().find(|(known, _)| known == name);
            match (known, mode) {
                (Some(_), XattrMode::Create) => return Err(FsError::Exists),
                (None, XattrMode::Replace) => return Err(FsError::NoAttribute),
                (Some((_, old)), _) => *old = value.to_vec(),
                (None, _) => inode.xattrs.push((name.to_vec(), value.to_vec())),
            }
            let bytes: usize =
                inode.xattrs.iter().map(|(name, value)| name.len() + value.len() + 5).sum();
            if bytes > MAX_XATTRS {
                return Err(FsError::NoSpace);
            }
            inode.ctime = now;
            work.set_inode(ino, &mut inode);
            Ok(())
        })
    }

    /// The names of an inode's extended attributes.
    pub fn list_xattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.inode(ino)?.xattrs.into_iter().map(|(name, _)| name).collect())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let now = Time::now();
        self.update(ino, |inode| {
            let at = inode.xattrs.iter().position(|(known, _)| known == name);
            inode.xattrs.remove(at.ok_or(FsError::NoAttribute)?);
            inode.ctime = now;
            Ok(())
        })?;
        Ok(())
    }
}
