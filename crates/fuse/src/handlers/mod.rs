//! Requests of the kernel, as calls of the volume.

mod attributes;
mod contents;
mod failures;
mod locks;
mod names;
mod requests;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{Errno, Notifier};
use rackpool_client::Pool;
use rackpool_fs::{FsError, Ino, Volume};

use crate::kernel_cached::KernelCachedFiles;
use crate::metrics::FileMetrics;
use crate::waiting::Waiting;
use failures::Failures;

/// The result of a request.
type Answer<T> = Result<T, Errno>;

/// The state that all threads of a mount share.
#[derive(Debug)]
pub(crate) struct Shell {
    volume: Volume<Arc<Pool>>,
    kernel_cached: KernelCachedFiles,
    failures: Failures,
    /// Counters of requests and failures.
    pub(crate) counts: Arc<FileMetrics>,
    waiting: Waiting,
    /// Files whose pages in the kernel are outdated.
    stale: Mutex<Receiver<Ino>>,
    outdated: Sender<Ino>,
}

impl Shell {
    pub(crate) fn new(volume: Volume<Arc<Pool>>) -> Self {
        let (outdated, stale) = channel();
        let counts = Arc::new(FileMetrics::default());
        let failures = Failures::counted(&counts);
        let (kernel_cached, waiting, stale) =
            (KernelCachedFiles::default(), Waiting::default(), Mutex::new(stale));
        Self { volume, kernel_cached, failures, counts, waiting, stale, outdated }
    }

    /// Sweeps the volume, and makes the kernel drop outdated pages.
    pub(crate) fn keep_house(&self, notifier: &Notifier) {
        if let Err(error) = self.volume.sweep() {
            self.failures.note("housekeeping", &error);
        }
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        for ino in stale.try_iter() {
            if let Err(error) = notifier.inval_inode(fuser::INodeNo(ino.0), 0, 0) {
                tracing::warn!(
                    "the kernel did not invalidate its cache of inode {}: {error}",
                    ino.0
                );
            }
        }
    }

    /// Handles a file that the kernel has forgotten.
    fn forget(&self, ino: Ino) {
        self.kernel_cached.forget(ino);
        if let Err(error) = self.volume.forget(ino) {
            self.failures.note("freeing unlinked files", &error);
        }
    }

    /// Closes the volume.
    pub(crate) fn close(self) -> Result<(), FsError> {
        self.volume.close()
    }

    /// Returns the error number of a failure, and logs the failure if the program did not cause it.
    fn failed(&self, what: &'static str, error: &FsError) -> Errno {
        let number = crate::reply::error_number(error);
        if number == Errno::EIO || number == Errno::EBUSY {
            self.failures.note(what, error);
        }
        number
    }

    /// As [`failed`](Self::failed), for a request by inode: `ESTALE` for a deleted inode makes the
    /// kernel look its path up again.
    fn failed_inode(&self, what: &'static str, error: &FsError) -> Errno {
        match error {
            FsError::NotFound => Errno::ESTALE,
            error => self.failed(what, error),
        }
    }
}
