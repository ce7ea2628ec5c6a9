use crate::{Epoch, FrameId, PageId};

/// The state of the page in a frame. It says which accesses clients may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PageState {
    /// The frame is not in use. The page id in the word is the one that the frame gets when it is
    /// allocated.
    Free = 0,
    /// Clients read and write the page; other racks access it one-sided under leases.
    Live = 1,
    /// The page moves. Clients read it. Writes go through the daemon, or, while the page is
    /// [dirty-logged](PageWord::is_dirty_logged), clients write it and note the lines in their
    /// dirty log first.
    Frozen = 2,
    /// No new access may begin. The daemon frees the frame when the last access has ended.
    Leaving = 3,
    /// The daemon copies a page from another rack into the frame. No client may access it.
    Arriving = 4,
    /// Clients read the page, and other racks may keep replicas. A client that wants to write asks
    /// the daemon, which calls the replicas back first.
    Shared = 5,
}

/// An event that changes the state of the page in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent {
    /// `Free` to `Live`: the page was allocated; its epoch grows.
    Allocated,
    /// `Live` to `Frozen`: a swap begins; the daemon quiesces writers.
    Frozen,
    /// Dirty logging begins: clients may write the frozen page and note each line in their dirty
    /// log first.
    DirtyLogged,
    /// Dirty logging ends: the daemon quiesces the writers.
    Closed,
    /// `Live` to `Shared`: the daemon quiesces writers; then other racks may keep replicas.
    Shared,
    /// `Frozen` or `Shared` to `Live`: the swap was aborted, or the old home has quiesced the page,
    /// or no replica is left.
    Thawed,
    /// `Live` or `Frozen` to `Leaving`: the page was freed, or its swap was committed.
    Left,
    /// `Leaving` to `Free`: the last access has ended.
    Quiesced,
    /// `Free` to `Arriving`: a page of another rack will be copied into the frame.
    Reserved {
        /// The page that will arrive.
        page: PageId,
        /// Its epoch at its present home.
        epoch: Epoch,
    },
    /// `Arriving` to `Frozen`: this rack is the page's home now; its epoch grows. The page stays
    /// frozen while readers at its old home may still use it.
    Arrived,
    /// `Arriving` to `Free`: the swap was aborted; the frame gets its previous page id back.
    Cancelled {
        /// The previous id of the frame.
        page: PageId,
        /// The epoch of that page id.
        epoch: Epoch,
    },
}

/// An event that is not allowed in the page's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} can't happen to a page that is {state:?}")]
pub struct PageTransitionError {
    /// The state of the page.
    pub state: PageState,
    /// The event that was refused.
    pub event: PageEvent,
}

/// The state of a frame in one 64-bit word of the rack metadata. It is the only word that clients
/// and their rack's daemon synchronize on for accesses to the page.
///
/// ```text
///        63       62     56 55              32 31                 0
/// +--------------+---------+------------------+-------------------+
/// | dirty-logged |  state  |      epoch       |      page id      |
/// +--------------+---------+------------------+-------------------+
/// ```
///
/// A client compares the whole word with the one in its translation, so a page that moved away and
/// came back (with another epoch) does not match an old translation.
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

/// A frame with the page word that was read from it, or is to be stored to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameWord {
    /// The frame.
    pub frame: FrameId,
    /// Its page word.
    pub word: PageWord,
}

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
    const DIRTY_LOGGED: u64 = 1 << 63;
    const STATE_SHIFT: u32 = 56;
    const EPOCH_SHIFT: u32 = 32;

    /// Returns the word of a frame that was never used and will hold `page`.
    #[must_use]
    pub const fn free(page: PageId) -> Self {
        Self::new(PageState::Free, Epoch::ZERO, page)
    }

    /// Makes a word from its fields.
    #[must_use]
    pub const fn new(state: PageState, epoch: Epoch, page: PageId) -> Self {
        Self(
            ((state as u64) << Self::STATE_SHIFT)
                | ((epoch.raw() as u64) << Self::EPOCH_SHIFT)
                | page.0 as u64,
        )
    }

    /// Interprets bits loaded from shared memory as a word.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the bits.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the state, or `None` if this version never writes such bits.
    #[must_use]
    pub const fn state(self) -> Option<PageState> {
        match PageState::from_raw(((self.0 & !Self::DIRTY_LOGGED) >> Self::STATE_SHIFT) as u8) {
            Some(PageState::Frozen) => Some(PageState::Frozen),
            _ if self.0 & Self::DIRTY_LOGGED != 0 => None,
            state => state,
        }
    }

    /// Returns true if the page is frozen and clients of its rack may write it after they note the
    /// lines in their dirty log.
    #[must_use]
    pub const fn is_dirty_logged(self) -> bool {
        self.0 & Self::DIRTY_LOGGED != 0 && matches!(self.state(), Some(PageState::Frozen))
    }

    /// Returns the page in the frame, or of a free frame the page that it will get.
    #[must_use]
    pub const fn page(self) -> PageId {
        #[expect(clippy::cast_possible_truncation, reason = "the page id is the low half")]
        PageId(self.0 as u32)
    }

    /// Returns the epoch of the page.
    #[must_use]
    pub const fn epoch(self) -> Epoch {
        Epoch::new((self.0 >> Self::EPOCH_SHIFT) as u32)
    }

    /// Returns true if a client may read the page now.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self.state(), Some(PageState::Live | PageState::Frozen | PageState::Shared))
    }

    /// Returns true if a client may write the page now without dirty logging.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 >> Self::STATE_SHIFT == PageState::Live as u64
    }

    /// Returns the word with the same page and epoch in another state.
    #[must_use]
    const fn with_state(self, state: PageState) -> Self {
        Self::new(state, self.epoch(), self.page())
    }

    /// Returns the word after `event`.
    ///
    /// # Errors
    /// When `event` is not allowed in the present state. An unknown state is reported as
    /// [`PageState::Free`].
    pub const fn apply(self, event: PageEvent) -> Result<Self, PageTransitionError> {
        use PageState::{Arriving, Free, Frozen, Leaving, Live, Shared};
        let Some(state) = self.state() else {
            return Err(PageTransitionError { state: Free, event });
        };
        Ok(match (state, event) {
            (Free, PageEvent::Allocated) => Self::new(Live, self.epoch().next(), self.page()),
            (Live, PageEvent::Frozen) => self.with_state(Frozen),
            (Frozen, PageEvent::DirtyLogged) if !self.is_dirty_logged() => {
                Self(self.0 | Self::DIRTY_LOGGED)
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
        // A page that leaves and becomes live again has another word than before.
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
