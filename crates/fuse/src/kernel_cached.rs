//! Which of a file's pages the kernel may keep cached from open to open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rackpool_fs::{Attr, Ino, Timestamp};

/// Identifies a version of a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: Timestamp,
    change: u64,
}

/// What is known of the kernel's cached pages of a file.
#[derive(Clone, Copy, Debug)]
struct Pages {
    stamp: Stamp,
    /// The handle of the open that first found this stamp, and told the kernel to drop the pages.
    by: u64,
    /// Whether the kernel has dropped them. Until then the pages may be older than the stamp.
    dropped: bool,
}

/// An open of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedOpen {
    /// Its handle.
    pub(crate) handle: u64,
    /// Whether the kernel's pages are up to date. If not, the answer to the open must make the
    /// kernel drop them.
    pub(crate) is_current: bool,
}

/// The stamps of files that the kernel may have cached pages of.
#[derive(Debug, Default)]
pub(crate) struct KernelCachedFiles {
    pages: Mutex<HashMap<Ino, Pages>>,
    handles: AtomicU64,
}

impl KernelCachedFiles {
    /// Records an open that found these attributes.
    pub(crate) fn at_open(&self, attr: &Attr) -> CachedOpen {
        let stamp = Stamp { size: attr.size, modified: attr.mtime, change: attr.change };
        let by = self.handles.fetch_add(1, Ordering::Relaxed);
        let mut pages = self.pages();
        match pages.get(&attr.ino) {
            Some(known) if known.stamp == stamp => {
                CachedOpen { handle: by, is_current: known.dropped }
            }
            _ => {
                pages.insert(attr.ino, Pages { stamp, by, dropped: false });
                CachedOpen { handle: by, is_current: false }
            }
        }
    }

    /// Records that a handle was closed: the kernel has received the answer to its open, and has
    /// dropped the pages if the answer told it to. Every open with the new stamp tells it so until
    /// one of their handles is closed.
    pub(crate) fn at_close(&self, ino: Ino, handle: u64) {
        if let Some(known) = self.pages().get_mut(&ino).filter(|known| known.by <= handle) {
            known.dropped = true;
        }
    }

    /// Removes a file that the kernel has forgotten, together with its pages.
    pub(crate) fn forget(&self, ino: Ino) {
        self.pages().remove(&ino);
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<Ino, Pages>> {
        // A panic leaves the map consistent.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_fs::FileType;

    fn attr(size: u64, change: u64) -> Attr {
        let time = Timestamp { seconds: 1, nanoseconds: 2 };
        Attr {
            ino: Ino(5),
            kind: FileType::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            change,
        }
    }

    #[test]
    fn pages_are_kept_while_nothing_changes() {
        let kept = KernelCachedFiles::default();
        let open_and_close = |change| {
            let CachedOpen { handle, is_current: keeps } = kept.at_open(&attr(1, change));
            kept.at_close(Ino(5), handle);
            keeps
        };
        assert!(!open_and_close(1));
        assert!(open_and_close(1));
        assert!(!open_and_close(2));
        assert!(open_and_close(2));
        kept.forget(Ino(5));
        assert!(!open_and_close(2));
    }

    #[test]
    fn pages_that_the_kernel_is_yet_to_drop_are_not_kept_by_another_open() {
        let kept = KernelCachedFiles::default();
        let old = kept.at_open(&attr(1, 1)).handle;
        kept.at_close(Ino(5), old);
        let CachedOpen { handle: first, is_current: keeps } = kept.at_open(&attr(1, 2));
        assert!(!keeps);
        // The answer to the first open is in flight; an older handle says nothing about it.
        kept.at_close(Ino(5), old);
        let CachedOpen { handle: second, is_current: keeps } = kept.at_open(&attr(1, 2));
        assert!(!keeps && first < second);
        // Both answers told the kernel to drop the pages.
        kept.at_close(Ino(5), second);
        assert!(kept.at_open(&attr(1, 2)).is_current);
    }
}
