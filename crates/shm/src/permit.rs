//! Permits: one word that states whether this process may still use a pool that it has opened.
//! Every operation checks it first.

use std::io;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_sync::atomic::{AtomicU64, Ordering};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::front::NONE;

/// Smallest length that can be mapped.
const BYTES: usize = 4096;

/// A word that holds a pool's number while this process may use the pool, and 0 afterwards.
///
/// The word becomes 0 when the permit is [revoked](Self::revoke). It is also 0 in every child of
/// this process, because the kernel wipes its page on a fork. A child shares its parent's rings,
/// slots and sockets, and must use none of them.
///
/// ```
/// use std::num::NonZeroU64;
/// use rackpool_shm::permit::Permit;
///
/// let permit = Permit::new(NonZeroU64::MIN)?;
/// assert_eq!(permit.pool(), 1);
/// permit.clone().revoke();
/// assert_eq!(permit.pool(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Permit {
    /// Points into `_page`.
    word: NonNull<AtomicU64>,
    _page: Arc<PermitPage>,
}

// SAFETY: it gives out only an atomic, in a page that stays mapped whichever thread owns it.
unsafe impl Send for Permit {}
// SAFETY: as for `Send`.
unsafe impl Sync for Permit {}

impl Permit {
    /// A permit for the pool with this number.
    ///
    /// # Errors
    /// The kernel has no memory, or cannot wipe it on a fork (Linux before 4.14).
    ///
    /// # Panics
    /// If `pool` is `u64::MAX`: pools are numbered from 1.
    pub fn new(pool: NonZeroU64) -> io::Result<Self> {
        assert_ne!(pool.get(), NONE, "pools are counted from 1");
        let page = PermitPage::map()?;
        let permit = Self { word: page.0.cast(), _page: Arc::new(page) };
        permit.word().store(pool.get(), Ordering::Relaxed);
        Ok(permit)
    }

    /// The pool's number, or 0 if the pool must not be used.
    #[inline]
    #[must_use]
    pub fn pool(&self) -> u64 {
        // SYNC: an operation that has begun may end after a revocation; the next one must not
        // begin. No other memory depends on this order.
        self.word().load(Ordering::Relaxed)
    }

    /// Revokes the permit and all its clones: operations that begin later are refused.
    pub fn revoke(&self) {
        self.word().store(0, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: the first bytes of a page that is mapped as long as `self` exists.
        unsafe { self.word.as_ref() }
    }
}

/// A page of private memory that is zero in forked children.
#[derive(Debug)]
struct PermitPage(NonNull<std::ffi::c_void>);

// SAFETY: the mapping belongs to the process; any thread may unmap it.
unsafe impl Send for PermitPage {}
// SAFETY: it is only used through atomics.
unsafe impl Sync for PermitPage {}

impl PermitPage {
    fn map() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, to which no pointer exists.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, access, MapFlags::PRIVATE) }?;
        let page = Self(NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?);
        // SAFETY: it changes what children see of the page that was just mapped.
        unsafe { madvise(page.0.as_ptr(), BYTES, Advice::LinuxWipeOnFork) }?;
        Ok(page)
    }
}

impl Drop for PermitPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no other pointer to it exists now.
        let _ = unsafe { munmap(self.0.as_ptr(), BYTES) };
    }
}
