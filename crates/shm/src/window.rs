//! The local access path: all pointers that one thread needs to access the rack's frames, resolved
//! once.

mod atomic;
mod cached;
mod copies;
mod linked;
mod objects;

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_model::{FrameId, GlobalAddr, PageId, PageWord, SizeClass};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;

use crate::access::{AccessGuard, AccessIntent, AccessSlot, PageWordRef};
use crate::access_samples::{HeatSamples, Sampler};
use crate::delay::ExtraLatency;
use crate::marks::Marks;
use crate::metadata::{MetadataLayout, PageUse};
use crate::page_map::PageMap;
use crate::permit::Permit;
use crate::{Mapping, OutsideMapping, ReadOnlyMapping};
use cached::{CachedCopy, FRONT, LocalPage, WindowCore, front};
use objects::Bitmaps;

pub use atomic::{AtomicOperation, change};
pub use copies::monotonic_ns;
pub use objects::{Note, TakeBackOutcome, hand_out, take_back};

/// One thread's window into the frames of its rack, with its translation cache
/// ([`admit`](Self::admit)).
///
/// An access to a cached page costs two stores, two loads and three comparisons in addition to the
/// copy itself: no lock, no fence where the daemon issues the heavy barrier, no allocation, no
/// system call.
#[derive(Debug)]
pub struct LocalWindow {
    /// Owned. A raw pointer, because [`FRONT`] may hold it too.
    core: NonNull<WindowCore>,
    /// `FRONT` is thread-local, so this value must not leave its thread.
    _thread: PhantomData<*const ()>,
}

/// Offsets in bytes of a thread's structures in its client's file.
#[derive(Clone, Copy, Debug)]
pub struct ThreadOffsets {
    /// Offset of the access slot.
    pub access: u64,
    /// Offset of the access samples.
    pub samples: u64,
}

/// A thread's structures in its client's file.
#[derive(Debug)]
pub struct ThreadMemory {
    /// The client's file.
    pub file: Arc<Mapping>,
    /// Where the structures lie in it.
    pub offsets: ThreadOffsets,
}

/// Fast path of a read: fills `into` from `addr` on, if the calling thread's front window belongs
/// to the pool of `permit`, has the page in its cache, and all bytes lie in that page. Returns
/// false, with unspecified bytes in `into`, otherwise and for a sampled access; the caller then
/// tries [`read_slow_path`].
#[inline]
#[must_use]
pub fn read(permit: &Permit, addr: GlobalAddr, into: &mut [u8]) -> bool {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }.is_some_and(|core| core.read(addr, into))
}

/// Executes a read that [`read`] has just left to the slow path. Returns false as [`read`] does.
#[must_use]
pub fn read_slow_path(permit: &Permit, addr: GlobalAddr, into: &mut [u8]) -> bool {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }.is_some_and(|core| core.read_slow_path(addr, into))
}

/// Executes a write that [`write()`] has just left to the slow path. Returns false as [`write()`]
/// does.
#[must_use]
pub fn write_slow_path(permit: &Permit, addr: GlobalAddr, from: &[u8]) -> bool {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }.is_some_and(|core| core.write_slow_path(addr, from))
}

/// Fast path of a write; the counterpart of [`read`].
#[inline]
#[must_use]
pub fn write(permit: &Permit, addr: GlobalAddr, from: &[u8]) -> bool {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }.is_some_and(|core| core.write(addr, from))
}

/// Hints that the processor should load the cache line of `at`. Reads nothing: any address is
/// allowed.
#[inline]
fn prefetch_line(at: NonNull<u8>, intent: AccessIntent) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
        match intent {
            // SAFETY: a hint that reads nothing.
            AccessIntent::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().cast()) },
            // SAFETY: as above.
            AccessIntent::Write => unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.as_ptr().cast()) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, intent);
}

impl LocalWindow {
    /// A window for the thread with these structures. Each access waits for `latency`, as if it
    /// went to more distant memory.
    pub fn new(
        frames: Arc<Mapping>,
        metadata: Arc<ReadOnlyMapping>,
        layout: &MetadataLayout,
        marks: Marks,
        ThreadMemory { file: owner, offsets }: ThreadMemory,
        barrier: Barrier,
        latency: ExtraLatency,
    ) -> Result<Self, OutsideMapping> {
        let frame_count = layout.frames();
        let page_bits = layout.page_size().bits();
        let words = metadata.words(layout.word(FrameId(0)), frame_count as usize)?;
        let published =
            metadata.words(layout.published(FrameId(0)), frame_count as usize * 2)?.cast();
        let bytes = u64::from(frame_count) << page_bits;
        frames.view_slice::<AtomicU64>(0, usize::try_from(bytes / 8).unwrap_or(usize::MAX))?;
        if marks.frames() < frame_count
            || marks.frame_bits() < layout.page_size().bits() - SizeClass::MIN_BITS
        {
            let len = Marks::bytes(layout.page_size(), frame_count);
            return Err(OutsideMapping { offset: 0, len, mapped: 0 });
        }
        let base = frames.base();
        let slot = NonNull::from(owner.view::<AccessSlot>(offsets.access)?);
        let samples = NonNull::from(owner.view::<HeatSamples>(offsets.samples)?);
        let core = Box::new(WindowCore {
            pages: PageMap::new(),
            cached: PageMap::small(),
            page_bits: u32::from(page_bits),
            last: layout.page_size().offset_mask(),
            barrier,
            latency,
            // The addresses of the samples differ between threads.
            sampler: Sampler::new(
                samples.as_ptr() as u64 >> 6,
                barrier == Barrier::Light && latency.is_none(),
            ),
            slot,
            samples,
            words,
            published,
            bitmaps: Bitmaps::new(&metadata, layout)?,
            marks,
            base,
            frame_count,
            frames,
            linked: Vec::new(),
            linked_to: None,
            _metadata: metadata,
            _owner: owner,
        });
        Ok(Self { core: NonNull::from(Box::leak(core)), _thread: PhantomData })
    }

    #[inline]
    fn core(&self) -> &WindowCore {
        // SAFETY: owned by `self`, and changed through `&mut self` only.
        unsafe { self.core.as_ref() }
    }

    fn core_mut(&mut self) -> &mut WindowCore {
        // SAFETY: owned by `self`; the functions that borrow it through `FRONT` do so only while
        // they run, change no window and call nothing that does.
        unsafe { self.core.as_mut() }
    }

    /// Makes this the window that the free functions of this module, like [`read()`] and
    /// [`write()`], use in the calling thread for the pool with the number `pool`.
    pub fn bring_to_front(&self, pool: NonZeroU64) {
        FRONT.with(|front| front.set(pool, self.core));
    }

    /// The page word of a frame. Returns `None` if there is no such frame.
    #[inline]
    #[must_use]
    pub fn word(&self, frame: FrameId) -> Option<PageWordRef<'_>> {
        // SAFETY: `frame` was just checked.
        (frame.0 < self.core().frame_count).then(|| unsafe { self.core().word(frame) })
    }

    /// Caches that `page` is in `frame`, with the given use, while the page word is `expected`. If
    /// that word does not allow writes, the page is only read here.
    pub fn admit(&mut self, page: PageId, frame: FrameId, expected: PageWord, usage: PageUse) {
        self.forget(page);
        let core = self.core_mut();
        if frame.0 >= core.frame_count || !expected.is_readable() {
            return;
        }
        let Ok(start) = usize::try_from(u64::from(frame.0) << core.page_bits) else { return };
        // SAFETY: the invariant of `base`: the frame is one of the mapped ones.
        let bytes = unsafe { core.base.add(start) };
        // Frees in a page that is not writable take the slow path.
        let class = core.bitmaps.class(usage).filter(|_| expected.is_writable());
        core.pages.insert(u64::from(page.0), LocalPage { bytes, frame, class, expected });
    }

    /// Caches that copy number `copy` of another rack's `page` is in `frame`. It is read there
    /// while it is published.
    pub fn keep(&mut self, page: PageId, frame: FrameId, copy: u64) {
        self.forget(page);
        self.core_mut().cached.insert(u64::from(page.0), CachedCopy { frame, copy });
    }

    /// Removes `page` from the cache.
    pub fn forget(&mut self, page: PageId) {
        let core = self.core_mut();
        core.pages.remove(u64::from(page.0));
        core.cached.remove(u64::from(page.0));
    }

    /// Fills `into` from `addr` on. Returns false if the page is not cached or has moved, or if the
    /// bytes do not all lie in it; the contents of `into` are then unspecified.
    #[inline]
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        self.core().read(addr, into) || self.core().read_slow_path(addr, into)
    }

    /// Writes `from` to `addr` in a cached page; the counterpart of [`Self::read`].
    #[inline]
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        self.core().write(addr, from) || self.core().write_slow_path(addr, from)
    }

    /// Hints that the processor should load bytes that will be accessed soon, so that several
    /// independent accesses overlap. Reads nothing.
    #[inline]
    pub fn prefetch(&self, addr: GlobalAddr, intent: AccessIntent) {
        let core = self.core();
        let found = core.find(addr, 1);
        let found = found.or_else(|| core.linked().find_map(|linked| linked.find(addr, 1)));
        let Some((local, offset)) = found else { return };
        // SAFETY: the invariant of `LocalPage::bytes`; the offset lies in the page.
        prefetch_line(unsafe { local.bytes.add(offset) }, intent);
    }

    /// Announces access to a frame if its page word is `expected`; the error is the word found.
    /// Returns `None` if there is no such frame.
    #[inline]
    pub fn enter(
        &self,
        frame: FrameId,
        intent: AccessIntent,
        expected: PageWord,
    ) -> Option<Result<AccessGuard<'_>, PageWord>> {
        let core = self.core();
        let entered = core.enter_slowly(frame, intent, self.word(frame)?, expected);
        if entered.is_ok() {
            core.count(frame, intent);
        }
        Some(entered)
    }

    /// Announces a write to a frame if its page is dirty-logged and its page word still is
    /// `dirty_logged`; the error is the word found. Returns `None` if there is no such frame.
    ///
    /// The caller must [log](crate::dirty_log::DirtyLog::note) each write before it stores
    /// anything.
    pub fn enter_dirty_logged(
        &self,
        frame: FrameId,
        dirty_logged: PageWord,
    ) -> Option<Result<AccessGuard<'_>, PageWord>> {
        let core = self.core();
        let entered = core.slot().enter_dirty_logged(frame, self.word(frame)?, dirty_logged);
        if entered.is_ok() {
            core.latency.wait();
            core.count(frame, AccessIntent::Write);
        }
        Some(entered)
    }

    /// The 8 aligned bytes at `offset` of a frame. The caller must change them atomically and under
    /// a guard.
    pub fn cell(&self, frame: FrameId, offset: u64) -> Result<&AtomicU64, OutsideMapping> {
        let core = self.core();
        core.frames.view((u64::from(frame.0) << core.page_bits) + offset)
    }

    /// Clears the thread's access slot.
    pub fn clear(&self) {
        self.core().slot().clear();
    }

    /// Loads the page word of a frame without announcing access.
    #[must_use]
    pub fn look(&self, frame: FrameId) -> Option<PageWord> {
        self.word(frame).map(PageWordRef::load)
    }
}

impl Drop for LocalWindow {
    fn drop(&mut self) {
        FRONT.with(|front| front.remove(self.core));
        self.unlink();
        // SAFETY: leaked by `new`; removed from `FRONT` and from the linked windows above, so no
        // other pointer to it exists.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
