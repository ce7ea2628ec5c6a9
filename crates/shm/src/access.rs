//! The meeting of data plane and control plane: a client announces the frame it is about to use,
//! then looks at the page word; the daemon changes the page word, then looks at the announcements.
//! With a full fence on both sides at least one of them sees the other.

use rackpool_model::{FrameId, PageWord};
use rackpool_sync::atomic::{AtomicU64, Ordering};
use rackpool_sync::barrier::Barrier;

/// What a client is about to do in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Intent {
    /// Load bytes.
    Read = 1,
    /// Store bytes, or both.
    Write = 2,
}

/// What a thread does in a frame that its slot names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Use {
    /// It loads bytes.
    Read = 1,
    /// It stores bytes, or both.
    Write = 2,
    /// It stores bytes of a page that is [dirty-logged](PageWord::is_dirty_logged), and notes first
    /// which.
    DirtyLogged = 3,
}

/// One thread's announcement: 0, or a frame and what it does there.
///
/// ```text
///  63            34 33       2 1      0
/// +----------------+----------+--------+
/// |       0        |  frame   |  use   |
/// +----------------+----------+--------+
/// ```
///
/// Written by one thread of one client, read by the daemon. Its own cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct AccessSlot(AtomicU64);

/// A page word in the rack metadata, for those who may only look at it.
#[derive(Clone, Copy, Debug)]
pub struct PageWordRef<'a>(&'a AtomicU64);

/// Leave to use a frame; given back when dropped.
#[derive(Debug)]
#[must_use = "the page may be taken away as soon as the guard is gone"]
pub struct AccessGuard<'a>(&'a AccessSlot);

impl<'a> PageWordRef<'a> {
    /// A reference to the word in `cell`.
    pub const fn new(cell: &'a AtomicU64) -> Self {
        Self(cell)
    }

    /// What the word says now.
    #[inline]
    #[must_use]
    pub fn load(self) -> PageWord {
        PageWord::from_raw(self.0.load(Ordering::Acquire))
    }
}

impl AccessSlot {
    /// A slot that announces nothing.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces `frame` and returns leave to use it if its page word still is `expected`; else
    /// returns what the word is instead.
    #[inline]
    pub fn enter(
        &self,
        frame: FrameId,
        intent: Intent,
        word: PageWordRef<'_>,
        expected: PageWord,
        barrier: Barrier,
    ) -> Result<AccessGuard<'_>, PageWord> {
        let usage = match intent {
            Intent::Read => Use::Read,
            Intent::Write => Use::Write,
        };
        self.enter_as(frame, usage, word, expected, barrier)
    }

    /// The same to write in a page that is dirty-logged, with a fence: the daemon puts up no
    /// barrier before it looks who is there.
    pub fn enter_dirty_logged(
        &self,
        frame: FrameId,
        word: PageWordRef<'_>,
        dirty_logged: PageWord,
    ) -> Result<AccessGuard<'_>, PageWord> {
        if !dirty_logged.is_dirty_logged() {
            return Err(dirty_logged);
        }
        self.enter_as(frame, Use::DirtyLogged, word, dirty_logged, Barrier::Full)
    }

    #[inline]
    fn enter_as(
        &self,
        frame: FrameId,
        usage: Use,
        word: PageWordRef<'_>,
        expected: PageWord,
        barrier: Barrier,
    ) -> Result<AccessGuard<'_>, PageWord> {
        self.0.store((u64::from(frame.0) << 2) | usage as u64, Ordering::Relaxed);
        // SYNC: pairs with the `heavy` barrier that the daemon sets up between changing the word
        // and `is_quiesced`; with its fence where this is one.
        barrier.stand();
        let guard = AccessGuard(self);
        let found = word.load();
        if found == expected { Ok(guard) } else { Err(found) }
    }

    /// What the slot announces. Bits that mean nothing count as nothing: a broken client can fail
    /// to protect its own access, or hold a page where it is.
    #[must_use]
    pub fn announced(&self) -> Option<(FrameId, Use)> {
        // SYNC: pairs with the release store in `AccessGuard`.
        let raw = self.0.load(Ordering::Acquire);
        let usage = match raw & 3 {
            1 => Use::Read,
            2 => Use::Write,
            3 => Use::DirtyLogged,
            _ => return None,
        };
        Some((FrameId(u32::try_from(raw >> 2).ok()?), usage))
    }

    /// Takes the announcement of a thread that no longer exists back.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for AccessGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: pairs with the load in `announced`: what was done under the guard is done.
        self.0.0.store(0, Ordering::Release);
    }
}

/// Who has to leave a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupants {
    /// Writers who have entered while the page was live: it is frozen. Others note what they write.
    NotDirtyLogged,
    /// All writers.
    Writers,
    /// Everyone: the page is leaving.
    Everyone,
}

/// Whether nobody in `slots` who has to leave uses `frame`. The caller has changed the page word
/// and then called [`heavy`](rackpool_sync::barrier::heavy), or put up a fence if the page was
/// dirty-logged: whoever enters afterwards sees the changed word, whoever entered before is seen
/// here.
pub fn is_quiesced<'a>(
    frame: FrameId,
    occupants: Occupants,
    slots: impl IntoIterator<Item = &'a AccessSlot>,
) -> bool {
    slots.into_iter().all(|slot| match slot.announced() {
        Some((used, _)) if used != frame => true,
        Some((_, usage)) => match occupants {
            Occupants::NotDirtyLogged => usage != Use::Write,
            Occupants::Writers => usage == Use::Read,
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
        let found = slot.enter(FrameId(3), Intent::Read, word, stale, Barrier::Full);
        assert_eq!(found.err(), Some(live()));
        assert_eq!(slot.announced(), None);
    }

    #[test]
    fn readers_may_stay_in_a_frozen_page() {
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live().raw()));
        let word = PageWordRef::new(&cell);
        let guard = slot.enter(FrameId(3), Intent::Read, word, live(), Barrier::Full).unwrap();
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
            "it is not dirty_logged"
        );
        let guard = slot.enter_dirty_logged(FrameId(3), word, dirty_logged).unwrap();
        assert_eq!(slot.announced(), Some((FrameId(3), Use::DirtyLogged)));
        let is_out = |occupants| is_quiesced(FrameId(3), occupants, [&slot]);
        assert_eq!(
            [Occupants::NotDirtyLogged, Occupants::Writers, Occupants::Everyone].map(is_out),
            [true, false, false]
        );
        drop(guard);
        let guard =
            slot.enter(FrameId(3), Intent::Write, word, dirty_logged, Barrier::Full).unwrap();
        assert!(!is_out(Occupants::NotDirtyLogged), "it has entered a live page");
        drop(guard);
        cell.store(live().raw(), Ordering::Relaxed);
        assert_eq!(slot.enter_dirty_logged(FrameId(3), word, dirty_logged).err(), Some(live()));
        assert!(is_out(Occupants::Everyone));
    }

    /// docs/design/rack-memory.md.
    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(size_of::<AccessSlot>(), 64);
        let (slot, cell) = (AccessSlot::new(), AtomicU64::new(live().raw()));
        let word = PageWordRef::new(&cell);
        for (intent, bits) in [(Intent::Read, 1), (Intent::Write, 2)] {
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
