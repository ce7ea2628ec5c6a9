//! What the daemon has handed out: the bits of small objects, looked at before one is taken back.

use std::num::NonZeroU64;
use std::ptr::NonNull;

use rackpool_model::{FrameId, GlobalAddr, SizeClass};
use rackpool_sync::atomic::{AtomicU64, Ordering};

use super::{Core, LocalWindow, front};
use crate::metadata::{MetadataLayout, PageUse};
use crate::{OutOfBounds, ReadOnlyMapping};

/// The bitmaps of all frames, in the rack's metadata.
#[derive(Debug)]
pub(super) struct Bitmaps {
    layout: MetadataLayout,
    /// Invariant: as many bytes for each of the layout's frames as `frame_shift` says.
    words: NonNull<AtomicU64>,
    /// log2 of a frame's bytes: a bit for each 16 B that it has.
    frame_shift: u32,
}

impl Bitmaps {
    pub(super) fn new(
        metadata: &ReadOnlyMapping,
        layout: &MetadataLayout,
    ) -> Result<Self, OutOfBounds> {
        let frame_shift = layout.bitmap_bytes().trailing_zeros();
        let count = (layout.frames() as usize) << frame_shift;
        let words = metadata.words(layout.bitmap(FrameId(0)), count / 8)?;
        Ok(Self { layout: *layout, words, frame_shift })
    }

    /// The class of a page's objects, if their bits are here.
    pub(super) fn class(&self, usage: PageUse) -> Option<SizeClass> {
        match usage {
            PageUse::Slab(class) if self.layout.has_bitmap(class) => Some(class),
            _ => None,
        }
    }
}

/// The class of the small object that starts at `addr`, if this thread's last used window is one
/// of the pool numbered `pool`, and the page is known to it and still the one it knows, and the
/// object is in use. Otherwise the answer takes longer to find.
#[inline]
#[must_use]
pub fn in_use(pool: NonZeroU64, addr: GlobalAddr) -> Option<SizeClass> {
    front(pool)?.in_use(addr)
}

impl Core {
    #[inline]
    fn in_use(&self, addr: GlobalAddr) -> Option<SizeClass> {
        let (local, offset) = self.find(addr, 1)?;
        let class = local.class?;
        // SAFETY: the invariant of `Local::frame`.
        let word = unsafe { self.word(local.frame) };
        let object = offset >> class.bits();
        if word.load() != local.expected || object << class.bits() != offset {
            return None;
        }
        let start = (local.frame.0 as usize) << self.bitmaps.frame_shift;
        // SAFETY: the invariants of `Bitmaps::words` and `Local::frame`.
        let bits = unsafe { self.bitmaps.words.byte_add(start) };
        // SAFETY: an object has 16 B or more, so the number of one in the page is less than the
        // bits there are for a frame.
        let bits = unsafe { bits.add(object / 64) };
        // SAFETY: as above, aligned as a frame has whole words; an atomic is `Shared`.
        let bits = unsafe { bits.as_ref() }.load(Ordering::Acquire);
        (bits >> (object % 64) & 1 == 1).then_some(class)
    }
}

impl LocalWindow {
    /// The class of the small object that starts at `addr`, if that is quickly found: see
    /// [`in_use`].
    #[inline]
    #[must_use]
    pub fn in_use(&self, addr: GlobalAddr) -> Option<SizeClass> {
        self.core().in_use(addr)
    }
}
