//! The record of an inode.
//!
//! ```text
//!  0 version u8 | 1 kind u8 | 2 mode u16 | 4 nlink u32 | 8 uid u32 | 12 gid u32 | 16 rdev u32
//! 20 size u64 | 28 allocated u64 | 36 atime, mtime, ctime: i64 s, u32 ns each | 72 change u64
//! 80 parent u64 | 88 entries u64 | 96 head u64 | 104 claim: seat u16, token u64 | 114 opens u16
//! 116 each: seat u16, token u64 | target: length u32, bytes |
//!     xattrs: length u8, name, length u32, value
//! ```

use crate::attr::{Attr, Caller, FileType, Ino, Timestamp};
use crate::error::FsError;
use crate::format::codec::{Reader, put_long, put_short};
use crate::format::session::Session;

/// An inode as stored in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    /// Of a file: length in bytes.
    pub(crate) size: u64,
    /// Bytes allocated for the contents.
    pub(crate) allocated: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) change: u64,
    /// Of a directory: its parent.
    pub(crate) parent: Ino,
    /// Of a directory: the number of entries. Of a file: 1 until it gets its first name.
    pub(crate) entries: u64,
    /// Of a file: the address of its head; 0 before its first allocation.
    pub(crate) head: u64,
    /// The mount that shortens or frees the file.
    pub(crate) claim: Option<Session>,
    /// The mounts that have the inode open.
    pub(crate) opens: Vec<Session>,
    /// Of a symbolic link: its target.
    pub(crate) target: Vec<u8>,
    pub(crate) xattrs: Vec<Xattr>,
}

const VERSION: u8 = 1;
/// Length in bytes of a file's record without sessions and extended attributes.
const FIXED_LEN: usize = 120;
const SESSION_LEN: usize = 10;
/// The length that an empty directory reports; each entry adds 64.
const DIRECTORY_BYTES: u64 = 4096;

/// The encoding of a kind in inodes and entries.
pub(crate) const fn kind_to_byte(kind: FileType) -> u8 {
    match kind {
        FileType::File => 1,
        FileType::Directory => 2,
        FileType::Symlink => 3,
        FileType::Fifo => 4,
        FileType::Socket => 5,
        FileType::CharDevice => 6,
        FileType::BlockDevice => 7,
    }
}

pub(crate) const fn kind_from_byte(byte: u8) -> Option<FileType> {
    Some(match byte {
        1 => FileType::File,
        2 => FileType::Directory,
        3 => FileType::Symlink,
        4 => FileType::Fifo,
        5 => FileType::Socket,
        6 => FileType::CharDevice,
        7 => FileType::BlockDevice,
        _ => return None,
    })
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Xattr {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Inode {
    /// Returns a new inode that no entry names yet.
    pub(crate) fn new(kind: FileType, mode: u32, caller: Caller, now: Timestamp) -> Self {
        Self {
            kind,
            mode: mode & 0o7777,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            change: 1,
            parent: Ino(0),
            entries: 0,
            head: 0,
            claim: None,
            opens: Vec::new(),
            target: Vec::new(),
            xattrs: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128 + self.target.len());
        bytes.extend_from_slice(&[VERSION, kind_to_byte(self.kind)]);
        bytes.extend_from_slice(&u16::try_from(self.mode & 0o7777).unwrap_or(0).to_le_bytes());
        for word in [self.nlink, self.uid, self.gid, self.rdev] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.allocated.to_le_bytes());
        for time in [self.atime, self.mtime, self.ctime] {
            bytes.extend_from_slice(&time.seconds.to_le_bytes());
            bytes.extend_from_slice(&time.nanoseconds.to_le_bytes());
        }
        for word in [self.change, self.parent.0, self.entries, self.head] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        self.claim.unwrap_or(Session::NONE).encode(&mut bytes);
        let opens = u16::try_from(self.opens.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&opens.to_le_bytes());
        self.opens.iter().take(opens.into()).for_each(|session| session.encode(&mut bytes));
        put_long(&mut bytes, &self.target);
        for Xattr { name, value } in &self.xattrs {
            put_short(&mut bytes, name);
            put_long(&mut bytes, value);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FsError> {
        let mut from = Reader::new(bytes, "an inode");
        let mut inode = Self::decode_fixed(&mut from)?;
        for _ in 0..from.u16()? {
            inode.opens.push(Session::decode(&mut from)?);
        }
        inode.target = from.long()?.to_vec();
        while !from.is_empty() {
            inode.xattrs.push(Xattr { name: from.short()?.to_vec(), value: from.long()?.to_vec() });
        }
        Ok(inode)
    }

    /// As `decode`, but leaves the list of sessions that have the file open empty, which saves an
    /// allocation.
    pub(crate) fn decode_contents(bytes: &[u8]) -> Result<Self, FsError> {
        let mut from = Reader::new(bytes, "an inode");
        let inode = Self::decode_fixed(&mut from)?;
        // Behind the sessions a file has only extended attributes, and few files have any.
        let opens = usize::from(from.u16()?);
        if bytes.len() > FIXED_LEN + opens * SESSION_LEN { Self::decode(bytes) } else { Ok(inode) }
    }

    fn decode_fixed(from: &mut Reader<'_>) -> Result<Self, FsError> {
        if from.u8()? != VERSION {
            return Err(from.damaged());
        }
        let kind = kind_from_byte(from.u8()?).ok_or(from.damaged())?;
        let mut inode = Self::new(kind, 0, Caller::new(0, 0), Timestamp::default());
        inode.mode = from.u16()?.into();
        for word in [&mut inode.nlink, &mut inode.uid, &mut inode.gid, &mut inode.rdev] {
            *word = from.u32()?;
        }
        inode.size = from.u64()?;
        inode.allocated = from.u64()?;
        for time in [&mut inode.atime, &mut inode.mtime, &mut inode.ctime] {
            *time = Timestamp { seconds: from.i64()?, nanoseconds: from.u32()? };
        }
        inode.change = from.u64()?;
        inode.parent = Ino(from.u64()?);
        inode.entries = from.u64()?;
        inode.head = from.u64()?;
        inode.claim = Some(Session::decode(from)?).filter(|claim| *claim != Session::NONE);
        Ok(inode)
    }

    /// The public attributes.
    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let (size, allocated) = match self.kind {
            FileType::File => (self.size, self.allocated),
            FileType::Directory => {
                (DIRECTORY_BYTES.saturating_add(self.entries.saturating_mul(64)), DIRECTORY_BYTES)
            }
            FileType::Symlink => (self.target.len() as u64, 0),
            _ => (0, 0),
        };
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size,
            blocks: allocated.div_ceil(512),
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            change: self.change,
        }
    }

    /// The value of an extended attribute.
    pub(crate) fn xattr(&self, name: &[u8]) -> Option<&[u8]> {
        let found = self.xattrs.iter().find(|known| known.name == name);
        found.map(|known| &known.value[..])
    }

    /// Sets an extended attribute. The callers bound its size.
    pub(crate) fn set_xattr(&mut self, name: &[u8], value: Vec<u8>) {
        match self.xattrs.iter_mut().find(|known| known.name == name) {
            Some(known) => known.value = value,
            None => self.xattrs.push(Xattr { name: name.to_vec(), value }),
        }
    }

    /// Removes an extended attribute. Returns false if it does not exist.
    pub(crate) fn remove_xattr(&mut self, name: &[u8]) -> bool {
        let before = self.xattrs.len();
        self.xattrs.retain(|known| known.name != name);
        self.xattrs.len() < before
    }

    /// Sets the times of a change of the contents.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        (self.mtime, self.ctime) = (now, now);
    }

    /// Fails unless the inode is a directory that still has its name.
    pub(crate) fn expect_directory(&self) -> Result<(), FsError> {
        match self.kind {
            FileType::Directory if self.nlink == 0 => Err(FsError::NotFound),
            FileType::Directory => Ok(()),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// Fails unless the inode is a regular file.
    pub(crate) fn expect_file(&self) -> Result<(), FsError> {
        match self.kind {
            FileType::File => Ok(()),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::InvalidArgument),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_went_and_is_damaged_when_cut() {
        let now = Timestamp { seconds: -5, nanoseconds: 999_999_999 };
        let mut inode = Inode::new(FileType::Symlink, 0o7755, Caller::new(1, 2), now);
        inode.target = b"../target".to_vec();
        inode.opens = vec![Session { seat: 3, token: 1 << 60 }; 2];
        inode.claim = Some(Session { seat: 9, token: 1 << 50 });
        let xattr = |name: &[u8], value| Xattr { name: name.to_vec(), value };
        inode.xattrs = vec![xattr(b"user.a", vec![7; 300]), xattr(b"user.b", Vec::new())];
        let bytes = inode.encode();
        assert_eq!(Inode::decode(&bytes).unwrap(), inode);
        // A cut between two attributes decodes; the table's own check detects it.
        for len in 0..116 + 2 * 10 + 4 + inode.target.len() {
            assert!(matches!(Inode::decode(&bytes[..len]), Err(FsError::Damaged(_))), "{len}");
        }
        let mut other = bytes;
        other[1] = 77;
        assert!(matches!(Inode::decode(&other), Err(FsError::Damaged(_))));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn any_bytes_are_an_inode_or_refused(
            first in 0..9_u8,
            rest in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        ) {
            let _ = Inode::decode(&[&[VERSION, first][..], &rest].concat());
            let _ = Session::decode_all(&rest);
        }
    }
}
