//! Attributes, extended attributes, and the size of the file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::Errno;
use rackpool_fs::{Attr, Caller, Ino, SetAttr, StatFs, XattrMode};

use super::{Answer, Shell};

/// The longest name of an extended attribute, in bytes.
const MAX_XATTR_NAME: usize = 255;
/// The accepted prefixes of extended attributes.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Access control lists: the kernel checks them, and the volume keeps them in agreement with the
/// mode.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// The prefix of attributes that only root sees.
const TRUSTED: &[u8] = b"trusted.";

impl Shell {
    pub(super) fn attr(&self, ino: Ino) -> Answer<Attr> {
        let found = self.volume.attr(ino);
        found.map_err(|error| self.failed_inode("reading attributes", &error))
    }

    pub(super) fn set_attr(&self, ino: Ino, mut change: SetAttr, caller: Caller) -> Answer<Attr> {
        if change.size.is_some() && change.drops_privileges {
            // Before the contents change.
            self.take_set_id(ino)?;
            change.drops_privileges = false;
        }
        let changed = self.volume.set_attr(ino, &change, caller);
        changed.map_err(|error| self.failed_inode("changing attributes", &error))
    }

    pub(super) fn stat_fs(&self) -> Answer<StatFs> {
        self.volume
            .stat_fs()
            .map_err(|error| self.failed("querying the file system's space", &error))
    }

    pub(super) fn xattr(&self, ino: Ino, name: &OsStr) -> Answer<Vec<u8>> {
        let name = checked(name)?;
        let found = self.volume.get_xattr(ino, name);
        found.map_err(|error| self.failed_inode("reading an extended attribute", &error))
    }

    pub(super) fn set_xattr(
        &self,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        is_outside_group: bool,
    ) -> Answer<()> {
        let mode = match flags {
            0 => XattrMode::Set,
            nix::libc::XATTR_CREATE => XattrMode::Create,
            nix::libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let name = checked(name)?;
        let set = match is_outside_group {
            true => self.volume.set_acl_outside_group(ino, name, value, mode),
            false => self.volume.set_xattr(ino, name, value, mode),
        };
        set.map_err(|error| self.failed_inode("setting an extended attribute", &error))
    }

    pub(super) fn remove_xattr(&self, ino: Ino, name: &OsStr) -> Answer<()> {
        let removed = self.volume.remove_xattr(ino, checked(name)?);
        removed.map_err(|error| self.failed_inode("removing an extended attribute", &error))
    }

    /// Returns the names, each terminated by a zero byte.
    pub(super) fn xattrs(&self, ino: Ino, user: u32) -> Answer<Vec<u8>> {
        let found = self.volume.list_xattr(ino);
        let names =
            found.map_err(|error| self.failed_inode("listing extended attributes", &error))?;
        let shown = names.iter().filter(|name| user == 0 || !name.starts_with(TRUSTED));
        let mut list = Vec::new();
        for name in shown {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }

    /// Clears the set-id bits of a file that a user without privileges writes to.
    pub(super) fn take_set_id(&self, ino: Ino) -> Answer<()> {
        let taken = self.volume.drop_privileges(ino);
        taken.map_err(|error| self.failed_inode("clearing set-id bits", &error))
    }
}

/// Checks the name of an extended attribute: accepted prefix, valid length.
fn checked(name: &OsStr) -> Answer<&[u8]> {
    let name = name.as_bytes();
    if ACLS.contains(&name) {
        return Ok(name);
    }
    let Some(prefix) = PREFIXES.iter().find(|prefix| name.starts_with(prefix)) else {
        return Err(Errno::EOPNOTSUPP);
    };
    match name.len() {
        len if len == prefix.len() => Err(Errno::EINVAL),
        len if len > MAX_XATTR_NAME => Err(Errno::ERANGE),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_extended_attributes_are_checked() {
        let code = |name: &str| checked(OsStr::new(name)).err().map(Errno::code);
        assert_eq!(code("user.a"), None);
        assert_eq!(code("user."), Some(nix::libc::EINVAL));
        assert_eq!(code("system.posix_acl_access"), None);
        assert_eq!(code("system.posix_acl_other"), Some(nix::libc::EOPNOTSUPP));
        assert_eq!(code("user"), Some(nix::libc::EOPNOTSUPP));
        assert_eq!(code(&format!("user.{}", "a".repeat(251))), Some(nix::libc::ERANGE));
    }
}
