//! Copies of other racks' pages, as the rack's clients see them: what is looked at before and
//! after.

use rackpool_sync::atomic::{AtomicU64, Ordering, fence};

/// The copy of a page of another rack that clients may read in a free frame, and until when; see
/// `docs/design/sharing.md`.
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

// SAFETY: `repr(C)`, nothing but atomic integers.
#[cfg(not(loom))]
unsafe impl crate::Shared for PublishedCopy {}

#[cfg(loom)]
impl PublishedCopy {
    /// Nothing is published.
    #[must_use]
    pub fn hidden() -> Self {
        Self { copy: AtomicU64::new(0), until_ns: AtomicU64::new(0) }
    }
}

#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(PublishedCopy, until_ns) == 8, "as documented");

impl PublishedCopy {
    /// Lets clients read the frame as copy number `copy` until `until_ns`. The bytes are there.
    pub fn show(&self, copy: u64, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        // SYNC: pairs with the first load in read().
        self.copy.store(copy, Ordering::Release);
    }

    /// Whoever looks after this finds no copy. What the frame is used for then comes after this for
    /// everybody.
    pub fn hide(&self) {
        self.copy.store(0, Ordering::Relaxed);
        // SYNC: pairs with the fence in read().
        fence(Ordering::SeqCst);
    }

    /// What `load` found in the frame if copy number `copy` was published all the time, and the
    /// time that `clock` gives afterwards is not over. Otherwise it may have found anything.
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
        // SYNC: pairs with the fence in hide(): whoever has seen what came into the frame later
        // sees that the copy is not published.
        fence(Ordering::SeqCst);
        // Not before the bytes: it may have been published for longer meanwhile. SYNC: pairs with
        // the fence in hide(): whoever sees until when a later copy is published sees that this one
        // is not.
        let until_ns = self.until_ns.load(Ordering::Acquire);
        let in_time = clock() < until_ns;
        (in_time && self.copy.load(Ordering::Relaxed) == copy).then_some(found)
    }

    /// What the daemon has published: the number of the copy, and until when.
    #[must_use]
    pub fn published(&self) -> Option<(u64, u64)> {
        let copy = self.copy.load(Ordering::Acquire);
        (copy != 0).then(|| (copy, self.until_ns.load(Ordering::Relaxed)))
    }
}
