//! Memory for tests without mappings: a file that is read and written by system calls.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::MemfdFlags;

use crate::emulated::Mapper;
use crate::{MemoryRegion, OutOfRange};

/// A system call may move the bytes of a word one by one, so this lock serialises the threads of a
/// test. Between processes, the test relies on the kernel.
static WORDS: RwLock<()> = RwLock::new(());

/// A part of a file as memory. Slow, but free of unsafe code.
#[derive(Debug)]
pub struct FileMemory {
    fd: OwnedFd,
    len: u64,
}

/// Maps the memory that peers export as [`FileMemory`].
#[derive(Clone, Copy, Debug)]
pub struct FileMapper;

impl FileMemory {
    /// Zeroed memory of this process.
    ///
    /// # Panics If the system is out of memory.
    #[must_use]
    pub fn anonymous(len: u64) -> Self {
        let make = || {
            let fd = rustix::fs::memfd_create("rackpool-test", MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&fd, len)?;
            Ok::<_, io::Error>(fd)
        };
        match make() {
            Ok(fd) => Self { fd, len },
            Err(error) => panic!("no memory for a test: {error}"),
        }
    }

    /// The first `len` bytes of a file.
    #[must_use]
    pub const fn new(fd: OwnedFd, len: u64) -> Self {
        Self { fd, len }
    }

    /// Returns another descriptor of the same file.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    fn check(&self, offset: u64, len: usize, align: u64) -> Result<(), OutOfRange> {
        let (len, region_len) = (len as u64, self.len);
        if crate::region::fits(offset, len, region_len) && offset.is_multiple_of(align) {
            return Ok(());
        }
        Err(OutOfRange { offset, len, region_len })
    }
}

impl MemoryRegion for FileMemory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.check(offset, into.len(), 1)?;
        let _words = WORDS.read().unwrap_or_else(PoisonError::into_inner);
        let done = rustix::io::pread(&self.fd, &mut *into, offset);
        assert_eq!(done, Ok(into.len()), "reading a file of a test");
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.check(offset, from.len(), 1)?;
        let _words = WORDS.write().unwrap_or_else(PoisonError::into_inner);
        let done = rustix::io::pwrite(&self.fd, from, offset);
        assert_eq!(done, Ok(from.len()), "writing a file of a test");
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64, OutOfRange> {
        self.check(offset, 8, 8)?;
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), OutOfRange> {
        self.check(offset, 8, 8)?;
        self.write(offset, &value.to_le_bytes())
    }

    /// Atomic among the threads of this process only.
    fn compare_exchange(&self, offset: u64, current: u64, new: u64) -> Result<u64, OutOfRange> {
        self.check(offset, 8, 8)?;
        let _words = WORDS.write().unwrap_or_else(PoisonError::into_inner);
        let mut word = [0; 8];
        let done = rustix::io::pread(&self.fd, &mut word, offset);
        assert_eq!(done, Ok(word.len()), "reading a file of a test");
        let found = u64::from_le_bytes(word);
        if found == current {
            let done = rustix::io::pwrite(&self.fd, &new.to_le_bytes(), offset);
            assert_eq!(done, Ok(word.len()), "writing a file of a test");
        }
        Ok(found)
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Mapper for FileMapper {
    fn map(&self, fd: OwnedFd, len: u64) -> io::Result<Arc<dyn MemoryRegion>> {
        Ok(Arc::new(FileMemory::new(fd, len)))
    }
}
