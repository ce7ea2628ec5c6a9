//! One access of a thread to a page that it has cached: the fast path and the slow path.

use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_model::{FrameId, GlobalAddr, PageWord, SizeClass};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;

use super::linked::LinkedWindow;
use super::objects::Bitmaps;
use crate::access::{AccessGuard, AccessIntent, AccessSlot, PageWordRef};
use crate::access_samples::{HeatSamples, Sampler};
use crate::copy::{copy_in, copy_out};
use crate::delay::ExtraLatency;
use crate::front::Front;
use crate::marks::Marks;
use crate::page_map::PageMap;
use crate::permit::Permit;
use crate::published::PublishedCopy;
use crate::{Mapping, ReadOnlyMapping};

/// The data of an access, close together.
#[derive(Debug)]
pub(super) struct WindowCore {
    pub(super) pages: PageMap<LocalPage>,
    /// Cached copies of other racks' pages. They are few, and are looked up when a page is not in
    /// `pages`.
    pub(super) cached: PageMap<CachedCopy>,
    pub(super) page_bits: u32,
    /// Largest offset in a page.
    pub(super) last: u64,
    /// Decides which accesses are sampled. No access takes the fast path if a fence is needed
    /// between announcing and loading the page word, or if there is an extra latency.
    pub(super) sampler: Sampler,
    /// Invariant: points into `_owner`.
    pub(super) slot: NonNull<AccessSlot>,
    /// Invariant: points into `_owner`.
    pub(super) samples: NonNull<HeatSamples>,
    /// Invariant: `frame_count` page words from here on lie in `_metadata`.
    pub(super) words: NonNull<AtomicU64>,
    /// Invariant: the published copies of `frame_count` frames from here on lie in `_metadata`.
    pub(super) published: NonNull<PublishedCopy>,
    pub(super) bitmaps: Bitmaps,
    /// Invariant: has the marks of `frame_count` frames.
    pub(super) marks: Marks,
    pub(super) barrier: Barrier,
    pub(super) latency: ExtraLatency,
    /// Invariant: `frame_count << page_bits` bytes from here on lie in `frames`.
    pub(super) base: NonNull<u8>,
    pub(super) frame_count: u32,
    pub(super) frames: Arc<Mapping>,
    /// Windows into other parts of the rack's memory.
    pub(super) linked: Vec<LinkedWindow>,
    /// Invariant: exists, and has this one among its linked windows.
    pub(super) linked_to: Option<NonNull<Self>>,
    /// `_metadata` and `_owner` keep the memory mapped that the pointers point into.
    pub(super) _metadata: Arc<ReadOnlyMapping>,
    pub(super) _owner: Arc<Mapping>,
}

/// The translation of a page in this rack.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPage {
    /// Invariant: the first byte of `frame` in the mapping of the window that holds this entry.
    pub(super) bytes: NonNull<u8>,
    /// Invariant: less than the window's `frame_count`.
    pub(super) frame: FrameId,
    /// The class of the page's objects, if their bits are in the bitmap area.
    pub(super) class: Option<SizeClass>,
    pub(super) expected: PageWord,
}

/// A cached copy of another rack's page.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedCopy {
    pub(super) frame: FrameId,
    pub(super) copy: u64,
}

thread_local! {
    /// The window that this thread used last.
    pub(super) static FRONT: Front<WindowCore> = const { Front::none() };
}

/// Returns the core in `FRONT` if it belongs to the pool of `permit`.
///
/// # Safety
/// While the reference is used, no window of the calling thread may be changed or dropped.
#[inline]
pub(super) unsafe fn front<'a>(permit: &Permit) -> Option<&'a WindowCore> {
    // SAFETY: `drop` removes a window's core from `FRONT`; the rest is the caller's promise.
    FRONT.with(|front| unsafe { front.get(permit) })
}

impl LocalPage {
    /// Returns true if the page allows `intent` while its word is the expected one.
    #[inline]
    pub(super) const fn allows(&self, intent: AccessIntent) -> bool {
        matches!(intent, AccessIntent::Read) || self.expected.is_writable()
    }
}

impl WindowCore {
    /// The page word of a frame.
    ///
    /// # Safety
    /// `frame` must be one of the rack's.
    #[inline]
    pub(super) unsafe fn word(&self, frame: FrameId) -> PageWordRef<'_> {
        // SAFETY: the invariant of `words`, and the caller's promise.
        let word = unsafe { self.words.add(frame.0 as usize) };
        // SAFETY: as above; an atomic is `Shared`.
        PageWordRef::new(unsafe { word.as_ref() })
    }

    #[inline]
    pub(super) fn slot(&self) -> &AccessSlot {
        // SAFETY: the invariant of `slot`; `AccessSlot` is `Shared`.
        unsafe { self.slot.as_ref() }
    }

    /// Returns the cached page of `len` bytes at `addr` and their offset in it, if all of them lie
    /// in it.
    #[inline]
    pub(super) fn find(&self, addr: GlobalAddr, len: usize) -> Option<(&LocalPage, usize)> {
        let local = self.pages.get(addr.raw().wrapping_shr(self.page_bits))?;
        let offset = addr.raw() & self.last;
        // An access of 0 bytes takes the slow path: its last byte is at a huge distance here.
        if (len as u64).wrapping_sub(1) > self.last - offset {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than a page, which is mapped")]
        Some((local, offset as usize))
    }

    /// Announces access to a page on the fast path. Returns `None` if the access must take the slow
    /// path, if the page allows only reads and `intent` is to write, or if the page word has
    /// changed.
    #[inline]
    pub(super) fn enter(&self, local: &LocalPage, intent: AccessIntent) -> Option<AccessGuard<'_>> {
        if !local.allows(intent) || !self.sampler.goes_straight() {
            return None;
        }
        // SAFETY: the invariant of `LocalPage::frame`.
        let word = unsafe { self.word(local.frame) };
        self.slot().enter(local.frame, intent, word, local.expected, Barrier::Light).ok()
    }

    /// The slow path of an access that was just refused the fast path. It executes everything that
    /// most accesses are spared. `work` gets the address of the bytes.
    #[inline]
    pub(super) fn slow_path<R>(
        &self,
        addr: GlobalAddr,
        len: usize,
        intent: AccessIntent,
        work: impl FnOnce(NonNull<u8>) -> R,
    ) -> Option<R> {
        if !self.sampler.is_due() {
            return None;
        }
        let (local, offset) = self.find(addr, len).filter(|(local, _)| local.allows(intent))?;
        // SAFETY: the invariant of `LocalPage::frame`.
        let word = unsafe { self.word(local.frame) };
        let guard = self.enter_slowly(local.frame, intent, word, local.expected).ok()?;
        // SAFETY: the invariant of `LocalPage::bytes`; `find` checked the bytes to lie in the page.
        let result = work(unsafe { local.bytes.add(offset) });
        drop(guard);
        self.count(local.frame, intent);
        Some(result)
    }

    /// Counts an access that did not take the fast path.
    pub(super) fn count(&self, frame: FrameId, intent: AccessIntent) {
        // SAFETY: the invariant of `samples`; `HeatSamples` is `Shared`.
        self.sampler.accessed(unsafe { self.samples.as_ref() }, frame, intent);
    }

    #[inline(never)]
    pub(super) fn enter_slowly(
        &self,
        frame: FrameId,
        intent: AccessIntent,
        word: PageWordRef<'_>,
        expected: PageWord,
    ) -> Result<AccessGuard<'_>, PageWord> {
        let guard = self.slot().enter(frame, intent, word, expected, self.barrier)?;
        self.latency.wait();
        Ok(guard)
    }

    #[inline]
    pub(super) fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        let Some((local, offset)) = self.find(addr, into.len()) else {
            return self.read_elsewhere(addr, into);
        };
        let Some(_guard) = self.enter(local, AccessIntent::Read) else { return false };
        // SAFETY: the invariant of `LocalPage::bytes`; `find` checked the bytes to lie in the page.
        let from = unsafe { local.bytes.add(offset) };
        // SAFETY: as above.
        unsafe { copy_out(from, into) };
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_slow_path(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        let len = into.len();
        // SAFETY: `slow_path` passes the address of `len` bytes in the page.
        let own =
            self.slow_path(addr, len, AccessIntent::Read, |from| unsafe { copy_out(from, into) });
        own.is_some() || self.linked().any(|core| core.read_slow_path(addr, into))
    }

    #[inline]
    pub(super) fn write(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        let Some((local, offset)) = self.find(addr, from.len()) else {
            return self.write_elsewhere(addr, from);
        };
        let Some(_guard) = self.enter(local, AccessIntent::Write) else { return false };
        // SAFETY: the invariant of `LocalPage::bytes`; `find` checked the bytes to lie in the page.
        let to = unsafe { local.bytes.add(offset) };
        // SAFETY: as above.
        unsafe { copy_in(to, from) };
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn write_slow_path(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        // SAFETY: `slow_path` passes the address of `from.len()` bytes in the page.
        let own = self
            .slow_path(addr, from.len(), AccessIntent::Write, |to| unsafe { copy_in(to, from) });
        own.is_some() || self.linked().any(|core| core.write_slow_path(addr, from))
    }
}
