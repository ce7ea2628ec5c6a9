//! Opening, reading, writing, holes.

use std::cell::RefCell;

use fuser::{Errno, FopenFlags, WriteFlags};
use nix::libc;
use rackpool_fs::{AllocateMode, Appended, Attr, Caller, Ino};

use super::{Answer, Shell};
use crate::device::{Opened, Reply};
use crate::kernel_cached::CachedOpen;

/// The largest offset of a file.
const MAX_OFFSET: u64 = i64::MAX as u64;

thread_local! {
    /// The thread's read buffer.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Shell {
    /// Opens a file.
    pub(super) fn open(&self, ino: Ino, flags: i32) -> Answer<Opened> {
        let opened = self.volume.open(ino);
        let attr = opened.map_err(|error| self.failed_inode("opening a file", &error))?;
        Ok(self.treatment(&attr, flags))
    }

    /// Gives a file that was opened with these flags a new handle.
    pub(super) fn treatment(&self, attr: &Attr, flags: i32) -> Opened {
        let CachedOpen { handle, is_current } = self.kernel_cached.at_open(attr);
        Opened { handle, flags: Self::flags(is_current, flags) }
    }

    fn flags(keeps: bool, flags: i32) -> FopenFlags {
        if flags & (libc::O_DIRECT | libc::O_APPEND) != 0 {
            // Appends go to the file's end in the pool; the kernel's idea of the end may be stale.
            return FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        if keeps { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
    }

    pub(super) fn open_folder(&self, ino: Ino) -> Answer<()> {
        let opened = self.volume.open(ino);
        opened.map(drop).map_err(|error| self.failed_inode("opening a folder", &error))
    }

    /// Releases a file or folder.
    pub(super) fn release(&self, ino: Ino) -> Answer<()> {
        let released = self.volume.release(ino);
        released.map_err(|error| self.failed_inode("closing a file", &error))
    }

    /// Releases an open file description.
    pub(super) fn release_file(&self, ino: Ino, handle: u64) -> Answer<()> {
        self.kernel_cached.at_close(ino, handle);
        let dropped = self.drop_locks_through(ino, handle);
        self.release(ino).and(dropped)
    }

    /// Reads into the thread's buffer and answers from there.
    pub(super) fn read(&self, ino: Ino, offset: u64, size: u32, reply: Reply) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.volume.read(ino, offset, &mut buffer[..size]) {
                Ok(read) => reply.bytes(buffer.get(..read).unwrap_or_default()),
                Err(error) => reply.error(self.failed_inode("a read", &error)),
            }
        });
    }

    pub(super) fn write(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: i32,
    ) -> Answer<u32> {
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            self.take_set_id(ino)?;
        }
        // Write-back from the page cache keeps its offset.
        let written = if how.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.volume.write_back(ino, offset, data)
        } else if flags & libc::O_APPEND != 0 {
            self.append(ino, offset, data)
        } else {
            self.volume.write(ino, offset, data)
        };
        let written = written.map_err(|error| self.failed_inode("a write", &error))?;
        u32::try_from(written).map_err(|_| Errno::EIO)
    }

    /// Appends. If the file ends elsewhere than the kernel assumed, the kernel's pages of the file
    /// may be wrong and are reported as outdated.
    fn append(&self, ino: Ino, assumed: u64, data: &[u8]) -> Result<usize, rackpool_fs::FsError> {
        let Appended { offset, bytes: written } = self.volume.append(ino, data)?;
        if offset != assumed {
            // Not from this thread: the kernel may hold those pages until this request is answered.
            // The receiver lives as long as the shell.
            let _ = self.outdated.send(ino);
        }
        Ok(written)
    }

    /// Handles `FLUSH`: the process `owner` has closed one of its descriptors.
    pub(super) fn flush(&self, ino: Ino, handle: u64, owner: u64) -> Answer<()> {
        self.kernel_cached.at_close(ino, handle);
        let flushed = self.volume.flush(ino);
        let dropped = self.drop_locks(ino, handle, owner);
        flushed.map_err(|error| self.failed_inode("closing a file", &error)).and(dropped)
    }

    pub(super) fn sync(&self, ino: Ino) -> Answer<()> {
        let synced = self.volume.sync(ino);
        synced.map_err(|error| self.failed_inode("fsync", &error))
    }

    pub(super) fn allocate(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: i32,
        caller: Caller,
    ) -> Answer<()> {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let mode = match mode {
            0 => AllocateMode::Allocate,
            libc::FALLOC_FL_KEEP_SIZE => AllocateMode::AllocateKeepSize,
            PUNCH => AllocateMode::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => AllocateMode::ZeroRange,
            ZERO_KEEP => AllocateMode::ZeroRangeKeepSize,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if offset.checked_add(len).is_none_or(|end| end > MAX_OFFSET) {
            return Err(Errno::EFBIG);
        }
        if caller.uid != 0 {
            self.take_set_id(ino)?;
        }
        let done = self.volume.allocate(ino, mode, offset, len);
        done.map_err(|error| self.failed_inode("fallocate", &error))
    }

    pub(super) fn seek(&self, ino: Ino, offset: i64, whence: i32) -> Answer<i64> {
        let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = match whence {
            libc::SEEK_DATA => self.volume.seek_data(ino, from),
            libc::SEEK_HOLE => self.volume.seek_hole(ino, from),
            _ => return Err(Errno::EINVAL),
        };
        let found = found.map_err(|error| self.failed_inode("a seek", &error))?;
        i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
    }
}
