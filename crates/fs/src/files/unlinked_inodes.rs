//! Inodes that are used without being opened, and have lost their last name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attr::{FileType, Ino};
use crate::error::FsError;
use crate::volume::open_file::OpenFile;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

impl FileType {
    /// Whether a program may still use such an inode without having opened it here: a directory as
    /// its working directory, a FIFO, socket or device through the kernel.
    const fn is_used_unopened(self) -> bool {
        !matches!(self, Self::File | Self::Symlink)
    }
}

impl<M: VolumeMemory> Volume<M> {
    /// Keeps directories, FIFOs, sockets and devices whose last name this mount takes, as if they
    /// were open, until [`forget`](Self::forget). For callers that are told when an inode is no
    /// longer used, as file systems of the kernel are.
    #[must_use]
    pub const fn with_nameless_kept(mut self) -> Self {
        self.keeps_nameless = true;
        self
    }

    /// Whether an inode of this kind outlives its last name.
    pub(crate) const fn keeps(&self, kind: FileType) -> bool {
        self.keeps_nameless && kind.is_used_unopened()
    }

    /// Counts an inode that has just lost its last name as open. Its list of sessions already has
    /// this mount.
    pub(crate) fn keep(&self, ino: Ino) {
        let mut files = lock(self.files_of(ino));
        let file = files.entry(ino).or_insert_with(|| Arc::new(OpenFile::new(ino, 0)));
        file.count.fetch_add(1, Ordering::Relaxed);
        drop(files);
        lock(&self.nameless).insert(ino);
    }

    /// Ends the use of an inode: the caller no longer knows it. An inode kept without a name is
    /// freed unless it is open; any other inode is left alone.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn forget(&self, ino: Ino) -> Result<(), FsError> {
        if lock(&self.nameless).remove(&ino) { self.release(ino) } else { Ok(()) }
    }
}
