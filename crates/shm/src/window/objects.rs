//! Small objects: bits state which ones the daemon has handed out, marks which ones programs have.

use std::ptr::NonNull;

use rackpool_model::{FrameId, GlobalAddr, PageWord, SizeClass};
use rackpool_sync::atomic::{AtomicU64, Ordering};

use super::{LocalPage, LocalWindow, WindowCore, front, prefetch_line};
use crate::access::{AccessGuard, AccessIntent};
use crate::marks::{Mark, ObjectHolder};
use crate::metadata::{MetadataLayout, PageUse};
use crate::permit::Permit;
use crate::{OutsideMapping, ReadOnlyMapping};

/// The bitmaps of all frames, in the rack metadata.
#[derive(Debug)]
pub(super) struct Bitmaps {
    layout: MetadataLayout,
    /// Invariant: for each of the layout's frames, `1 << frame_shift` bytes from here on lie in the
    /// metadata.
    words: NonNull<AtomicU64>,
    /// log2 of the bytes of a frame's bitmap, which has one bit for each 16 B of the frame.
    frame_shift: u32,
}

impl Bitmaps {
    pub(super) fn new(
        metadata: &ReadOnlyMapping,
        layout: &MetadataLayout,
    ) -> Result<Self, OutsideMapping> {
        let frame_shift = layout.bitmap_bytes().trailing_zeros();
        let count = (layout.frames() as usize) << frame_shift;
        let words = metadata.words(layout.bitmap(FrameId(0)), count / 8)?;
        Ok(Self { layout: *layout, words, frame_shift })
    }

    /// The class of a page's objects, if their bits are in this area.
    pub(super) fn class(&self, usage: PageUse) -> Option<SizeClass> {
        match usage {
            PageUse::Slab(class) if self.layout.has_bitmap(class) => Some(class),
            _ => None,
        }
    }
}

/// Result of taking an object back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeBackOutcome {
    /// A program had the object; it is noted and marked.
    Noted,
    /// The object is noted, but no program had it: it was freed twice, and the caller must remove
    /// the note. The value is its class.
    Twice(SizeClass),
    /// Nothing was done: the fast path cannot decide.
    Unknown,
}

/// Notes a free object where its holder finds it again.
///
/// # Safety
/// [`note`](Self::note) neither changes nor drops a window of the calling thread.
pub unsafe trait Note {
    /// Notes the object at address `object`, whose class has this index. Returns false if it has
    /// no room.
    fn note(self, class: usize, object: u64) -> bool;
}

/// Fast path of a free: takes the small object that starts at `addr` from the program for `holder`,
/// after `note` has noted it. Returns [`TakeBackOutcome::Unknown`] if the
/// calling thread's front window is not of the pool of `permit` or does not have the page in its
/// cache, if the page word has changed, if no object in use starts there, or if `note` returns
/// false.
#[inline]
#[must_use]
pub fn take_back(
    permit: &Permit,
    addr: GlobalAddr,
    holder: ObjectHolder,
    note: impl Note,
) -> TakeBackOutcome {
    let note = |class: SizeClass| note.note(usize::from(class.index()), addr.raw());
    // SAFETY: the core knows no windows, and a `Note` touches none.
    unsafe { front(permit) }
        .map_or(TakeBackOutcome::Unknown, |core| core.take_back(addr, holder, note))
}

/// Fast path that marks the small object that starts at address `object` as the program's. Returns
/// false, with nothing done, if the window cannot decide, as in [`take_back`].
#[inline]
#[must_use]
pub fn hand_out(permit: &Permit, object: u64) -> bool {
    // SAFETY: the core knows no windows.
    unsafe { front(permit) }.is_some_and(|core| core.hand_out(GlobalAddr::from_raw(object)))
}

impl WindowCore {
    /// The mark of an object in a page to which this thread has announced access.
    ///
    /// # Safety
    /// `frame` must be one of the rack's, and `object` less than the number of the smallest objects
    /// in a page.
    #[inline]
    unsafe fn mark(&self, frame: FrameId, object: usize) -> &Mark {
        let start = (frame.0 as usize) << self.marks.frame_bits();
        // SAFETY: the invariant of `marks`, and the caller's promise.
        let mark = unsafe { self.marks.base().add(start + object) };
        // SAFETY: as above; a mark is `Shared`.
        unsafe { mark.as_ref() }
    }

    /// Announces that this thread will change a mark of a page whose bits are in the bitmap area.
    /// No other page enters the frame meanwhile.
    #[inline]
    fn enter_for_mark(&self, local: &LocalPage) -> Option<AccessGuard<'_>> {
        // SAFETY: the invariant of `LocalPage::frame`.
        let word = unsafe { self.word(local.frame) };
        self.slot().enter(local.frame, AccessIntent::Read, word, local.expected, self.barrier).ok()
    }

    #[inline]
    fn take_back(
        &self,
        addr: GlobalAddr,
        holder: ObjectHolder,
        note: impl FnOnce(SizeClass) -> bool,
    ) -> TakeBackOutcome {
        let Some((local, offset)) = self.find(addr, 1) else { return TakeBackOutcome::Unknown };
        let Some(class) = local.class else { return TakeBackOutcome::Unknown };
        let object = offset >> class.bits();
        if object << class.bits() != offset {
            return TakeBackOutcome::Unknown;
        }
        let Some(_guard) = self.enter_for_mark(local) else { return TakeBackOutcome::Unknown };
        let start = (local.frame.0 as usize) << self.bitmaps.frame_shift;
        // SAFETY: the invariants of `Bitmaps::words` and `LocalPage::frame`.
        let bits = unsafe { self.bitmaps.words.byte_add(start) };
        // SAFETY: an object has 16 B or more, so its number in the page is less than the number of
        // bits of a frame.
        let bits = unsafe { bits.add(object / 64) };
        // SAFETY: as above, aligned because a frame's bitmap has whole words; an atomic is
        // `Shared`.
        let bits = unsafe { bits.as_ref() }.load(Ordering::Acquire);
        if bits >> (object % 64) & 1 == 0 || !note(class) {
            return TakeBackOutcome::Unknown;
        }
        // SAFETY: the invariant of `LocalPage::frame`; an object has 16 B or more.
        let mark = unsafe { self.mark(local.frame, object) };
        if mark.take(holder) { TakeBackOutcome::Noted } else { TakeBackOutcome::Twice(class) }
    }

    #[inline]
    fn hand_out(&self, addr: GlobalAddr) -> bool {
        let Some((local, offset)) = self.find(addr, 1) else { return false };
        let Some(class) = local.class else { return false };
        let Some(_guard) = self.enter_for_mark(local) else { return false };
        // SAFETY: the invariant of `LocalPage::frame`; an object has 16 B or more.
        unsafe { self.mark(local.frame, offset >> class.bits()) }.hand_out();
        true
    }
}

impl LocalWindow {
    /// Takes a small object back on the fast path; see [`take_back`].
    #[inline]
    #[must_use]
    pub fn take_back(
        &self,
        addr: GlobalAddr,
        holder: ObjectHolder,
        note: impl FnOnce(SizeClass) -> bool,
    ) -> TakeBackOutcome {
        self.core().take_back(addr, holder, note)
    }

    /// Marks a small object as the program's on the fast path; see [`hand_out`].
    #[inline]
    #[must_use]
    pub fn hand_out(&self, addr: GlobalAddr) -> bool {
        self.core().hand_out(addr)
    }

    /// Hints that the small object at `addr` will be [taken back](Self::take_back) soon, so that
    /// the cache miss of its mark overlaps with what the caller does until then.
    #[inline]
    pub fn prefetch_mark(&self, addr: GlobalAddr) {
        let core = self.core();
        let Some((local, offset)) = core.find(addr, 1) else { return };
        let Some(class) = local.class else { return };
        // SAFETY: the invariant of `LocalPage::frame`; an object has 16 B or more.
        let mark = unsafe { core.mark(local.frame, offset >> class.bits()) };
        prefetch_line(NonNull::from(mark).cast(), AccessIntent::Write);
    }

    /// Calls `work` with the mark of an object of any class. Returns `None` if the page word of the
    /// frame is not `expected`, or if there is no such object.
    pub fn with_mark<R>(
        &self,
        frame: FrameId,
        expected: PageWord,
        class: SizeClass,
        index: u32,
        work: impl FnOnce(&Mark) -> R,
    ) -> Option<R> {
        let core = self.core();
        let mark = core.marks.of(frame, class, index)?;
        let word = self.word(frame)?;
        let _guard =
            core.slot().enter(frame, AccessIntent::Read, word, expected, core.barrier).ok()?;
        Some(work(mark))
    }
}
