//! Published copies of other racks' pages: how clients check one before and after a read.

use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

/// The announcement that clients may read a copy of another rack's page in a free frame, with the
/// end of its validity; see `docs/design/sharing.md`.
///
/// ```text
///   0  number of the copy; 0: none
///   8  until when, in nanoseconds of the monotonic clock
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct PublishedCopy {
    copy: AtomicU64,
    until_ns: AtomicU64,
}

/// The number of a published copy and the end of its validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyValidity {
    /// The number of the copy.
    pub copy: u64,
    /// The end of its validity, in nanoseconds of the monotonic clock.
    pub until_ns: u64,
}

// SAFETY: `repr(C)`, nothing but atomic integers.
#[cfg(not(loom))]
unsafe impl crate::Shared for PublishedCopy {}

#[cfg(loom)]
impl PublishedCopy {
    /// No copy is published.
    #[must_use]
    pub fn hidden() -> Self {
        Self { copy: AtomicU64::new(0), until_ns: AtomicU64::new(0) }
    }
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(PublishedCopy, until_ns) == 8, "as documented");

impl PublishedCopy {
    /// Publishes copy number `copy` of the frame until `until_ns`. The caller must have stored the
    /// copy's bytes in the frame.
    pub fn show(&self, copy: u64, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        // SYNC: pairs with the first load in read().
        self.copy.store(copy, Ordering::Release);
    }

    /// Withdraws the copy: a read that begins later finds none. Stores to the frame after this call
    /// are ordered after the withdrawal for all processes.
    pub fn hide(&self) {
        self.copy.store(0, Ordering::Relaxed);
        // SYNC: pairs with the fence in read().
        fence(Ordering::SeqCst);
    }

    /// Returns what `load` read from the frame, if copy number `copy` was published all the time
    /// and was still valid at the time that `clock` then returns. Returns `None` otherwise; `load`
    /// may have read anything.
    #[inline]
    pub fn read<T>(
        &self,
        copy: u64,
        load: impl FnOnce() -> T,
        clock: impl FnOnce() -> u64,
    ) -> Option<T> {
        // SYNC: pairs with the store in show(): the bytes of the copy are seen.
        if copy == 0 || self.copy.load(Ordering::Acquire) != copy {
            return None;
        }
        let found = load();
        // SYNC: pairs with the fence in hide(): a reader that has loaded bytes stored later in the
        // frame sees below that the copy is no longer published.
        fence(Ordering::SeqCst);
        // Loaded after the bytes, because the copy's validity may have been extended meanwhile.
        // SYNC: pairs with the fence in hide(): a reader that loads the validity of a later copy
        // sees below that this copy is no longer published.
        let until_ns = self.until_ns.load(Ordering::Acquire);
        let in_time = clock() < until_ns;
        (in_time && self.copy.load(Ordering::Relaxed) == copy).then_some(found)
    }

    /// The published copy, if there is one.
    #[must_use]
    pub fn published(&self) -> Option<CopyValidity> {
        let copy = self.copy.load(Ordering::Acquire);
        (copy != 0).then(|| CopyValidity { copy, until_ns: self.until_ns.load(Ordering::Relaxed) })
    }
}
