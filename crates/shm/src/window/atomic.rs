//! Atomic changes of 8 bytes in a known page.

use rackpool_model::GlobalAddr;
use rackpool_sync::atomic::{AtomicU64, Ordering};

use super::{Core, LocalWindow, front};
use crate::access::Intent;
use crate::permit::Permit;

/// What is done to 8 bytes in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// They become `new` if they are `expected`.
    CompareAndSwap {
        /// What they must be.
        expected: u64,
        /// What they become.
        new: u64,
    },
    /// `delta` is added, wrapping.
    FetchAndAdd {
        /// What is added.
        delta: u64,
    },
}

impl Atomic {
    /// Does it and returns what was there before. All such changes have one order, whoever makes
    /// them.
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

/// Changes the 8 bytes at `addr` and returns what they were, if this thread's last used window is
/// one of the pool numbered `pool` and knows the page, and `addr` is aligned to 8 bytes. `None`:
/// nothing was done.
#[inline]
#[must_use]
pub fn change(permit: &Permit, addr: GlobalAddr, atomic: Atomic) -> Option<u64> {
    front(permit)?.change(addr, atomic)
}

impl Core {
    #[inline]
    fn change(&self, addr: GlobalAddr, atomic: Atomic) -> Option<u64> {
        let (local, offset) = self.find(addr, 8)?;
        if !offset.is_multiple_of(8) {
            return None;
        }
        let _guard = self.enter(local, Intent::Write)?;
        // SAFETY: the invariant of `Local::bytes`; `find` checked the bytes to lie in the page.
        let cell = unsafe { local.bytes.add(offset) }.cast::<AtomicU64>();
        // SAFETY: as above; a page is aligned to more than 8 bytes; an atomic is `Shared`.
        Some(atomic.apply(unsafe { cell.as_ref() }))
    }

    #[cold]
    #[inline(never)]
    fn change_slow_path(&self, addr: GlobalAddr, atomic: Atomic) -> Option<u64> {
        if !addr.raw().is_multiple_of(8) {
            return None;
        }
        self.slow_path(addr, 8, Intent::Write, |at| {
            // SAFETY: 8 bytes lie there, aligned as the page is; an atomic is `Shared`.
            atomic.apply(unsafe { at.cast::<AtomicU64>().as_ref() })
        })
    }
}

impl LocalWindow {
    /// Changes the 8 bytes at `addr` of a known page, if they are aligned: see [`change`].
    #[inline]
    #[must_use]
    pub fn change(&self, addr: GlobalAddr, atomic: Atomic) -> Option<u64> {
        self.core().change(addr, atomic).or_else(|| self.core().change_slow_path(addr, atomic))
    }
}
