//! The memory of a rack: what outlives its daemon.

use rackpool_model::{FrameId, PageId, PageState, PageWord, StorePosition};
use rackpool_proto::Time;
use rackpool_proto::heat::{Found, Heats};
use rackpool_proto::planted::Bugs;
use rackpool_proto::share::{Copies, CopyId};
use rackpool_proto::swap::{Frames, Offered, RECORD_WORDS, RECORDS};

use crate::rules::{CLIENTS, FRAMES, USED, WORDS};

/// One frame: its word and its bytes, as words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) word: PageWord,
    pub(crate) bytes: [u64; WORDS],
}

/// What a client's access slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) frame: FrameId,
    pub(crate) usage: Use,
}

/// What it does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
    /// It notes first what it writes.
    DirtyLogged,
}

/// The number of the copy that clients may read in a frame, and until when.
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
    /// What clients have noted that they write in pages that move, and no daemon has taken.
    pub(crate) noted: [Vec<(FrameId, usize)>; CLIENTS],
    /// What each has noted last.
    pub(crate) noted_last: [Option<(FrameId, usize)>; CLIENTS],
    pub(crate) shown: Vec<Shown>,
    /// The last commit of the metadata server that the rack has acted on.
    pub(crate) seen: Option<StorePosition>,
}

impl Memory {
    /// A memory that has no pages yet.
    pub(crate) fn unformatted() -> Self {
        Self { frames: Vec::new(), ..Self::new(PageId(0)) }
    }

    /// A memory that has these pages and those that follow.
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

    /// Nobody reads a copy any more.
    pub(crate) fn hide_all(&mut self) {
        for shown in &mut self.shown {
            shown.copy = None;
        }
    }

    pub(crate) fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.frames.get(frame.0 as usize).map(|frame| frame.word)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (FrameId, PageWord)> {
        (0..FRAMES).map(FrameId).zip(self.frames.iter().map(|frame| frame.word))
    }

    /// Where a page lies; one that is arriving is not here yet, one that is leaving has gone.
    pub(crate) fn find(&self, page: PageId) -> Option<(FrameId, PageWord)> {
        self.all().find(|(_, word)| {
            let here = !matches!(word.state(), Some(PageState::Arriving | PageState::Leaving));
            word.page() == page && here
        })
    }

    /// Whether nobody uses the frame like that.
    pub(crate) fn is_quiesced(&self, frame: FrameId, like: impl Fn(Use) -> bool) -> bool {
        !self.slots.iter().flatten().any(|slot| slot.frame == frame && like(slot.usage))
    }
}

/// What the machine of a rack sees.
pub(crate) struct View<'a, B> {
    pub(crate) memory: &'a Memory,
    pub(crate) heats: &'a Heats,
    pub(crate) copies: &'a Copies<B>,
    pub(crate) now: Time,
}

impl<B: Bugs> View<'_, B> {
    /// Free frames: those without copies, then those whose copy can be dropped.
    fn free(&self, with_copy: Option<bool>) -> impl Iterator<Item = (FrameId, PageWord)> {
        let free = self.memory.all().filter(|(_, word)| word.state() == Some(PageState::Free));
        free.filter(move |(frame, _)| self.copies.uses(*frame) == with_copy)
    }

    /// A free frame for a copy, when enough others are left. The swap must not need it meanwhile.
    pub(crate) fn spare_for_copy(&self, busy: impl Fn(PageId) -> bool) -> Option<FrameId> {
        let mut free = self.free(None).filter(|(_, word)| !busy(word.page()));
        let (_, next) = (free.next()?, free.next()?);
        Some(next.0)
    }
}

impl<B: Bugs> Frames for View<'_, B> {
    fn find(&self, page: PageId) -> Option<(FrameId, PageWord)> {
        self.memory.find(page)
    }

    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.memory.word(frame)
    }

    fn spare(&self) -> Option<FrameId> {
        let mut free = self.free(None).chain(self.free(Some(false)));
        free.next().map(|(frame, _)| frame)
    }

    fn offer(&self, busy: &dyn Fn(PageId) -> bool) -> Option<Offered> {
        let in_state = |state| {
            let all = self.memory.all().filter(move |(_, word)| word.state() == Some(state));
            all.map(|(_, word)| word.page()).filter(|page| !busy(*page))
        };
        let free = self.free(None).map(|(_, word)| word.page());
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
