use crate::{Epoch, PageId};

/// What may be done to the page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageState {
    /// Nobody uses the frame; the page id in the word is the one it will get when allocated.
    Free = 0,
    /// Reads and writes.
    Live = 1,
    /// The page moves. Reads go on; writes are the daemon's or, while the page is
    /// [dirty-logged](PageWord::is_dirty_logged), those of clients who note first what they write.
    Frozen = 2,
    /// Nobody may enter; the frame is released when the last user has left.
    Leaving = 3,
    /// The frame receives a page from another rack; nobody may enter.
    Arriving = 4,
    /// Reads go on, other racks may have copies: whoever wants to write asks the daemon.
    Shared = 5,
}

/// What happens to the page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// The free page was allocated: its epoch grows.
    Allocated,
    /// A swap began: writers are quiesced.
    Frozen,
    /// Clients may write the frozen page again, each of which notes first what it writes.
    DirtyLogged,
    /// They may not any more: they are quiesced.
    Closed,
    /// Other racks may keep copies from now on: writers are quiesced.
    Shared,
    /// Readers and writers go on: the swap was given up, the page's old home has left it, or the
    /// copies are gone.
    Thawed,
    /// The page is going: it was freed, or its swap has been committed.
    Left,
    /// The last user has gone; the frame is free again.
    Quiesced,
    /// A page from elsewhere will be copied into this free frame.
    Reserved {
        /// The page to come.
        page: PageId,
        /// The epoch it has at its present home.
        epoch: Epoch,
    },
    /// The page has come and this rack is its home now: its epoch grows. It is frozen: readers of
    /// its old home may still be there.
    Arrived,
    /// The page will not come; the frame gets back the page id it had.
    Cancelled {
        /// The id the frame had before.
        page: PageId,
        /// The epoch of that id.
        epoch: Epoch,
    },
}

/// An event that can't happen in the state the page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} can't happen to a page that is {state:?}")]
pub struct PageTransitionError {
    /// The state it was in.
    pub state: PageState,
    /// What was to happen.
    pub event: PageEvent,
}

/// The state of a frame in one 64-bit word, which lies in the rack metadata and is the only place
/// where control plane and data plane meet.
///
/// ```text
///   63    62     56 55              32 31                0
/// +------+---------+------------------+-------------------+
/// |dirty_logged|  state  |      epoch       |      page id      |
/// +------+---------+------------------+-------------------+
/// ```
///
/// A client that holds a translation compares the whole word, so a page that moved away and came
/// back (another epoch) is never mistaken for the one it knew.
///
/// ```
/// use rackpool_model::{PageEvent, PageId, PageState, PageWord};
/// let word = PageWord::free(PageId(7)).apply(PageEvent::Allocated)?;
/// assert_eq!(word.state(), Some(PageState::Live));
/// assert!(word.apply(PageEvent::Allocated).is_err());
/// # Ok::<(), rackpool_model::PageTransitionError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageWord(u64);

impl PageState {
    const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Free,
            1 => Self::Live,
            2 => Self::Frozen,
            3 => Self::Leaving,
            4 => Self::Arriving,
            5 => Self::Shared,
            _ => return None,
        })
    }
}

impl PageWord {
    const TRACED: u64 = 1 << 63;
    const STATE_SHIFT: u32 = 56;
    const EPOCH_SHIFT: u32 = 32;

    /// The word of a frame that was never used and will hold `page`.
    #[must_use]
    pub const fn free(page: PageId) -> Self {
        Self::new(PageState::Free, Epoch::ZERO, page)
    }

    /// A word from its parts.
    #[must_use]
    pub const fn new(state: PageState, epoch: Epoch, page: PageId) -> Self {
        Self(
            ((state as u64) << Self::STATE_SHIFT)
                | ((epoch.raw() as u64) << Self::EPOCH_SHIFT)
                | page.0 as u64,
        )
    }

    /// The word with these bits, as loaded from shared memory.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The bits.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The state, or `None` when the bits are no word that this version writes.
    #[must_use]
    pub const fn state(self) -> Option<PageState> {
        match PageState::from_raw(((self.0 & !Self::TRACED) >> Self::STATE_SHIFT) as u8) {
            Some(PageState::Frozen) => Some(PageState::Frozen),
            _ if self.0 & Self::TRACED != 0 => None,
            state => state,
        }
    }

    /// Whether the page is frozen and clients of its rack may write it if they note first what they
    /// write.
    #[must_use]
    pub const fn is_dirty_logged(self) -> bool {
        self.0 & Self::TRACED != 0 && matches!(self.state(), Some(PageState::Frozen))
    }

    /// The page in the frame, or the one it will get.
    #[must_use]
    pub const fn page(self) -> PageId {
        #[expect(clippy::cast_possible_truncation, reason = "the page id is the low half")]
        PageId(self.0 as u32)
    }

    /// The epoch of the page.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch::new((self.0 >> Self::EPOCH_SHIFT) as u32)
    }

    /// Whether a reader may use the page now.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self.state(), Some(PageState::Live | PageState::Frozen | PageState::Shared))
    }

    /// Whether a writer may use the page now.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 >> Self::STATE_SHIFT == PageState::Live as u64
    }

    /// The same page and epoch in another state.
    #[must_use]
    const fn with_state(self, state: PageState) -> Self {
        Self::new(state, self.epoch(), self.page())
    }

    /// The word after `event`, or an error when it can't happen now.
    pub const fn apply(self, event: PageEvent) -> Result<Self, PageTransitionError> {
        use PageState::{Arriving, Free, Frozen, Leaving, Live, Shared};
        let Some(state) = self.state() else {
            return Err(PageTransitionError { state: Free, event });
        };
        Ok(match (state, event) {
            (Free, PageEvent::Allocated) => Self::new(Live, self.epoch().next(), self.page()),
            (Live, PageEvent::Frozen) => self.with_state(Frozen),
            (Frozen, PageEvent::DirtyLogged) if !self.is_dirty_logged() => {
                Self(self.0 | Self::TRACED)
            }
            (Frozen, PageEvent::Closed) if self.is_dirty_logged() => self.with_state(Frozen),
            (Live, PageEvent::Shared) => self.with_state(Shared),
            (Frozen | Shared, PageEvent::Thawed) => self.with_state(Live),
            (Live | Frozen, PageEvent::Left) => self.with_state(Leaving),
            (Leaving, PageEvent::Quiesced) => self.with_state(Free),
            (Free, PageEvent::Reserved { page, epoch }) => Self::new(Arriving, epoch, page),
            (Arriving, PageEvent::Arrived) => Self::new(Frozen, self.epoch().next(), self.page()),
            (Arriving, PageEvent::Cancelled { page, epoch }) => Self::new(Free, epoch, page),
            (state, event) => return Err(PageTransitionError { state, event }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageId = PageId(77);

    fn events() -> [PageEvent; 11] {
        let (page, epoch) = (PageId(5), Epoch::new(9));
        [
            PageEvent::Allocated,
            PageEvent::Frozen,
            PageEvent::DirtyLogged,
            PageEvent::Closed,
            PageEvent::Shared,
            PageEvent::Thawed,
            PageEvent::Left,
            PageEvent::Quiesced,
            PageEvent::Reserved { page, epoch },
            PageEvent::Arrived,
            PageEvent::Cancelled { page, epoch },
        ]
    }

    #[test]
    fn a_life_from_allocation_to_free() {
        let mut word = PageWord::free(PAGE);
        for (event, state) in [
            (PageEvent::Allocated, PageState::Live),
            (PageEvent::Frozen, PageState::Frozen),
            (PageEvent::Thawed, PageState::Live),
            (PageEvent::Left, PageState::Leaving),
            (PageEvent::Quiesced, PageState::Free),
        ] {
            word = word.apply(event).unwrap();
            assert_eq!((word.state(), word.page()), (Some(state), PAGE));
        }
        assert_eq!(word.epoch(), Epoch::new(1));
    }

    #[test]
    fn a_word_that_was_writable_never_comes_back() {
        // Whatever happens to a live page, once it is live again after leaving its word differs.
        let live = PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap();
        let free = live.apply(PageEvent::Left).unwrap().apply(PageEvent::Quiesced).unwrap();
        assert_ne!(free.apply(PageEvent::Allocated).unwrap(), live);
        let reserved = PageEvent::Reserved { page: PAGE, epoch: live.epoch() };
        let back = free.apply(reserved).unwrap().apply(PageEvent::Arrived).unwrap();
        let back = back.apply(PageEvent::Thawed).unwrap();
        assert_ne!(back, live);
    }

    #[test]
    fn a_page_that_has_come_is_read_before_it_is_written() {
        let reserved = PageEvent::Reserved { page: PAGE, epoch: Epoch::new(4) };
        let arriving = PageWord::free(PageId(5)).apply(reserved).unwrap();
        assert!(!arriving.is_readable());
        let arrived = arriving.apply(PageEvent::Arrived).unwrap();
        assert!(arrived.is_readable() && !arrived.is_writable());
        assert_eq!((arrived.page(), arrived.epoch()), (PAGE, Epoch::new(5)));
        assert!(arrived.apply(PageEvent::Thawed).unwrap().is_writable());
    }

    #[test]
    fn a_shared_page_is_read_and_does_not_move_before_it_is_live() {
        let live = PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap();
        let shared = live.apply(PageEvent::Shared).unwrap();
        assert!(shared.is_readable() && !shared.is_writable());
        assert!(shared.apply(PageEvent::Frozen).is_err() && shared.apply(PageEvent::Left).is_err());
        assert_eq!(shared.apply(PageEvent::Thawed), Ok(live));
    }

    #[test]
    fn only_a_frozen_page_is_dirty_logged_and_not_once_it_is_something_else() {
        let live = PageWord::free(PAGE).apply(PageEvent::Allocated).unwrap();
        let frozen = live.apply(PageEvent::Frozen).unwrap();
        let dirty_logged = frozen.apply(PageEvent::DirtyLogged).unwrap();
        assert!(
            dirty_logged.is_dirty_logged()
                && dirty_logged.is_readable()
                && !dirty_logged.is_writable()
        );
        assert_ne!(dirty_logged, frozen, "who has looked at one does not enter by the other");
        assert_eq!(
            (dirty_logged.state(), dirty_logged.epoch()),
            (Some(PageState::Frozen), live.epoch())
        );
        assert_eq!(dirty_logged.apply(PageEvent::Closed), Ok(frozen));
        assert!(dirty_logged.apply(PageEvent::DirtyLogged).is_err());
        assert!(frozen.apply(PageEvent::Closed).is_err());
        assert_eq!(dirty_logged.apply(PageEvent::Thawed), Ok(live));
        assert!(!dirty_logged.apply(PageEvent::Left).unwrap().is_dirty_logged());
        assert!(
            live.apply(PageEvent::DirtyLogged).is_err() && live.apply(PageEvent::Closed).is_err()
        );
        let broken = PageWord::from_raw(live.raw() | 1 << 63);
        assert!(broken.state().is_none() && !broken.is_writable() && !broken.is_dirty_logged());
    }

    #[test]
    fn unknown_states_are_refused() {
        let word = PageWord::from_raw(0xff << 56);
        assert_eq!(word.state(), None);
        assert!(!word.is_readable() && !word.is_writable());
        assert!(events().iter().all(|event| word.apply(*event).is_err()));
    }

    #[test]
    fn nobody_enters_unless_live_or_frozen() {
        for state in [PageState::Free, PageState::Leaving, PageState::Arriving] {
            let word = PageWord::new(state, Epoch::new(3), PAGE);
            assert!(!word.is_readable() && !word.is_writable());
        }
    }
}
