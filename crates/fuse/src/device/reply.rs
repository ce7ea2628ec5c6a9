//! Answers to requests.

use std::ffi::OsStr;
use std::io::{IoSlice, Write};
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, FopenFlags};
use nix::libc;
use rackpool_fs::{Attr, FileType, Ino, StatFs, Timestamp};

use super::Device;

/// The block size reported to programs, in bytes.
const BLOCK_BYTES: u32 = 4096;
const HEADER_BYTES: usize = 16;
const NAME_ALIGN: usize = 8;

/// A file or folder that was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// What the kernel may do with its pages.
    pub(crate) flags: FopenFlags,
}

/// Answers one request, once. If it is dropped unanswered, as when a thread panics, the answer is
/// `EIO`.
#[derive(Debug)]
pub(crate) struct Reply {
    device: Option<Device>,
    unique: u64,
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(Errno::EIO.code(), &[]);
    }
}

impl Reply {
    pub(super) fn new(device: &Device, unique: u64) -> Self {
        Self { device: Some(device.clone()), unique }
    }

    /// The kernel's number of the request.
    pub(crate) const fn unique(&self) -> u64 {
        self.unique
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        let Some(device) = self.device.take() else { return };
        let mut header = [0; HEADER_BYTES];
        let len = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
        header[..4].copy_from_slice(&len.to_le_bytes());
        header[4..8].copy_from_slice(&(-error).to_le_bytes());
        header[8..].copy_from_slice(&self.unique.to_le_bytes());
        let sent = (&device.0.file).write_vectored(&[IoSlice::new(&header), IoSlice::new(body)]);
        match sent.map_err(|error| (error.raw_os_error(), error)) {
            // The program is gone, or the whole mount.
            Ok(_) | Err((Some(libc::ENOENT | libc::ENODEV), _)) => {}
            Err((_, error)) => tracing::error!("the kernel refused an answer: {error}"),
        }
    }

    /// Drops the reply: the request needs no answer.
    pub(crate) fn none(mut self) {
        self.device = None;
    }

    pub(crate) fn error(mut self, error: Errno) {
        self.send(error.code(), &[]);
    }

    pub(crate) fn done(mut self) {
        self.send(0, &[]);
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Answers a look-up. The kernel caches neither the name nor the attributes.
    pub(crate) fn entry(self, attr: &Attr) {
        self.bytes(&entry(attr));
    }

    /// Answers as [`entry`](Self::entry), with the handle of a file that was opened.
    pub(crate) fn created(self, attr: &Attr, opened: Opened) {
        self.bytes(&[&entry(attr)[..], &opening(opened)].concat());
    }

    pub(crate) fn opened(self, opened: Opened) {
        self.bytes(&opening(opened));
    }

    pub(crate) fn attr(self, attr: &Attr) {
        // Cache timeout 0: seconds u64, nanoseconds u32, zero u32.
        let mut bytes = vec![0; 16];
        put_attr(&mut bytes, attr);
        self.bytes(&bytes);
    }

    /// Two words; the second one is unused.
    pub(crate) fn count(self, count: u32) {
        self.bytes(&u64::from(count).to_le_bytes());
    }

    pub(crate) fn offset(self, offset: i64) {
        self.bytes(&offset.to_le_bytes());
    }

    pub(crate) fn stat_fs(self, stat: &StatFs) {
        let free = stat.free_blocks;
        let mut bytes = Vec::with_capacity(80);
        for word in [stat.blocks, free, free, 0, 0] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for word in [stat.block_bytes, stat.max_name_bytes, stat.block_bytes] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.resize(80, 0);
        self.bytes(&bytes);
    }
}

/// node u64 | generation u64 | valid: seconds u64 twice, nanoseconds u32 twice | attributes
fn entry(attr: &Attr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    bytes.extend_from_slice(&attr.ino.0.to_le_bytes());
    // Inode numbers are never reused, so all have one generation. The cache timeouts are 0.
    bytes.resize(40, 0);
    put_attr(&mut bytes, attr);
    bytes
}

fn opening(Opened { handle, flags }: Opened) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&handle.to_le_bytes());
    bytes[8..12].copy_from_slice(&flags.bits().to_le_bytes());
    bytes
}

fn put_attr(into: &mut Vec<u8>, attr: &Attr) {
    let seconds = |time: Timestamp| time.seconds.cast_unsigned();
    let (atime, mtime, ctime) = (attr.atime, attr.mtime, attr.ctime);
    for word in [attr.ino.0, attr.size, attr.blocks, seconds(atime), seconds(mtime), seconds(ctime)]
    {
        into.extend_from_slice(&word.to_le_bytes());
    }
    let mode = (kind_bits(attr.kind) << 12) | (attr.mode & 0o7777);
    for word in [
        atime.nanoseconds,
        mtime.nanoseconds,
        ctime.nanoseconds,
        mode,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.rdev,
        BLOCK_BYTES,
        0,
    ] {
        into.extend_from_slice(&word.to_le_bytes());
    }
}

/// The kind as encoded in a mode and in an entry of a folder.
const fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 1,
        FileType::CharDevice => 2,
        FileType::Directory => 4,
        FileType::BlockDevice => 6,
        FileType::File => 8,
        FileType::Symlink => 10,
        FileType::Socket => 12,
    }
}

/// Entries of a folder, as many as fit into the kernel's buffer.
#[derive(Debug)]
pub(crate) struct Directory {
    bytes: Vec<u8>,
    room: usize,
}

impl Directory {
    pub(crate) fn new(room: u32) -> Self {
        Self { bytes: Vec::new(), room: usize::try_from(room).unwrap_or(usize::MAX) }
    }

    /// Appends an entry. Returns false if there is no room for it.
    pub(crate) fn add(&mut self, ino: Ino, cookie: u64, kind: FileType, name: &OsStr) -> bool {
        let len = (24 + name.len()).next_multiple_of(NAME_ALIGN);
        if self.bytes.len() + len > self.room {
            return false;
        }
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(&ino.0.to_le_bytes());
        self.bytes.extend_from_slice(&cookie.to_le_bytes());
        let name_len = u32::try_from(name.len()).unwrap_or(0);
        self.bytes.extend_from_slice(&name_len.to_le_bytes());
        self.bytes.extend_from_slice(&kind_bits(kind).to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.resize(end, 0);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_filled_as_far_as_there_is_room() {
        let mut folder = Directory::new(64);
        assert!(folder.add(Ino(1), 7, FileType::Directory, OsStr::new("12345678")));
        assert!(folder.add(Ino(2), 8, FileType::File, OsStr::new("1")));
        assert!(!folder.add(Ino(3), 9, FileType::File, OsStr::new("1")));
        assert_eq!(folder.bytes().len(), 64);
        assert_eq!(&folder.bytes()[24..32], b"12345678");
        assert_eq!(folder.bytes()[32 + 20], 8);
    }

    #[test]
    fn attributes_have_their_places() {
        let time = Timestamp { seconds: -2, nanoseconds: 5 };
        let attr = Attr {
            ino: Ino(3),
            kind: FileType::File,
            mode: 0o644,
            nlink: 1,
            uid: 2,
            gid: 3,
            rdev: 0,
            size: 9,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            change: 1,
        };
        let bytes = entry(&attr);
        assert_eq!(bytes.len(), 128);
        assert_eq!(bytes[..8], bytes[40..48]);
        assert_eq!(bytes[40 + 24..40 + 32], (-2_i64).to_le_bytes());
        assert_eq!(bytes[40 + 60..40 + 64], 0o100_644_u32.to_le_bytes());
    }
}
