//! The memory of a rack, which survives its daemon.

use rackpool_model::{FrameId, FrameWord, PageId, PageState, PageWord, StorePosition};
use rackpool_proto::Time;
use rackpool_proto::heat::{Found, Heats};
use rackpool_proto::planted_bugs::Bugs;
use rackpool_proto::share::{Copies, CopyId};
use rackpool_proto::swap::{Frames, Offered, RECORD_WORDS, RECORDS};

use crate::rules::{CLIENTS, FRAMES, USED, WORDS};

/// A frame: its page word and its contents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) word: PageWord,
    pub(crate) bytes: [u64; WORDS],
}

/// The content of a client's access slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) frame: FrameId,
    pub(crate) usage: Use,
}

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// A write that logs its line first.
    DirtyLogged,
}

/// The published replica of a frame, and its end time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) copy: Option<CopyId>,
    pub(crate) until: Time,
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) frames: Vec<Frame>,
    pub(crate) records: [[u64; RECORD_WORDS]; RECORDS],
    pub(crate) slots: [Option<Slot>; CLIENTS],
    /// The notes of clients about pages that move, which no daemon has taken yet.
    pub(crate) noted: [Vec<(FrameId, usize)>; CLIENTS],
    /// The last note of each client.
    pub(crate) noted_last: [Option<(FrameId, usize)>; CLIENTS],
    pub(crate) shown: Vec<Shown>,
    /// The last commit of the metadata server that the rack has acted on.
    pub(crate) seen: Option<StorePosition>,
}

impl Memory {
    /// Makes a memory without pages.
    pub(crate) fn unformatted() -> Self {
        Self { frames: Vec::new(), ..Self::new(PageId(0)) }
    }

    /// Makes a memory with consecutive pages from `first`.
    pub(crate) fn new(first: PageId) -> Self {
        let word = |frame: u32| {
            let free = PageWord::free(PageId(first.0 + frame));
            let live = free.apply(rackpool_model::PageEvent::Allocated);
            if frame < USED { live.unwrap_or(free) } else { free }
        };
        let frames = (0..FRAMES).map(|frame| Frame { word: word(frame), bytes: [0; WORDS] });
        Self {
            frames: frames.collect(),
            records: [[0; RECORD_WORDS]; RECORDS],
            slots: [None; CLIENTS],
            noted: std::array::from_fn(|_| Vec::new()),
            noted_last: [None; CLIENTS],
            seen: None,
            shown: vec![Shown { copy: None, until: Time::ZERO }; FRAMES as usize],
        }
    }

    pub(crate) fn frame(&mut self, frame: FrameId) -> &mut Frame {
        &mut self.frames[frame.0 as usize]
    }

    pub(crate) fn shown(&mut self, frame: FrameId) -> &mut Shown {
        &mut self.shown[frame.0 as usize]
    }

    /// Hides all replicas.
    pub(crate) fn hide_all(&mut self) {
        for shown in &mut self.shown {
            shown.copy = None;
        }
    }

    pub(crate) fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.frames.get(frame.0 as usize).map(|frame| frame.word)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = FrameWord> {
        let words = self.frames.iter().map(|frame| frame.word);
        (0..FRAMES).map(FrameId).zip(words).map(|(frame, word)| FrameWord { frame, word })
    }

    /// Returns the frame of a page. A page that is arriving is not here yet; one that is leaving is
    /// not here any more.
    pub(crate) fn find(&self, page: PageId) -> Option<FrameWord> {
        self.all().find(|FrameWord { word, .. }| {
            let here = !matches!(word.state(), Some(PageState::Arriving | PageState::Leaving));
            word.page() == page && here
        })
    }

    /// Returns true if no access slot names the frame with such a use.
    pub(crate) fn is_quiesced(&self, frame: FrameId, like: impl Fn(Use) -> bool) -> bool {
        !self.slots.iter().flatten().any(|slot| slot.frame == frame && like(slot.usage))
    }
}

/// The memory as the machine of a rack reads it.
pub(crate) struct View<'a, B> {
    pub(crate) memory: &'a Memory,
    pub(crate) heats: &'a Heats,
    pub(crate) copies: &'a Copies<B>,
    pub(crate) now: Time,
}

impl<B: Bugs> View<'_, B> {
    /// Free frames without a replica, or those whose replica is in this state.
    fn free(&self, with_copy: Option<bool>) -> impl Iterator<Item = FrameWord> {
        let free = self.memory.all().filter(|found| found.word.state() == Some(PageState::Free));
        free.filter(move |found| self.copies.uses(found.frame) == with_copy)
    }

    /// Returns a free frame for a replica, if others remain. No swap may need the frame meanwhile.
    pub(crate) fn spare_for_copy(&self, busy: impl Fn(PageId) -> bool) -> Option<FrameId> {
        let mut free = self.free(None).filter(|found| !busy(found.word.page()));
        let (_, next) = (free.next()?, free.next()?);
        Some(next.frame)
    }
}

impl<B: Bugs> Frames for View<'_, B> {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        self.memory.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.memory.word(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        let mut free = self.free(None).chain(self.free(Some(false)));
        free.next().map(|found| found.frame)
    }

    fn offer(&self, busy: &dyn Fn(PageId) -> bool) -> Option<Offered> {
        let in_state = |state| {
            let all = self.memory.all().filter(move |found| found.word.state() == Some(state));
            all.map(|found| found.word.page()).filter(|page| !busy(*page))
        };
        let free = self.free(None).map(|found| found.word.page());
        let free: Vec<PageId> = free.filter(|page| !busy(*page)).collect();
        if free.len() > 1 {
            return Some(Offered { page: free[free.len() - 1], hot: false });
        }
        let movable = in_state(PageState::Live).filter(|page| !self.stays(*page));
        let page = movable.min_by_key(|page| (self.heat(*page).milli, *page))?;
        Some(Offered { page, hot: self.heat(page).hot })
    }

    fn heat(&self, page: PageId) -> Found {
        self.heats.found(self.now, page)
    }

    fn stays(&self, page: PageId) -> bool {
        self.heats.rests(self.now, page)
    }
}
