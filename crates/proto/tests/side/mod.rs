//! One side of a swap, driven message by message: mostly the home.

use std::collections::BTreeMap;

use rackpool_model::{
    Epoch, FrameId, FrameWord, Incarnation, PageEvent, PageId, PageState, PageWord, RackId,
};
use rackpool_proto::Time;
use rackpool_proto::heat::Found;
use rackpool_proto::planted_bugs::Sound;
use rackpool_proto::swap::{
    Frames, PeerAction, PeerEvent, Phase, Quiesce, RECORD_WORDS, RECORDS, Record, SwapPeer,
    SwapRules,
};
use rackpool_wire::swap::{Between, FromServer, PageLife, SwapId, SwapMessage, ToServer};

pub(crate) const PAGE: PageId = PageId(1);
pub(crate) const OFFERED: PageId = PageId(9);
pub(crate) const REQUESTER: RackId = RackId(2);
pub(crate) const SWAP: SwapId = SwapId(77);

/// Frame 0 has the page, frame 1 is free.
pub(crate) struct Memory {
    pub(crate) words: BTreeMap<FrameId, PageWord>,
    pub(crate) milli: u64,
    pub(crate) hot: bool,
    /// Its pages become hot while they are offered.
    pub(crate) heats: bool,
}

impl Memory {
    fn in_state(&self, state: PageState) -> impl Iterator<Item = PageId> {
        let words = self.words.values().filter(move |word| word.state() == Some(state));
        words.map(|word| word.page())
    }
}

impl Frames for Memory {
    fn find(&self, page: PageId) -> Option<FrameWord> {
        let of_page = |(_, word): &(&FrameId, &PageWord)| word.page() == page;
        self.words
            .iter()
            .find(of_page)
            .map(|(frame, word)| FrameWord { frame: *frame, word: *word })
    }
    fn word(&self, frame: FrameId) -> Option<PageWord> {
        self.words.get(&frame).copied()
    }
    fn spare(&self) -> Option<FrameId> {
        let is_free = |word: &PageWord| word.state() == Some(PageState::Free);
        self.words.iter().find(|(_, word)| is_free(word)).map(|(frame, _)| *frame)
    }
    fn free_pages(&self) -> impl Iterator<Item = PageId> {
        self.in_state(PageState::Free)
    }
    fn coldest(&self, busy: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        self.in_state(PageState::Live).find(|page| !busy(*page))
    }
    fn heat(&self, _: PageId) -> Found {
        Found { milli: self.milli, hot: self.hot, read_hot: false, written: self.hot }
    }
    fn stays(&self, _: PageId) -> bool {
        false
    }
}

pub(crate) struct Home {
    pub(crate) memory: Memory,
    pub(crate) records: [[u64; RECORD_WORDS]; RECORDS],
    pub(crate) rack: SwapPeer,
    pub(crate) now: Time,
}

impl Home {
    pub(crate) fn new() -> Self {
        let live = PageWord::free(PAGE).apply(PageEvent::Allocated).expect("a free page");
        let words = BTreeMap::from([(FrameId(0), live), (FrameId(1), PageWord::free(PageId(2)))]);
        let records = [[0; RECORD_WORDS]; RECORDS];
        let rack = SwapPeer::restore(
            Time::ZERO,
            SwapRules::DEFAULT,
            Incarnation(1 << 32),
            &records,
            Sound,
        );
        Self {
            memory: Memory { words, milli: 1000, hot: false, heats: false },
            records,
            rack,
            now: Time::ZERO,
        }
    }

    /// Handles an event, executes stores, and returns the other actions.
    pub(crate) fn step(&mut self, event: PeerEvent) -> Vec<PeerAction> {
        self.rack.handle(self.now, &self.memory, event);
        let mut others = Vec::new();
        while let Some(action) = self.rack.poll() {
            match action {
                PeerAction::StoreWord(frame, word) => {
                    self.memory.words.insert(frame, word);
                }
                PeerAction::StoreRecord { slot, words } => self.records[slot] = words,
                PeerAction::EraseRecord { slot } => self.records[slot][0] = 0,
                PeerAction::Record(_) | PeerAction::CancelQuiesce(..) => {}
                other => others.push(other),
            }
        }
        others
    }

    pub(crate) fn got(&mut self, message: SwapMessage) -> Vec<PeerAction> {
        self.step(PeerEvent::RackSent(REQUESTER, Between { swap: SWAP, message }))
    }

    pub(crate) fn restart(&mut self, life: u64) -> Vec<PeerAction> {
        let rules = SwapRules::DEFAULT;
        self.rack =
            SwapPeer::restore(self.now, rules, Incarnation(life << 32), &self.records, Sound);
        self.step(PeerEvent::DeadlinePassed)
    }

    /// Requests a page; the metadata server grants the swap.
    pub(crate) fn begin(&mut self, page: PageId) -> Vec<PeerAction> {
        let (_, nonce) = self.request(page);
        self.memory.hot |= self.memory.heats;
        self.granted(nonce)
    }

    /// Requests a page; returns the page that is offered for it, and the nonce.
    pub(crate) fn request(&mut self, page: PageId) -> (PageId, u64) {
        let wants = self.step(PeerEvent::Heated { page, milli: 9000, read_hot: false });
        let [PeerAction::TellServer(ToServer::Request { nonce, offered, .. })] = wants[..] else {
            panic!("it wants nothing: {wants:?}");
        };
        (offered, nonce)
    }

    pub(crate) fn granted(&mut self, nonce: u64) -> Vec<PeerAction> {
        let begin = FromServer::Granted { swap: SWAP, nonce, home: REQUESTER };
        self.step(PeerEvent::ServerSent(begin))
    }

    pub(crate) fn state(&self, frame: u32) -> (PageState, PageId) {
        let word = self.memory.words[&FrameId(frame)];
        (word.state().expect("a known state"), word.page())
    }

    /// Runs the swap up to the acceptance and returns the ticket.
    pub(crate) fn accept(&mut self) -> u64 {
        self.got(offer());
        match self.step(PeerEvent::Quiesced(SWAP, Quiesce::Writers))[..] {
            [
                PeerAction::TellRack(
                    REQUESTER,
                    Between { message: SwapMessage::Prepared { ticket, .. }, .. },
                ),
            ] => ticket,
            ref other => panic!("not ready: {other:?}"),
        }
    }

    /// Runs the swap until the home is in doubt.
    pub(crate) fn doubt(&mut self) -> u64 {
        let ticket = self.accept();
        self.got(peer_asks_to_copy(ticket));
        let peer_copied = self.step(PeerEvent::Copied { swap: SWAP, whole: true });
        assert_eq!(peer_copied, [tells(SwapMessage::Copied), REDIRECTS]);
        assert_eq!(self.phase(), Some(Phase::InDoubt));
        assert_eq!(self.state(0), (PageState::Frozen, PAGE), "reads go on");
        ticket
    }

    pub(crate) fn phase(&self) -> Option<Phase> {
        let record = Record::from_words(&self.records[4]).expect("a whole record");
        record.map(|record| record.phase)
    }

    /// Commits: the incoming page is readable, and so is the page that goes, in both racks.
    pub(crate) fn commit_while_read(&mut self) {
        self.doubt();
        assert_eq!(self.step(decided(true)), COMMITS);
        assert_eq!(self.state(1), (PageState::Frozen, OFFERED), "it can be read at once");
        assert_eq!(self.step(OUT), [sends(true)]);
        assert_eq!(self.got(SwapMessage::DirtyLinesApplied), []);
        assert_eq!(self.state(0), (PageState::Frozen, PAGE), "its readers do not know the way");
    }

    /// Commits: the page that goes is leaving and the other has arrived; the rest is in progress.
    pub(crate) fn commit(&mut self) {
        self.commit_while_read();
        assert_eq!(self.step(PeerEvent::LeasePrefetched(PAGE)), [quiesces(Quiesce::Holders)]);
        assert_eq!(self.state(0), (PageState::Leaving, PAGE));
    }
}

pub(crate) fn offer() -> SwapMessage {
    let offered = PageLife { page: OFFERED, epoch: Epoch::new(5) };
    SwapMessage::Prepare { wanted: PAGE, milli: 9000, read_hot: true, offered, live: true }
}

pub(crate) const fn peer_asks_to_copy(ticket: u64) -> SwapMessage {
    SwapMessage::Copy { ticket, frame: FrameId(3), stale: false }
}

pub(crate) const fn tells(message: SwapMessage) -> PeerAction {
    PeerAction::TellRack(REQUESTER, Between { swap: SWAP, message })
}

/// What a home does at the commit whose copy lacks nothing.
pub(crate) const COMMITS: [PeerAction; 3] = [
    tells(SwapMessage::Committed),
    quiesces(Quiesce::DirtyLoggers),
    tells(SwapMessage::DirtyLinesApplied),
];

/// No writer is in the page that goes.
pub(crate) const OUT: PeerEvent = PeerEvent::Quiesced(SWAP, Quiesce::DirtyLoggers);

pub(crate) const fn sends(known: bool) -> PeerAction {
    PeerAction::SendDirtyLines { swap: SWAP, to: REQUESTER, frame: FrameId(0), known }
}

pub(crate) const fn quiesces(who: Quiesce) -> PeerAction {
    PeerAction::Quiesce { swap: SWAP, frame: FrameId(0), page: PAGE, who }
}

pub(crate) const REDIRECTS: PeerAction = PeerAction::PrefetchLease { page: PAGE, to: REQUESTER };

pub(crate) const ASKS: PeerAction =
    PeerAction::TellServer(ToServer::Outcome { swap: SWAP, page: OFFERED });

pub(crate) fn decided(committed: bool) -> PeerEvent {
    PeerEvent::ServerSent(FromServer::Decision { swap: SWAP, committed })
}
