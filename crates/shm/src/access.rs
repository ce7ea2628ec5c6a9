//! The handshake of fast path and daemon. A client announces the frame that it will access and then
//! loads the page word; the daemon changes the page word and then scans the announcements. With a
//! full fence on both sides at least one of them sees the other's store.

use rackpool_model::{FrameId, Occupants, PageWord};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

/// The access that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum AccessIntent {
    /// To load bytes.
    Read = 1,
    /// To store bytes, or to load and store them.
    Write = 2,
}

/// What a thread does in the frame that its slot names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum FrameUse {
    /// The thread loads bytes.
    Read = 1,
    /// The thread stores bytes, or loads and stores them.
    Write = 2,
    /// The thread stores bytes of a [dirty-logged](PageWord::is_dirty_logged) page, and logs their
    /// lines first.
    DirtyLogged = 3,
}

/// What a slot announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncedAccess {
    /// The frame.
    pub frame: FrameId,
    /// What the thread does in it.
    pub usage: FrameUse,
}

/// One thread's announcement: 0 for none, or a frame and its use.
///
/// ```text
///  63            34 33       2 1      0
/// +----------------+----------+--------+
/// |       0        |  frame   |  use   |
/// +----------------+----------+--------+
/// ```
///
/// The slot has its own cache line. One thread of one client writes it, the daemon reads it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct AccessSlot(AtomicU64);

/// A page word in the rack metadata, for readers.
#[derive(Clone, Copy, Debug)]
pub struct PageWordRef<'a>(&'a AtomicU64);

/// The right to access a frame, until the guard is dropped.
#[derive(Debug)]
#[must_use = "the page may be taken away as soon as the guard is gone"]
pub struct AccessGuard<'a>(&'a AccessSlot);

impl<'a> PageWordRef<'a> {
    /// A reference to the word in `cell`.
    pub const fn new(cell: &'a AtomicU64) -> Self {
        Self(cell)
    }

    /// The current value of the page word.
    #[inline]
    #[must_use]
    pub fn load(self) -> PageWord {
        PageWord::from_raw(self.0.load(Ordering::Acquire))
    }
}

impl AccessSlot {
    /// An empty slot.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces `frame` and returns a guard if its page word still is `expected`. Otherwise
    /// returns the page word that was found, and announces nothing.
    #[inline]
    pub fn enter(
        &self,
        frame: FrameId,
        intent: AccessIntent,
        word: PageWordRef<'_>,
        expected: PageWord,
        barrier: Barrier,
    ) -> Result<AccessGuard<'_>, PageWord> {
        let usage = match intent {
            AccessIntent::Read => FrameUse::Read,
            AccessIntent::Write => FrameUse::Write,
        };
        self.enter_as(frame, usage, word, expected, barrier)
    }

    /// Like [`Self::enter`], to write in a dirty-logged page. Executes a full fence here, because
    /// the daemon issues no heavy barrier before it scans for such writers.
    pub fn enter_dirty_logged(
        &self,
        frame: FrameId,
        word: PageWordRef<'_>,
        dirty_logged: PageWord,
    ) -> Result<AccessGuard<'_>, PageWord> {
        if !dirty_logged.is_dirty_logged() {
            return Err(dirty_logged);
        }
        self.enter_as(frame, FrameUse::DirtyLogged, word, dirty_logged, Barrier::Full)
    }

    #[inline]
    fn enter_as(
        &self,
        frame: FrameId,
        usage: FrameUse,
        word: PageWordRef<'_>,
        expected: PageWord,
        barrier: Barrier,
    ) -> Result<AccessGuard<'_>, PageWord> {
        self.0.store((u64::from(frame.0) << 2) | usage as u64, Ordering::Relaxed);
        // SYNC: pairs with the `heavy` barrier that the daemon sets up between changing the word
        // and `is_quiesced`; with the daemon's own fence where `barrier` is a full fence.
        barrier.stand();
        let guard = AccessGuard(self);
        let found = word.load();
        if found == expected { Ok(guard) } else { Err(found) }
    }

    /// The announced frame and use. Invalid bits count as no announcement: a faulty client can only
    /// fail to protect its own access, or keep a page in its frame.
    #[must_use]
    pub fn announced(&self) -> Option<AnnouncedAccess> {
        // SYNC: pairs with the release store in `AccessGuard`.
        let raw = self.0.load(Ordering::Acquire);
        let usage = match raw & 3 {
            1 => FrameUse::Read,
            2 => FrameUse::Write,
            3 => FrameUse::DirtyLogged,
            _ => return None,
        };
        Some(AnnouncedAccess { frame: FrameId(u32::try_from(raw >> 2).ok()?), usage })
    }

    /// Removes the announcement of a thread that has ended.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for AccessGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: pairs with the load in `announced`: the accesses under the guard are complete.
        self.0.0.store(0, Ordering::Release);
    }
}

/// Returns true once no access slot that `occupants` covers names `frame`. The caller must have
/// changed the page word and then called [`heavy`](rackpool_sync::barrier::heavy), or executed a
/// fence if the page was dirty-logged: a thread that publishes its slot later loads the new word;
/// one that published earlier is found by this scan.
pub fn is_quiesced<'a>(
    frame: FrameId,
    occupants: Occupants,
    slots: impl IntoIterator<Item = &'a AccessSlot>,
) -> bool {
    slots.into_iter().all(|slot| match slot.announced() {
        Some(announced) if announced.frame != frame => true,
        Some(AnnouncedAccess { usage, .. }) => match occupants {
            Occupants::NotDirtyLogged => usage != FrameUse::Write,
            Occupants::Writers => usage == FrameUse::Read,
            Occupants::Everyone => false,
        },
        None => true,
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use rackpool_model::{PageEvent, PageId};

    use super::*;

    fn live() -> PageWord {
        PageWord::free(PageId(1)).apply(PageEvent::Allocated).unwrap()
    }

    #[test]
    fn entering_a_changed_page_says_what_it_is_and_leaves_no_trace() {
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live().raw()));
        let stale = PageWord::free(PageId(1));
        let word = PageWordRef::new(&cell);
        let found = slot.enter(FrameId(3), AccessIntent::Read, word, stale, Barrier::Full);
        assert_eq!(found.err(), Some(live()));
        assert_eq!(slot.announced(), None);
    }

    #[test]
    fn readers_may_stay_in_a_frozen_page() {
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live().raw()));
        let word = PageWordRef::new(&cell);
        let guard =
            slot.enter(FrameId(3), AccessIntent::Read, word, live(), Barrier::Full).unwrap();
        assert!(is_quiesced(FrameId(3), Occupants::Writers, [&slot]));
        assert!(!is_quiesced(FrameId(3), Occupants::Everyone, [&slot]));
        assert!(is_quiesced(FrameId(4), Occupants::Everyone, [&slot]));
        drop(guard);
        assert!(is_quiesced(FrameId(3), Occupants::Everyone, [&slot]));
    }

    #[test]
    fn who_writes_in_a_dirty_logged_page_is_waited_for_when_nobody_may_write_any_more() {
        let dirty_logged =
            live().apply(PageEvent::Frozen).unwrap().apply(PageEvent::DirtyLogged).unwrap();
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(dirty_logged.raw()));
        let word = PageWordRef::new(&cell);
        assert!(
            slot.enter_dirty_logged(FrameId(3), word, live()).is_err(),
            "it is not dirty-logged"
        );
        let guard = slot.enter_dirty_logged(FrameId(3), word, dirty_logged).unwrap();
        assert_eq!(
            slot.announced(),
            Some(AnnouncedAccess { frame: FrameId(3), usage: FrameUse::DirtyLogged })
        );
        let is_out = |occupants| is_quiesced(FrameId(3), occupants, [&slot]);
        assert_eq!(
            [Occupants::NotDirtyLogged, Occupants::Writers, Occupants::Everyone].map(is_out),
            [true, false, false]
        );
        drop(guard);
        let guard =
            slot.enter(FrameId(3), AccessIntent::Write, word, dirty_logged, Barrier::Full).unwrap();
        assert!(!is_out(Occupants::NotDirtyLogged), "it has entered a live page");
        drop(guard);
        cell.store(live().raw(), Ordering::Relaxed);
        assert_eq!(slot.enter_dirty_logged(FrameId(3), word, dirty_logged).err(), Some(live()));
        assert!(is_out(Occupants::Everyone));
    }

    /// The offsets of docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(size_of::<AccessSlot>(), 64);
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live().raw()));
        let word = PageWordRef::new(&cell);
        for (intent, bits) in [(AccessIntent::Read, 1), (AccessIntent::Write, 2)] {
            let guard = slot.enter(FrameId(5), intent, word, live(), Barrier::Full).unwrap();
            assert_eq!(slot.0.load(Ordering::Relaxed), 5 << 2 | bits);
            drop(guard);
        }
        assert_eq!(slot.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn garbage_in_a_slot_announces_nothing() {
        for raw in [4, u64::MAX, 1 << 40] {
            assert_eq!(AccessSlot(AtomicU64::new(raw)).announced(), None);
        }
    }
}
