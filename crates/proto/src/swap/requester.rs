//! The requester's side of a swap.

use alloc::vec::Vec;

use rackpool_model::{Epoch, FrameId, FrameWord, PageEvent, PageId, PageState, RackId};
use rackpool_wire::swap::{
    PageLife, PrepareRefusal, RequestRefusal, SwapId, SwapMessage, ToServer,
};

use super::in_flight::{Offering, Prepared, Stage, Step, UnderWay};
use super::peer::SwapRequest;
use super::record::is_possible;
use super::{Frames, PeerAction, Phase, Quiesce, Record, Role, SwapEvent, SwapPeer};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

impl<B: Bugs> SwapPeer<B> {
    pub(super) fn heated(
        &mut self,
        frames: &impl Frames,
        page: PageId,
        milli: u64,
        read_hot: bool,
    ) {
        if let Some(want) = self.requests.get_mut(&page) {
            (want.milli, want.read_hot) = (milli, read_hot);
            return;
        }
        self.paused.retain(|_, until| *until > self.now);
        let here = frames.find(page).is_some();
        let full = self.requests.len() >= self.rules.wants;
        if here || full || self.is_busy(page) || self.paused.contains_key(&page) {
            return;
        }
        let Some(offered) = self.page_to_give(frames) else {
            self.paused.insert(page, self.now.after(self.rules.pause));
            self.actions.push_back(PeerAction::Record(SwapEvent::NoColdPage(page)));
            return;
        };
        let (nonce, until) = (self.number(), self.now.after(self.rules.want));
        let want = SwapRequest { offered, nonce, milli, read_hot, send_again: self.now, until };
        self.requests.insert(page, want);
    }

    /// Returns the page to offer for a hot one: a free page, else the coldest one.
    fn page_to_give(&self, frames: &impl Frames) -> Option<PageId> {
        let mut free = frames.free_pages().filter(|page| !self.may_use(*page));
        let free = free.find(|page| self.has_free_page_beside(frames, *page));
        free.or_else(|| {
            // Without a spare frame the arriving page has no place.
            frames.spare()?;
            let coldest = frames.coldest(&|page| self.may_use(page))?;
            (!frames.heat(coldest).hot).then_some(coldest)
        })
    }

    /// Returns true if the rack has another free page that no swap or request may take. A rack
    /// without a free frame has no place for a page that is exchanged for one in use, so it neither
    /// requests a page nor gives one for a page in use.
    fn has_free_page_beside(&self, frames: &impl Frames, page: PageId) -> bool {
        let is_other = |other| other != page && !self.may_use(other);
        self.bugs.has(Bug::GiveLastFreeFrame) || frames.free_pages().any(is_other)
    }

    pub(super) fn drive_requests(&mut self) {
        let (now, pause) = (self.now, self.rules.pause);
        for page in self.requests.keys().copied().collect::<Vec<_>>() {
            let Some(want) = self.requests.get_mut(&page) else { continue };
            let SwapRequest { offered, nonce, .. } = *want;
            if now >= want.until {
                self.requests.remove(&page);
                self.paused.insert(page, now.after(pause));
            } else if now >= want.send_again {
                // A place in the queue takes longer than a swap, so the request is repeated less
                // often.
                want.send_again = now.after(self.rules.retry.saturating_mul(4));
                if self.bugs.has(Bug::AskOnce) {
                    (want.send_again, want.until) = (Time::END, Time::END);
                }
                let want = ToServer::Request { page, offered, nonce };
                self.actions.push_back(PeerAction::TellServer(want));
            }
        }
    }

    pub(super) fn request_refused(&mut self, nonce: u64, reason: RequestRefusal) {
        let Some((&page, _)) = self.requests.iter().find(|(_, want)| want.nonce == nonce) else {
            return;
        };
        self.requests.remove(&page);
        self.paused.insert(page, self.now.after(self.rules.pause));
        self.actions.push_back(PeerAction::Record(SwapEvent::RequestRefused(page, reason)));
    }

    /// The metadata server has granted a request. The request is removed, so that no swap begins
    /// twice.
    pub(super) fn begun(&mut self, frames: &impl Frames, swap: SwapId, nonce: u64, home: RackId) {
        if self.slot_of(swap).is_some() {
            return;
        }
        let want = self.requests.iter().find(|(_, want)| want.nonce == nonce);
        let Some((wanted, want)) = want.map(|(page, want)| (*page, *want)) else {
            self.actions.push_back(PeerAction::TellServer(ToServer::Abort { swap }));
            return;
        };
        self.requests.remove(&wanted);
        let is_offerable = |page| {
            let found = frames.find(page)?;
            let movable = match found.word.state() {
                Some(PageState::Live) => !frames.heat(page).hot,
                // A free page is unused, regardless of its remaining hotness. Others may have been
                // allocated since it was offered.
                Some(PageState::Free) => self.has_free_page_beside(frames, page),
                _ => false,
            };
            (movable && !self.is_busy(page)).then_some(found)
        };
        let slot = self.empty_slot(Role::Requester).filter(|_| !self.is_busy(wanted));
        let (Some(slot), Some(FrameWord { frame, word })) = (slot, is_offerable(want.offered))
        else {
            self.paused.insert(wanted, self.now.after(self.rules.pause));
            self.actions.push_back(PeerAction::TellServer(ToServer::Abort { swap }));
            return;
        };
        let SwapRequest { milli, read_hot, .. } = want;
        let stage = Stage::Offering(Offering { wanted, milli, read_hot, frame, word });
        let deadline = self.now.after(self.rules.grace);
        let under_way = UnderWay::new(swap, home, stage, deadline);
        self.slots[slot] = Some(UnderWay { send_again: self.now, ..under_way });
    }

    /// Repeats the message that the home has not answered.
    pub(super) fn ask_again(&mut self, frames: &impl Frames, slot: usize) {
        let Some(under_way) = &self.slots[slot] else { return };
        match under_way.stage {
            Stage::Offering(Offering { wanted, milli, read_hot, word, .. }) => {
                let offered = PageLife { page: word.page(), epoch: word.epoch() };
                let live = word.state() == Some(PageState::Live);
                let offer = SwapMessage::Prepare { wanted, milli, read_hot, offered, live };
                self.tell_peer(slot, offer);
            }
            Stage::Noted { step: Step::Prepare(_), .. } => self.send_copy(frames, slot),
            Stage::Noted { .. } => {}
        }
    }

    /// The home has frozen its page. From here on the swap has a record.
    pub(super) fn ready(
        &mut self,
        frames: &impl Frames,
        slot: usize,
        ticket: u64,
        theirs: FrameId,
        epoch: Epoch,
        stale: bool,
    ) {
        let Some(UnderWay { id: swap, peer, stage: Stage::Offering(offering), .. }) =
            self.slots[slot]
        else {
            return;
        };
        if self.is_due(slot) {
            return self.give_up(slot);
        }
        let Offering { wanted, frame, word, .. } = offering;
        let live = word.state() == Some(PageState::Live);
        let in_frame = if live { frames.spare() } else { Some(frame) };
        let spare = in_frame.and_then(|frame| Some((frame, frames.word(frame)?)));
        // The offered page may have been freed, allocated or moved since.
        let unchanged =
            frames.word(frame) == Some(word) && is_possible(PageLife { page: wanted, epoch });
        let Some((in_frame, spare)) = spare.filter(|_| unchanged) else {
            return self.give_up(slot);
        };
        let incoming = PageLife { page: wanted, epoch };
        let record = Record {
            phase: Phase::Open,
            role: Role::Requester,
            peer,
            swap,
            out: PageLife { page: word.page(), epoch: word.epoch() },
            incoming,
            vacant: PageLife { page: spare.page(), epoch: spare.epoch() },
            out_frame: live.then_some(frame),
            in_frame: Some(in_frame),
            stale: stale && !self.bugs.has(Bug::ForgetStale),
        };
        let reserved = spare.apply(PageEvent::Reserved { page: wanted, epoch });
        let frozen = if live { word.apply(PageEvent::Frozen).map(Some) } else { Ok(None) };
        let (Ok(reserved), Ok(frozen)) = (reserved, frozen) else { return self.give_up(slot) };
        self.note(slot, &record);
        self.actions.push_back(PeerAction::StoreWord(in_frame, reserved));
        let mut prepared = Prepared { quiesced: true, ..Prepared::default() };
        if let Some(frozen) = frozen {
            let (page, who) = (record.out.page, Quiesce::Writers);
            self.actions.push_back(PeerAction::StoreWord(frame, frozen));
            self.actions.push_back(PeerAction::Quiesce { swap, frame, page, who });
            prepared.quiesced = self.bugs.has(Bug::SkipQuiesce);
        }
        let copy = PeerAction::Copy { swap, from: peer, theirs, ours: in_frame };
        self.actions.push_back(copy);
        if let Some(under_way) = &mut self.slots[slot] {
            under_way.stage = Stage::Noted { record, step: Step::Prepare(prepared) };
            under_way.ticket = ticket;
            under_way.copying = true;
        }
        self.send_copy(frames, slot);
    }

    /// Lets the home copy the offered page, once its writers are out.
    pub(super) fn send_copy(&mut self, frames: &impl Frames, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, ticket, .. }) = self.slots[slot]
        else {
            return;
        };
        let Step::Prepare(Prepared { quiesced: true, peer_copied: false, .. }) = step else {
            return;
        };
        // A free page needs no copy: the home ignores the frame.
        let frame = record.out_frame.or(record.in_frame).unwrap_or(FrameId(0));
        let stale = self.says_stale(frames, &record);
        self.tell_peer(slot, SwapMessage::Copy { ticket, frame, stale });
    }

    pub(super) fn peer_copied(&mut self, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, .. }) = &mut self.slots[slot]
        else {
            return;
        };
        if let (Role::Requester, Step::Prepare(prepared)) = (record.role, step) {
            prepared.peer_copied = true;
        }
        self.commit_when_copied(slot);
    }

    /// If both pages are copied, enters doubt and asks the metadata server to commit.
    pub(super) fn commit_when_copied(&mut self, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, .. }) = self.slots[slot] else {
            return;
        };
        let Step::Prepare(prepared) = step else { return };
        let copied = prepared.copied || self.bugs.has(Bug::CommitBeforeCopy);
        if record.role == Role::Requester && prepared.quiesced && prepared.peer_copied && copied {
            self.enter_doubt(slot, record);
            self.send_commit(slot);
            self.prefetch_lease(&record);
        }
    }

    pub(super) fn send_commit(&mut self, slot: usize) {
        let Some(UnderWay { id: swap, stage: Stage::Noted { record, .. }, .. }) = self.slots[slot]
        else {
            return;
        };
        let moved = |life: PageLife| PageLife { page: life.page, epoch: life.epoch.next() };
        let (page, offered) = (moved(record.incoming), moved(record.out));
        let commit = ToServer::Commit { swap, page, offered };
        self.actions.push_back(PeerAction::TellServer(commit));
    }

    pub(super) fn prepare_refused(&mut self, slot: usize, reason: PrepareRefusal) {
        let Some(UnderWay { stage: Stage::Offering(offering), .. }) = self.slots[slot] else {
            return;
        };
        let event = SwapEvent::PrepareRefused(offering.wanted, reason);
        self.actions.push_back(PeerAction::Record(event));
        self.give_up(slot);
    }
}
