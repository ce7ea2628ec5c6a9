//! Windows into other parts of the rack's memory: an access to a page that is not in a window's own
//! cache looks into the windows that are linked to it.

use std::num::NonZeroU64;
use std::ptr::NonNull;

use rackpool_model::GlobalAddr;

use super::atomic::AtomicOperation;
use super::{LocalWindow, WindowCore};
use crate::permit::Permit;

/// A window of the same thread, of the pool connection with the number `pool`.
#[derive(Debug)]
pub(super) struct LinkedWindow {
    permit: Permit,
    pool: NonZeroU64,
    /// Invariant: exists. A window that is dropped removes its links.
    core: NonNull<WindowCore>,
}

impl LinkedWindow {
    #[inline]
    fn core(&self) -> Option<&WindowCore> {
        if self.permit.pool() != self.pool.get() {
            return None;
        }
        // SAFETY: the invariant of `core`; cores are changed through `&mut LocalWindow` only, by
        // functions that use no links.
        Some(unsafe { self.core.as_ref() })
    }
}

impl WindowCore {
    /// The linked windows that may be used now.
    #[inline]
    pub(super) fn linked(&self) -> impl Iterator<Item = &Self> {
        self.linked.iter().filter_map(LinkedWindow::core)
    }

    /// Fast path of a read of a page that is not in `pages`.
    #[inline(never)]
    pub(super) fn read_elsewhere(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        self.read_kept(addr, into) || self.linked().any(|core| core.read(addr, into))
    }

    /// Fast path of a write to a page that is not in `pages`.
    #[inline(never)]
    pub(super) fn write_elsewhere(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        self.linked().any(|core| core.write(addr, from))
    }

    /// Fast path of an atomic operation in a page that is not in `pages`.
    #[inline(never)]
    pub(super) fn change_elsewhere(
        &self,
        addr: GlobalAddr,
        atomic: AtomicOperation,
    ) -> Option<u64> {
        self.linked().find_map(|core| core.change(addr, atomic))
    }
}

impl LocalWindow {
    /// Lets accesses through this window find the pages in the cache of `other`, a window of the
    /// same thread, while `permit` allows the pool with the number `pool`. A window is linked to
    /// one other.
    pub fn link(&mut self, other: &mut Self, permit: Permit, pool: NonZeroU64) {
        other.unlink();
        other.core_mut().linked_to = Some(self.core);
        self.core_mut().linked.push(LinkedWindow { permit, pool, core: other.core });
    }

    /// Removes all links of this window.
    pub(super) fn unlink(&mut self) {
        let core = self.core;
        for other in std::mem::take(&mut self.core_mut().linked) {
            let mut linked = other.core;
            // SAFETY: the invariant of `LinkedWindow::core`; nothing of it is borrowed now.
            unsafe { linked.as_mut() }.linked_to = None;
        }
        if let Some(mut to) = self.core_mut().linked_to.take() {
            // SAFETY: it exists: it would have removed this link when it was dropped. Nothing of it
            // is borrowed now.
            unsafe { to.as_mut() }.linked.retain(|other| other.core != core);
        }
    }
}
