//! What is used without being opened, and has lost its last name.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::attr::{Ino, Kind};
use crate::error::FsError;
use crate::file::OpenFile;
use crate::volume::{Volume, lock};
use crate::volume_memory::VolumeMemory;

impl Kind {
    /// Whether a program may go on using it that has not opened it here: a folder by working in it,
    /// a FIFO, socket or device by what the kernel knows of it.
    const fn is_used_unopened(self) -> bool {
        !matches!(self, Self::File | Self::Symlink)
    }
}

impl<M: VolumeMemory> Volume<M> {
    /// Folders, FIFOs, sockets and devices whose last name this mount takes stay, as if they were
    /// open, until [`forget`](Self::forget): for callers that hear of what nobody uses any more, as
    /// file systems of the kernel do.
    #[must_use]
    pub const fn with_nameless_kept(mut self) -> Self {
        self.keeps_nameless = true;
        self
    }

    /// Whether an inode of this kind stays when its last name goes.
    pub(crate) const fn keeps(&self, kind: Kind) -> bool {
        self.keeps_nameless && kind.is_used_unopened()
    }

    /// Counts an inode as open whose last name has just gone; its session stands in it already.
    pub(crate) fn keep(&self, ino: Ino) {
        let mut files = lock(self.files_of(ino));
        let file = files.entry(ino).or_insert_with(|| Arc::new(OpenFile::new(ino, 0)));
        file.count.fetch_add(1, Ordering::Relaxed);
        drop(files);
        lock(&self.nameless).insert(ino);
    }

    /// Nobody uses an inode any more that the caller knew. What stayed without a name is freed,
    /// unless it is open; nothing happens to any other.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn forget(&self, ino: Ino) -> Result<(), FsError> {
        if lock(&self.nameless).remove(&ino) { self.release(ino) } else { Ok(()) }
    }
}
