//! Attributes and extended attributes.

use crate::attr::{Attr, Caller, FileType, Ino, NewTime, SetAttr, Timestamp, XattrMode};
use crate::error::FsError;
use crate::format::acl;
use crate::format::inode::Inode;
use crate::volume::Volume;
use crate::volume_memory::VolumeMemory;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTES: u32 = 0o010;
const MAX_XATTR_NAME: usize = 255;
/// The most bytes of all extended attributes of an inode together, names included.
const MAX_XATTRS: usize = 8192;

/// Clears set-user-id, and set-group-id if the group may execute the file.
fn drop_privileges(inode: &mut Inode) {
    if inode.kind == FileType::Directory {
        return;
    }
    inode.mode &= !SET_USER_ID;
    if inode.mode & GROUP_EXECUTES != 0 {
        inode.mode &= !SET_GROUP_ID;
    }
}

fn apply(inode: &mut Inode, change: &SetAttr, now: Timestamp) -> Result<(), FsError> {
    let time = |new| match new {
        NewTime::Now => now,
        NewTime::At(time) => time,
    };
    if change.uid.is_some() || change.gid.is_some() || change.drops_privileges {
        drop_privileges(inode);
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
    }
    if let Some(mode) = change.mode {
        inode.set_mode(mode)?;
    }
    inode.atime = change.atime.map_or(inode.atime, time);
    inode.mtime = change.mtime.map_or(inode.mtime, time);
    inode.ctime = change.ctime.unwrap_or(now);
    Ok(())
}

impl<M: VolumeMemory> Volume<M> {
    /// Returns the attributes of an inode.
    pub fn attr(&self, ino: Ino) -> Result<Attr, FsError> {
        let inode = match self.opened(ino) {
            Some(file) => self.inode_of(&file)?,
            None => self.inode(ino)?,
        };
        Ok(inode.attr(ino))
    }

    /// Changes attributes, and returns the new ones. The caller checks permissions. Two effects
    /// follow from the change itself: a new owner or group clears set-user-id and set-group-id of
    /// anything but a directory, and new permission bits change the access ACL.
    pub fn set_attr(&self, ino: Ino, change: &SetAttr, _: Caller) -> Result<Attr, FsError> {
        if let Some(size) = change.size {
            self.set_size(ino, size)?;
        }
        let others = SetAttr { size: None, ..*change };
        if others == SetAttr::default() {
            return self.attr(ino);
        }
        let now = Timestamp::now();
        let change = |inode: &mut Inode| apply(inode, change, now);
        let updated = match self.opened(ino) {
            Some(file) => self.update_with_lazy(&file, change)?,
            None => self.update(ino, change)?,
        };
        Ok(updated.inode.attr(ino))
    }

    /// Clears set-user-id, and set-group-id if the group may execute the file. The caller calls it
    /// when a user without privileges changes the contents.
    pub fn drop_privileges(&self, ino: Ino) -> Result<(), FsError> {
        let now = Timestamp::now();
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

    /// Returns the value of an extended attribute.
    pub fn get_xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino)?;
        inode.xattr(name).map(<[u8]>::to_vec).ok_or(FsError::NoAttribute)
    }

    /// Sets an extended attribute. All attributes of an inode together have at most 8 KiB.
    ///
    /// `system.posix_acl_access` and `system.posix_acl_default` are POSIX access control lists, in
    /// Linux's format. An access ACL sets the permission bits of the mode, and new permission bits
    /// change the ACL. An access ACL that is equivalent to the permission bits is not stored.
    ///
    /// # Errors
    /// [`FsError::InvalidArgument`] if the value of an ACL is malformed, [`FsError::Permission`] if
    /// an inode of this kind has no such ACL.
    pub fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.change_xattr(ino, name, value, mode, |_| {})
    }

    /// As [`set_xattr`](Self::set_xattr), for an access ACL set by an owner outside the file's
    /// group: clears set-group-id.
    pub fn set_acl_outside_group(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.change_xattr(ino, name, value, mode, |inode| inode.mode &= !SET_GROUP_ID)
    }

    fn change_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        also: impl Fn(&mut Inode),
    ) -> Result<(), FsError> {
        if name.is_empty() || name.len() > MAX_XATTR_NAME || value.len() > MAX_XATTRS {
            return Err(FsError::AttributeTooLarge(MAX_XATTRS));
        }
        let now = Timestamp::now();
        self.transact_growing(|work| {
            let mut inode = work.inode(ino)?;
            match (inode.xattr(name).is_some(), mode) {
                (true, XattrMode::Create) => return Err(FsError::Exists),
                (false, XattrMode::Replace) => return Err(FsError::NoAttribute),
                _ if acl::is_acl(name) => inode.set_acl(name, value)?,
                _ => inode.set_xattr(name, value.to_vec()),
            }
            also(&mut inode);
            let bytes: usize =
                inode.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len() + 5).sum();
            if bytes > MAX_XATTRS {
                return Err(FsError::NoSpace);
            }
            inode.ctime = now;
            work.set_inode(ino, &mut inode);
            Ok(())
        })
    }

    /// Returns the names of an inode's extended attributes.
    pub fn list_xattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        Ok(self.inode(ino)?.xattrs.into_iter().map(|xattr| xattr.name).collect())
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let now = Timestamp::now();
        self.update(ino, |inode| {
            if !inode.remove_xattr(name) {
                return Err(FsError::NoAttribute);
            }
            inode.ctime = now;
            Ok(())
        })?;
        Ok(())
    }
}
