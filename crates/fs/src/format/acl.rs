//! POSIX access control lists: format, agreement with the mode, inheritance.
//!
//! Inodes store them as extended attributes in the kernel's format, with little-endian numbers:
//!
//! ```text
//! version u32: 2 | each entry: tag u16, permissions u16, id u32
//! ```
//!
//! The rules are those of acl(5) and of Linux. An access ACL that is equivalent to the mode is not
//! stored. The kernel checks permissions.

use crate::attr::FileType;
use crate::error::FsError;
use crate::format::codec::Reader;
use crate::format::inode::Inode;

/// The attribute with the access ACL.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with a directory's default ACL, which new entries inherit.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
/// The most entries of an ACL: two such ACLs fit into the attributes of a new directory.
const MAX_ENTRIES: usize = 500;
const ENTRY_BYTES: usize = 8;

/// The subject of an entry. Entries are sorted in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner,
    User(u32),
    OwningGroup,
    Group(u32),
    /// The upper bound of the permissions of named users, named groups and the owning group.
    Mask,
    Others,
}

impl Tag {
    const fn from_raw(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Others,
            _ => return None,
        })
    }

    /// The tag and the id; the kernel writes all ones where there is no id.
    const fn to_raw(self) -> (u16, u32) {
        match self {
            Self::Owner => (0x01, u32::MAX),
            Self::User(id) => (0x02, id),
            Self::OwningGroup => (0x04, u32::MAX),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, u32::MAX),
            Self::Others => (0x20, u32::MAX),
        }
    }

    /// The rank of the tag in the order.
    const fn step(self) -> u8 {
        match self {
            Self::Owner => 0,
            Self::User(_) => 1,
            Self::OwningGroup => 2,
            Self::Group(_) => 3,
            Self::Mask => 4,
            Self::Others => 5,
        }
    }

    const fn is_named(self) -> bool {
        matches!(self, Self::User(_) | Self::Group(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    permissions: u32,
}

/// A valid ACL: it has all required entries, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Decodes an ACL. It must have one owner, one owning group and one others entry, a mask if it
    /// has a named entry, and entries in the order of tags. Returns `None` for anything else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes, "an access control list");
        if from.u32().ok()? != VERSION {
            return None;
        }
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
        while !from.is_empty() {
            let (tag, permissions, id) = (from.u16().ok()?, from.u16().ok()?, from.u32().ok()?);
            let tag = Tag::from_raw(tag, id)?;
            entries.push(AclEntry { tag, permissions: permissions.into() });
        }
        let acl = Self { entries };
        acl.is_valid().then_some(acl)
    }

    fn is_valid(&self) -> bool {
        let count = |step| self.entries.iter().filter(|entry| entry.tag.step() == step).count();
        let is_named = self.entries.iter().any(|entry| entry.tag.is_named());
        let masks = count(Tag::Mask.step());
        self.entries.len() <= MAX_ENTRIES
            && self.entries.is_sorted_by_key(|entry| entry.tag.step())
            && self.entries.iter().all(|entry| entry.permissions <= 7)
            && [Tag::Owner, Tag::OwningGroup, Tag::Others].iter().all(|tag| count(tag.step()) == 1)
            && (masks == 1 || (masks == 0 && !is_named))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.entries.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id) = entry.tag.to_raw();
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::try_from(entry.permissions).unwrap_or(0).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Whether nine mode bits can express it.
    fn is_minimal(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| matches!(entry.tag, Tag::Owner | Tag::OwningGroup | Tag::Others))
    }

    /// The entries that the three digits of a mode stand for, with their shifts: the group's digit
    /// is the mask, if there is one.
    fn digits(&mut self) -> impl Iterator<Item = (&mut u32, u32)> {
        let has_mask = self.entries.iter().any(|entry| entry.tag == Tag::Mask);
        self.entries.iter_mut().filter_map(move |entry| {
            let shift = match entry.tag {
                Tag::Owner => 6,
                Tag::Mask => 3,
                Tag::OwningGroup if !has_mask => 3,
                Tag::Others => 0,
                _ => return None,
            };
            Some((&mut entry.permissions, shift))
        })
    }

    /// The permission bits of a mode that agrees with this ACL.
    fn mode(&mut self) -> u32 {
        self.digits().fold(0, |mode, (permissions, shift)| mode | (*permissions << shift))
    }

    /// Makes the ACL agree with a mode.
    fn set_mode(&mut self, mode: u32) {
        self.digits().for_each(|(permissions, shift)| *permissions = mode >> shift & 7);
    }

    /// Removes the permissions that a new file's `mode` does not grant.
    fn restrict(&mut self, mode: u32) {
        self.digits().for_each(|(permissions, shift)| *permissions &= mode >> shift & 7);
    }
}

/// Whether an attribute is an ACL.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

impl Inode {
    /// Returns an ACL of the inode.
    fn acl(&self, name: &[u8]) -> Result<Option<Acl>, FsError> {
        let Some(value) = self.xattr(name) else { return Ok(None) };
        Acl::decode(value).map(Some).ok_or(FsError::Damaged("an access control list"))
    }

    /// Sets an ACL that a caller has sent. An access ACL also sets the permission bits; only
    /// directories have a default ACL.
    pub(crate) fn set_acl(&mut self, name: &[u8], value: &[u8]) -> Result<(), FsError> {
        let has_acl = match self.kind {
            FileType::Directory => true,
            FileType::Symlink => false,
            _ => name == ACCESS,
        };
        if !has_acl {
            return Err(FsError::Permission);
        }
        if value.len() > 4 + MAX_ENTRIES * ENTRY_BYTES {
            return Err(FsError::NoSpace);
        }
        let mut acl = Acl::decode(value).ok_or(FsError::InvalidArgument)?;
        if name == ACCESS {
            self.mode = self.mode & !0o777 | acl.mode();
            if acl.is_minimal() {
                self.remove_xattr(ACCESS);
                return Ok(());
            }
        }
        self.set_xattr(name, acl.encode());
        Ok(())
    }

    /// Sets all bits of the mode, and makes the access ACL agree.
    pub(crate) fn set_mode(&mut self, mode: u32) -> Result<(), FsError> {
        self.mode = mode & 0o7777;
        if let Some(mut acl) = self.acl(ACCESS)? {
            acl.set_mode(mode);
            self.set_xattr(ACCESS, acl.encode());
        }
        Ok(())
    }

    /// Applies the directory's default ACL to a new inode that has the requested mode; without one,
    /// applies the umask.
    pub(crate) fn inherit_acl(&mut self, directory: &Self, umask: u32) -> Result<(), FsError> {
        let Some(default) = directory.acl(DEFAULT)? else {
            self.mode &= !umask;
            return Ok(());
        };
        let mut access = default.clone();
        access.restrict(self.mode);
        self.mode = self.mode & !0o777 | access.mode();
        if !access.is_minimal() {
            self.set_xattr(ACCESS, access.encode());
        }
        if self.kind == FileType::Directory {
            self.set_xattr(DEFAULT, default.encode());
        }
        Ok(())
    }
}
