//! The local access path: everything one thread needs to reach the rack's frames, resolved once.

mod atomic;
mod copies;
mod objects;

use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_model::{FrameId, GlobalAddr, PageId, PageWord, SizeClass};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;

use crate::access::{AccessGuard, AccessSlot, Intent, PageWordRef};
use crate::copy::{copy_in, copy_out};
use crate::delay::ExtraLatency;
use crate::front::Front;
use crate::marks::Marks;
use crate::metadata::{MetadataLayout, PageUse};
use crate::page_map::PageMap;
use crate::permit::Permit;
use crate::published::PublishedCopy;
use crate::samples::{HeatSamples, Sampler};
use crate::{Mapping, OutOfBounds, ReadOnlyMapping};
use objects::Bitmaps;

pub use atomic::{Atomic, change};
pub use copies::monotonic_ns;
pub use objects::{Taken, hand_out, take_back};

/// One thread's way into the frames of its rack.
///
/// It remembers where pages are ([`admit`](Self::admit)). An access to one of them costs two
/// stores, two loads and three comparisons beside the copy itself: no lock, no fence where the
/// daemon pays for it, no allocation, no system call.
#[derive(Debug)]
pub struct LocalWindow {
    /// Owned. A raw pointer because [`FRONT`] may point there too.
    core: NonNull<Core>,
    /// `FRONT` belongs to a thread, so what it points to does too.
    _thread: PhantomData<*const ()>,
}

/// What an access needs, close together.
#[derive(Debug)]
struct Core {
    pages: PageMap<Local>,
    /// Copies of pages of other racks: few, and looked for when a page is not one of `pages`.
    cached: PageMap<CachedCopy>,
    page_bits: u32,
    /// A page's last offset.
    last: u64,
    /// Which accesses are noted in `samples`. None goes straight if a fence is to stand between
    /// announcing and looking, or there is an extra latency.
    sampler: Sampler,
    /// Invariant: inside `owner`.
    slot: NonNull<AccessSlot>,
    /// Invariant: inside `owner`.
    samples: NonNull<HeatSamples>,
    /// Invariant: `frame_count` page words from here, inside `metadata`.
    words: NonNull<AtomicU64>,
    /// Invariant: what is published in `frame_count` frames from here, inside `metadata`.
    published: NonNull<PublishedCopy>,
    bitmaps: Bitmaps,
    /// Invariant: has marks for `frame_count` frames.
    marks: Marks,
    barrier: Barrier,
    latency: ExtraLatency,
    /// Invariant: `frame_count << page_bits` bytes from here, inside `frames`.
    base: NonNull<u8>,
    frame_count: u32,
    frames: Arc<Mapping>,
    /// Keep what the pointers point into mapped.
    _metadata: Arc<ReadOnlyMapping>,
    _owner: Arc<Mapping>,
}

/// Where a page of this rack is, ready for use.
#[derive(Clone, Copy, Debug)]
struct Local {
    /// Invariant: the first byte of `frame` in the mapping of the window that holds this.
    bytes: NonNull<u8>,
    /// Invariant: less than the window's `frame_count`.
    frame: FrameId,
    /// The class of the page's objects, if they are small.
    class: Option<SizeClass>,
    expected: PageWord,
}

/// A copy of a page of another rack.
#[derive(Clone, Copy, Debug)]
struct CachedCopy {
    frame: FrameId,
    copy: u64,
}

/// Where a thread's things lie in its client's file (bytes).
#[derive(Clone, Copy, Debug)]
pub struct ThreadOffsets {
    /// Its access slot.
    pub access: u64,
    /// The notes of which pages it uses.
    pub samples: u64,
}

thread_local! {
    /// The window that this thread used last.
    static FRONT: Front<Core> = const { Front::none() };
}

/// The core of the calling thread's front window, if that is one of `pool`. It must not be kept.
#[inline]
fn front<'a>(permit: &Permit) -> Option<&'a Core> {
    // SAFETY: `drop` removes a window's core; the callers change no window and call nobody who
    // does.
    FRONT.with(|front| unsafe { front.get(permit) })
}

/// Copies bytes out of the pool numbered `pool` if this thread's last used window is one of it,
/// knows the page and all bytes lie there; whether that was so. If not, [`read_slow_path`] comes
/// next.
#[inline]
#[must_use]
pub fn read(permit: &Permit, addr: GlobalAddr, into: &mut [u8]) -> bool {
    front(permit).is_some_and(|core| core.read(addr, into))
}

/// What [`read`] leaves to do for a few accesses of many: `false` as there.
#[must_use]
pub fn read_slow_path(permit: &Permit, addr: GlobalAddr, into: &mut [u8]) -> bool {
    front(permit).is_some_and(|core| core.read_slow_path(addr, into))
}

/// What [`write()`] leaves to do for a few accesses of many: `false` as there.
#[must_use]
pub fn write_slow_path(permit: &Permit, addr: GlobalAddr, from: &[u8]) -> bool {
    front(permit).is_some_and(|core| core.write_slow_path(addr, from))
}

/// Copies bytes into the pool; the counterpart of [`read`].
#[inline]
#[must_use]
pub fn write(permit: &Permit, addr: GlobalAddr, from: &[u8]) -> bool {
    front(permit).is_some_and(|core| core.write(addr, from))
}

impl Local {
    /// Whether the page may be used like that as long as its word is the expected one.
    #[inline]
    const fn allows(&self, intent: Intent) -> bool {
        matches!(intent, Intent::Read) || self.expected.is_writable()
    }
}

impl Core {
    /// The page word of a frame.
    ///
    /// # Safety
    /// The frame is one of the rack's.
    #[inline]
    unsafe fn word(&self, frame: FrameId) -> PageWordRef<'_> {
        // SAFETY: the invariant of `words`, and the caller's promise.
        let word = unsafe { self.words.add(frame.0 as usize) };
        // SAFETY: as above; an atomic is `Shared`.
        PageWordRef::new(unsafe { word.as_ref() })
    }

    #[inline]
    fn slot(&self) -> &AccessSlot {
        // SAFETY: the invariant of `slot`; `AccessSlot` is `Shared`.
        unsafe { self.slot.as_ref() }
    }

    /// The page of `len` bytes at `addr` and their offset, if it is known and holds all of them.
    #[inline]
    fn find(&self, addr: GlobalAddr, len: usize) -> Option<(&Local, usize)> {
        let local = self.pages.get(addr.raw().wrapping_shr(self.page_bits))?;
        let offset = addr.raw() & self.last;
        // No bytes at all are the slow path's business: the last one is then far away.
        if (len as u64).wrapping_sub(1) > self.last - offset {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than a page, which is mapped")]
        Some((local, offset as usize))
    }

    /// Enters a page straight; not if this is one of the accesses that take the slow path, or the
    /// page is only known to be readable.
    #[inline]
    fn enter(&self, local: &Local, intent: Intent) -> Option<AccessGuard<'_>> {
        if !local.allows(intent) || !self.sampler.goes_straight() {
            return None;
        }
        // SAFETY: the invariant of `Local::frame`.
        let word = unsafe { self.word(local.frame) };
        self.slot().enter(local.frame, intent, word, local.expected, Barrier::Light).ok()
    }

    /// The slow path of an access that was just kept from going straight: all that most accesses
    /// are spared. What `work` is given are the bytes in the page.
    #[inline]
    fn slow_path<R>(
        &self,
        addr: GlobalAddr,
        len: usize,
        intent: Intent,
        work: impl FnOnce(NonNull<u8>) -> R,
    ) -> Option<R> {
        if !self.sampler.is_due() {
            return None;
        }
        let (local, offset) = self.find(addr, len).filter(|(local, _)| local.allows(intent))?;
        // SAFETY: the invariant of `Local::frame`.
        let word = unsafe { self.word(local.frame) };
        let guard = self.enter_slowly(local.frame, intent, word, local.expected).ok()?;
        // SAFETY: the invariant of `Local::bytes`; `find` checked the bytes to lie in the page.
        let result = work(unsafe { local.bytes.add(offset) });
        drop(guard);
        self.count(local.frame, intent);
        Some(result)
    }

    /// Counts an access that did not go straight.
    fn count(&self, frame: FrameId, intent: Intent) {
        // SAFETY: the invariant of `samples`; `HeatSamples` is `Shared`.
        self.sampler.accessed(unsafe { self.samples.as_ref() }, frame, intent);
    }

    #[inline(never)]
    fn enter_slowly(
        &self,
        frame: FrameId,
        intent: Intent,
        word: PageWordRef<'_>,
        expected: PageWord,
    ) -> Result<AccessGuard<'_>, PageWord> {
        let guard = self.slot().enter(frame, intent, word, expected, self.barrier)?;
        self.latency.wait();
        Ok(guard)
    }

    #[inline]
    fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        let Some((local, offset)) = self.find(addr, into.len()) else {
            return self.read_kept(addr, into);
        };
        let Some(_guard) = self.enter(local, Intent::Read) else { return false };
        // SAFETY: the invariant of `Local::bytes`; `find` checked the bytes to lie in the page.
        let from = unsafe { local.bytes.add(offset) };
        // SAFETY: as above.
        unsafe { copy_out(from, into) };
        true
    }

    #[cold]
    #[inline(never)]
    fn read_slow_path(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        let len = into.len();
        // SAFETY: as many bytes lie there.
        self.slow_path(addr, len, Intent::Read, |from| unsafe { copy_out(from, into) }).is_some()
    }

    #[inline]
    fn write(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        let Some((local, offset)) = self.find(addr, from.len()) else { return false };
        let Some(_guard) = self.enter(local, Intent::Write) else { return false };
        // SAFETY: the invariant of `Local::bytes`; `find` checked the bytes to lie in the page.
        let to = unsafe { local.bytes.add(offset) };
        // SAFETY: as above.
        unsafe { copy_in(to, from) };
        true
    }

    #[cold]
    #[inline(never)]
    fn write_slow_path(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        // SAFETY: as many bytes lie there.
        self.slow_path(addr, from.len(), Intent::Write, |to| unsafe { copy_in(to, from) }).is_some()
    }
}

impl LocalWindow {
    /// Resolves the window of the thread whose things lie at `thread` in its client's file `owner`.
    /// Each access waits for `latency` as if it went to memory further away.
    pub fn new(
        frames: Arc<Mapping>,
        metadata: Arc<ReadOnlyMapping>,
        layout: &MetadataLayout,
        marks: Marks,
        (owner, thread): (Arc<Mapping>, ThreadOffsets),
        barrier: Barrier,
        latency: ExtraLatency,
    ) -> Result<Self, OutOfBounds> {
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
            return Err(OutOfBounds { offset: 0, len, mapped: 0 });
        }
        let base = frames.base();
        let slot = NonNull::from(owner.view::<AccessSlot>(thread.access)?);
        let samples = NonNull::from(owner.view::<HeatSamples>(thread.samples)?);
        let core = Box::new(Core {
            pages: PageMap::new(),
            cached: PageMap::small(),
            page_bits: u32::from(page_bits),
            last: layout.page_size().offset_mask(),
            barrier,
            latency,
            // Threads differ in where their notes are mapped.
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
            _metadata: metadata,
            _owner: owner,
        });
        Ok(Self { core: NonNull::from(Box::leak(core)), _thread: PhantomData })
    }

    #[inline]
    fn core(&self) -> &Core {
        // SAFETY: owned by `self`, and changed through `&mut self` only.
        unsafe { self.core.as_ref() }
    }

    fn core_mut(&mut self) -> &mut Core {
        // SAFETY: owned by `self`; through `FRONT` it is only looked at within `read` and `write`,
        // which call nobody.
        unsafe { self.core.as_mut() }
    }

    /// Makes this the window that [`read()`] and [`write()`] of the calling thread use for the pool
    /// numbered `pool`.
    pub fn bring_to_front(&self, pool: NonZeroU64) {
        FRONT.with(|front| front.set(pool, self.core));
    }

    /// The page word of a frame.
    #[inline]
    #[must_use]
    pub fn word(&self, frame: FrameId) -> Option<PageWordRef<'_>> {
        // SAFETY: just checked.
        (frame.0 < self.core().frame_count).then(|| unsafe { self.core().word(frame) })
    }

    /// Remembers that `page` is in `frame` and used for `usage` as long as the page word is
    /// `expected`. As long as that allows nobody to write, it is read only.
    pub fn admit(&mut self, page: PageId, frame: FrameId, expected: PageWord, usage: PageUse) {
        self.forget(page);
        let core = self.core_mut();
        if frame.0 >= core.frame_count || !expected.is_readable() {
            return;
        }
        let Ok(start) = usize::try_from(u64::from(frame.0) << core.page_bits) else { return };
        // SAFETY: the invariant of `base`: the frame is one of the mapped ones.
        let bytes = unsafe { core.base.add(start) };
        // What is freed in a page that nobody may write waits: others say for what.
        let class = core.bitmaps.class(usage).filter(|_| expected.is_writable());
        core.pages.insert(u64::from(page.0), Local { bytes, frame, class, expected });
    }

    /// Remembers that copy number `copy` of `page`, a page of another rack, is in `frame`: it is
    /// read there as long as it is published.
    pub fn keep(&mut self, page: PageId, frame: FrameId, copy: u64) {
        self.forget(page);
        self.core_mut().cached.insert(u64::from(page.0), CachedCopy { frame, copy });
    }

    /// Forgets where `page` is.
    pub fn forget(&mut self, page: PageId) {
        let core = self.core_mut();
        core.pages.remove(u64::from(page.0));
        core.cached.remove(u64::from(page.0));
    }

    /// Copies bytes out of a known page; `false`, with nothing done: not known, not there any
    /// more, or not all in one page.
    #[inline]
    pub fn read(&self, addr: GlobalAddr, into: &mut [u8]) -> bool {
        self.core().read(addr, into) || self.core().read_slow_path(addr, into)
    }

    /// Copies bytes into a known page; the counterpart of [`Self::read`].
    #[inline]
    pub fn write(&self, addr: GlobalAddr, from: &[u8]) -> bool {
        self.core().write(addr, from) || self.core().write_slow_path(addr, from)
    }

    /// Asks the processor to fetch bytes that will be accessed soon: several accesses that do not
    /// depend on each other then overlap. Only a hint; nothing is read.
    #[inline]
    pub fn prefetch(&self, addr: GlobalAddr, intent: Intent) {
        let Some((local, offset)) = self.core().find(addr, 1) else { return };
        // SAFETY: the invariant of `Local::bytes`; the offset lies in the page.
        let at = unsafe { local.bytes.add(offset) };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            match intent {
                // SAFETY: a hint that reads nothing, at a mapped address.
                Intent::Read => unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().cast()) },
                // SAFETY: as above.
                Intent::Write => unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.as_ptr().cast()) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, intent);
    }

    /// Enters a frame if its page word is the expected one. `None`: there is no such frame.
    #[inline]
    pub fn enter(
        &self,
        frame: FrameId,
        intent: Intent,
        expected: PageWord,
    ) -> Option<Result<AccessGuard<'_>, PageWord>> {
        let core = self.core();
        let entered = core.enter_slowly(frame, intent, self.word(frame)?, expected);
        if entered.is_ok() {
            core.count(frame, intent);
        }
        Some(entered)
    }

    /// Enters a frame to write in it, if its page is dirty-logged and its page word is still this
    /// one. `None`: there is no such frame.
    ///
    /// Nothing may be stored before it is [noted](crate::dirty_log::DirtyLog::note).
    pub fn enter_dirty_logged(
        &self,
        frame: FrameId,
        dirty_logged: PageWord,
    ) -> Option<Result<AccessGuard<'_>, PageWord>> {
        let core = self.core();
        let entered = core.slot().enter_dirty_logged(frame, self.word(frame)?, dirty_logged);
        if entered.is_ok() {
            core.latency.wait();
            core.count(frame, Intent::Write);
        }
        Some(entered)
    }

    /// The 8 aligned bytes at `offset` of a frame, to be changed atomically under a guard.
    pub fn cell(&self, frame: FrameId, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        let core = self.core();
        core.frames.view((u64::from(frame.0) << core.page_bits) + offset)
    }

    /// Announces nothing any more.
    pub fn clear(&self) {
        self.core().slot().clear();
    }

    /// What the page word of a frame says now, without entering.
    #[must_use]
    pub fn look(&self, frame: FrameId) -> Option<PageWord> {
        self.word(frame).map(PageWordRef::load)
    }
}

impl Drop for LocalWindow {
    fn drop(&mut self) {
        FRONT.with(|front| front.remove(self.core));
        // SAFETY: leaked by `new`, and pointed to by nobody else now.
        drop(unsafe { Box::from_raw(self.core.as_ptr()) });
    }
}

#[cfg(test)]
mod tests;
