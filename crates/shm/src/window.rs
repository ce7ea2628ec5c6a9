//! The local access path: everything one thread needs to reach the rack's frames, resolved once.

use std::ptr::NonNull;
use std::sync::Arc;

use rackpool_model::{FrameId, PageWord};
use rackpool_sync::atomic::AtomicU64;
use rackpool_sync::barrier::Barrier;

use crate::access::{AccessGuard, AccessSlot, Intent, PageWordRef};
use crate::mapping::{copy_in, copy_out};
use crate::metadata::MetadataLayout;
use crate::{Mapping, OutOfBounds, ReadOnlyMapping};

/// One thread's way into the frames of its rack.
///
/// An access costs one store, one load and one comparison beside the copy itself: no lock, no
/// fence where the daemon pays for it, no allocation, no system call.
#[derive(Debug)]
pub struct LocalWindow {
    /// Invariant: `frame_count` page words from here, inside `metadata`.
    words: NonNull<AtomicU64>,
    /// Invariant: `frame_count << page_bits` bytes from here, inside `frames`.
    base: NonNull<u8>,
    /// Invariant: inside `owner`.
    slot: NonNull<AccessSlot>,
    frame_count: u32,
    page_bits: u8,
    barrier: Barrier,
    frames: Arc<Mapping>,
    /// Keep what the pointers point into mapped.
    _metadata: Arc<ReadOnlyMapping>,
    _owner: Arc<Mapping>,
}

// SAFETY: the pointers point into mappings that are Send and Sync and are kept alive here, and
// only atomics and raw copies go through them.
unsafe impl Send for LocalWindow {}

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is done.
    Done,
    /// The page word is not the expected one: nothing was done.
    Changed(PageWord),
}

impl LocalWindow {
    /// Resolves the window of the thread whose access slot lies at `slot` in its client's file.
    pub fn new(
        frames: Arc<Mapping>,
        metadata: Arc<ReadOnlyMapping>,
        layout: &MetadataLayout,
        owner: Arc<Mapping>,
        slot: u64,
        barrier: Barrier,
    ) -> Result<Self, OutOfBounds> {
        let frame_count = layout.frames();
        let page_bits = layout.page_size().bits();
        let words = metadata.words(layout.word(FrameId(0)), frame_count as usize)?;
        let bytes = u64::from(frame_count) << page_bits;
        frames.view_slice::<AtomicU64>(0, usize::try_from(bytes / 8).unwrap_or(usize::MAX))?;
        let base = frames.base();
        let slot = NonNull::from(owner.view::<AccessSlot>(slot)?);
        Ok(Self {
            words,
            base,
            slot,
            frame_count,
            page_bits,
            barrier,
            frames,
            _metadata: metadata,
            _owner: owner,
        })
    }

    #[inline]
    fn slot(&self) -> &AccessSlot {
        // SAFETY: the invariant of `slot`; `AccessSlot` is `Shared`.
        unsafe { self.slot.as_ref() }
    }

    /// The page word of a frame.
    #[inline]
    #[must_use]
    pub fn word(&self, frame: FrameId) -> Option<PageWordRef<'_>> {
        if frame.0 >= self.frame_count {
            return None;
        }
        // SAFETY: the invariant of `words`: the frame is one of them.
        let word = unsafe { self.words.add(frame.0 as usize) };
        // SAFETY: as above; an atomic is `Shared`.
        Some(PageWordRef::new(unsafe { word.as_ref() }))
    }

    /// Enters a frame if its page word is the expected one.
    #[inline]
    pub fn enter(
        &self,
        frame: FrameId,
        intent: Intent,
        expected: PageWord,
    ) -> Option<Result<AccessGuard<'_>, PageWord>> {
        Some(self.slot().enter(frame, intent, self.word(frame)?, expected, self.barrier))
    }

    /// The byte `offset` into a frame, if `len` bytes from there lie in the same frame.
    #[inline]
    fn at(&self, frame: FrameId, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let page = 1_u64 << self.page_bits;
        if frame.0 >= self.frame_count || offset > page || len as u64 > page - offset {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "less than the bytes mapped")]
        let byte = ((u64::from(frame.0) << self.page_bits) + offset) as usize;
        // SAFETY: the invariant of `base`: all bytes of the frame are mapped.
        Some(unsafe { self.base.add(byte) })
    }

    /// Asks the processor to fetch bytes that will be accessed soon: several accesses that do not
    /// depend on each other then overlap. Only a hint; nothing is read.
    #[inline]
    pub fn prefetch(&self, frame: FrameId, offset: u64, intent: Intent) {
        let Some(at) = self.at(frame, offset, 1) else { return };
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

    /// Copies bytes out of a frame. `None`: they do not lie in one frame.
    #[inline]
    pub fn read(
        &self,
        frame: FrameId,
        expected: PageWord,
        offset: u64,
        into: &mut [u8],
    ) -> Option<Access> {
        let from = self.at(frame, offset, into.len())?;
        Some(match self.enter(frame, Intent::Read, expected)? {
            Ok(_guard) => {
                // SAFETY: `at` found all bytes mapped.
                unsafe { copy_out(from, into) };
                Access::Done
            }
            Err(found) => Access::Changed(found),
        })
    }

    /// Copies bytes into a frame. `None`: they do not lie in one frame.
    #[inline]
    pub fn write(
        &self,
        frame: FrameId,
        expected: PageWord,
        offset: u64,
        from: &[u8],
    ) -> Option<Access> {
        let to = self.at(frame, offset, from.len())?;
        Some(match self.enter(frame, Intent::Write, expected)? {
            Ok(_guard) => {
                // SAFETY: `at` found all bytes mapped.
                unsafe { copy_in(to, from) };
                Access::Done
            }
            Err(found) => Access::Changed(found),
        })
    }

    /// The 8 aligned bytes at `offset` of a frame, to be changed atomically under a guard.
    pub fn cell(&self, frame: FrameId, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        self.frames.view((u64::from(frame.0) << self.page_bits) + offset)
    }

    /// Announces nothing any more.
    pub fn clear(&self) {
        self.slot().clear();
    }

    /// What the page word of a frame says now, without entering.
    #[must_use]
    pub fn look(&self, frame: FrameId) -> Option<PageWord> {
        self.word(frame).map(PageWordRef::load)
    }
}
