//! Atomic operations on 8 bytes of a cached page.

use rackpool_model::GlobalAddr;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use super::{LocalWindow, WindowCore, front};
use crate::access::AccessIntent;
use crate::permit::Permit;

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOperation {
    /// Sets the bytes to `new` if they are `expected`.
    CompareAndSwap {
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
    /// Adds `delta`, wrapping.
    FetchAndAdd {
        /// The addend.
        delta: u64,
    },
}

impl AtomicOperation {
    /// Executes the operation and returns the previous value. All such operations have one total
    /// order, in every process.
    #[inline]
    pub fn apply(self, cell: &AtomicU64) -> u64 {
        match self {
            Self::CompareAndSwap { expected, new } => {
                match cell.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(before) | Err(before) => before,
                }
            }
            Self::FetchAndAdd { delta } => cell.fetch_add(delta, Ordering::SeqCst),
        }
    }
}

/// Fast path of an atomic operation on the 8 bytes at `addr`: returns the previous value. Returns
/// `None`, with nothing done, if the calling thread's front window is not of the pool of `permit`,
/// does not have the page in its cache, `addr` is not a multiple of 8, or the access must take the
/// slow path.
#[inline]
#[must_use]
pub fn change(permit: &Permit, addr: GlobalAddr, atomic: AtomicOperation) -> Option<u64> {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }?.change(addr, atomic)
}

impl WindowCore {
    #[inline]
    pub(super) fn change(&self, addr: GlobalAddr, atomic: AtomicOperation) -> Option<u64> {
        let Some((local, offset)) = self.find(addr, 8) else {
            return self.change_elsewhere(addr, atomic);
        };
        if !offset.is_multiple_of(8) {
            return None;
        }
        let _guard = self.enter(local, AccessIntent::Write)?;
        // SAFETY: the invariant of `LocalPage::bytes`; `find` checked the bytes to lie in the page.
        let cell = unsafe { local.bytes.add(offset) }.cast::<AtomicU64>();
        // SAFETY: as above; a page is aligned to more than 8 bytes; an atomic is `Shared`.
        Some(atomic.apply(unsafe { cell.as_ref() }))
    }

    #[cold]
    #[inline(never)]
    fn change_slow_path(&self, addr: GlobalAddr, atomic: AtomicOperation) -> Option<u64> {
        if !addr.raw().is_multiple_of(8) {
            return None;
        }
        let own = self.slow_path(addr, 8, AccessIntent::Write, |at| {
            // SAFETY: 8 bytes lie there, aligned as the page is; an atomic is `Shared`.
            atomic.apply(unsafe { at.cast::<AtomicU64>().as_ref() })
        });
        own.or_else(|| self.linked().find_map(|core| core.change_slow_path(addr, atomic)))
    }
}

impl LocalWindow {
    /// Executes an atomic operation on the 8 aligned bytes at `addr` of a cached page; see
    /// [`change`].
    #[inline]
    #[must_use]
    pub fn change(&self, addr: GlobalAddr, atomic: AtomicOperation) -> Option<u64> {
        self.core().change(addr, atomic).or_else(|| self.core().change_slow_path(addr, atomic))
    }
}
