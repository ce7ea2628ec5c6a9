//! Reads of cached copies of other racks' pages. They need no access slot and no barrier: the
//! publication is checked before and after the read.

use std::ptr::NonNull;

use rackpool_model::{FrameId, GlobalAddr};
use rustix::time::{ClockId, clock_gettime};

use super::{LocalWindow, WindowCore};
use crate::access::AccessIntent;
use crate::copy::copy_out;
use crate::published::PublishedCopy;

/// The clock of the validity of copies: nanoseconds of a clock that is the same for all processes
/// of a host.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanoseconds] = [now.tv_sec, now.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

impl WindowCore {
    /// # Safety
    /// `frame` must be one of the rack's.
    unsafe fn published(&self, frame: FrameId) -> &PublishedCopy {
        // SAFETY: the invariant of `published`, and the caller's promise.
        let published = unsafe { self.published.add(frame.0 as usize) };
        // SAFETY: as above; `PublishedCopy` is `Shared`.
        unsafe { published.as_ref() }
    }

    /// The address of `len` bytes at `offset` of a frame. Returns `None` if they do not all lie in
    /// it.
    fn bytes_of(&self, frame: FrameId, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let page = self.last + 1;
        let end = offset.checked_add(len as u64)?;
        if frame.0 >= self.frame_count || end > page {
            return None;
        }
        let start = usize::try_from((u64::from(frame.0) << self.page_bits) + offset).ok()?;
        // SAFETY: the invariant of `base`: the frame is one of the mapped ones, and the bytes lie
        // in it.
        Some(unsafe { self.base.add(start) })
    }

    /// Fast path of a read of a cached copy. Returns false for a sampled access.
    #[inline(never)]
    pub(super) fn read_kept(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        let Some(cached) = self.cached.get(addr.raw().wrapping_shr(self.page_bits)) else {
            return false;
        };
        // An access of 0 bytes takes the slow path.
        if into.is_empty() || !self.sampler.goes_straight() {
            return false;
        }
        self.read_copy(cached.frame, cached.copy, addr.raw() & self.last, into)
    }

    #[inline]
    fn read_copy(&self, frame: FrameId, copy: u64, offset: u64, into: &mut [u8]) -> bool {
        let Some(from) = self.bytes_of(frame, offset, into.len()) else { return false };
        // SAFETY: `bytes_of` checked the frame.
        let published = unsafe { self.published(frame) };
        // SAFETY: `bytes_of` checked the bytes.
        published.read(copy, || unsafe { copy_out(from, into) }, monotonic_ns).is_some()
    }
}

impl LocalWindow {
    /// Reads from copy number `copy` in a frame. Returns false, with unspecified bytes in `into`,
    /// if the copy was not published all the time, if its validity has ended, or if the bytes do
    /// not all lie in the page. A successful read takes place before the page's home allows any
    /// write: while the bytes were read, the copy was published and its lease valid.
    pub fn read_copy(&self, frame: FrameId, copy: u64, offset: u64, into: &mut [u8]) -> bool {
        let core = self.core();
        core.latency.wait();
        let done = core.read_copy(frame, copy, offset, into);
        if done {
            core.count(frame, AccessIntent::Read);
        }
        done
    }
}
