//! The home's side of a swap.

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState, RackId};
use rackpool_wire::swap::{Between, PageLife, PrepareRefusal, SwapMessage};

use super::in_flight::{Prepared, Stage, Step, UnderWay};
use super::record::is_possible;
use super::{Frames, PeerAction, Phase, Quiesce, Record, Role, SwapPeer};
use crate::planted_bugs::{Bug, Bugs};

/// The fields of a [`SwapMessage::Prepare`].
#[derive(Clone, Copy)]
struct Asked {
    wanted: PageId,
    milli: u64,
    read_hot: bool,
    offered: PageLife,
    live: bool,
}

impl<B: Bugs> SwapPeer<B> {
    pub(super) fn offered(&mut self, frames: &impl Frames, rack: RackId, between: Between) {
        let Between { swap, message } = between;
        let SwapMessage::Prepare { wanted, milli, read_hot, offered, live } = message else {
            return;
        };
        let asked = Asked { wanted, milli, read_hot, offered, live };
        if let Some(slot) = self.slot_of(swap) {
            if self.is_same(slot, rack, &asked) {
                self.send_prepared(frames, slot);
            } else {
                self.tell(rack, swap, SwapMessage::Aborted);
            }
            return;
        }
        match self.decide_offer(frames, &asked) {
            Err(refusal) => self.tell(rack, swap, SwapMessage::Refused(refusal)),
            Ok((slot, under_way)) => {
                let record = Record { peer: rack, swap, ..under_way };
                // Writers are expected, at the requester or here.
                let is_written = !read_hot || frames.heat(wanted).written;
                self.accept(frames, slot, record, is_written);
            }
        }
    }

    fn is_same(&self, slot: usize, rack: RackId, asked: &Asked) -> bool {
        let Some(UnderWay { stage: Stage::Noted { record, .. }, peer, .. }) = self.slots[slot]
        else {
            return false;
        };
        let pages = (record.out.page, record.incoming, record.in_frame.is_some());
        record.role == Role::Home
            && peer == rack
            && pages == (asked.wanted, asked.offered, asked.live)
    }

    /// Decides whether to give the page away; if so, returns the slot and the record, whose peer
    /// and swap the caller fills in.
    fn decide_offer(
        &self,
        frames: &impl Frames,
        asked: &Asked,
    ) -> Result<(usize, Record), PrepareRefusal> {
        let Asked { wanted, offered, live, .. } = *asked;
        let FrameWord { frame: out_frame, word } =
            frames.find(wanted).ok_or(PrepareRefusal::Unavailable)?;
        let taken = self.is_busy(wanted) || self.is_busy(offered.page);
        let known = frames.find(offered.page).is_some();
        // A requester that mostly reads may keep a replica. Others try again when the page is not
        // shared any more.
        if word.state() == Some(PageState::Shared) && asked.read_hot && !taken {
            return Err(PrepareRefusal::ReadHot);
        }
        if word.state() != Some(PageState::Live) || taken || known || !is_possible(offered) {
            return Err(PrepareRefusal::Unavailable);
        }
        if frames.stays(wanted) {
            let read_hot = asked.read_hot && frames.heat(wanted).read_hot;
            return Err(if read_hot { PrepareRefusal::ReadHot } else { PrepareRefusal::Rests });
        }
        if frames.heat(wanted).milli >= asked.milli {
            let kept =
                if asked.read_hot { PrepareRefusal::ReadHot } else { PrepareRefusal::Hotter };
            return Err(kept);
        }
        let slot = self.empty_slot(Role::Home).ok_or(PrepareRefusal::Full)?;
        let (in_frame, vacant) = if live {
            let spare = frames.spare().ok_or(PrepareRefusal::Full)?;
            let word = frames.word(spare).ok_or(PrepareRefusal::Full)?;
            (Some(spare), PageLife { page: word.page(), epoch: word.epoch() })
        } else {
            (None, PageLife { page: offered.page, epoch: offered.epoch.next() })
        };
        let record = Record {
            phase: Phase::Open,
            role: Role::Home,
            peer: RackId(0),
            swap: rackpool_wire::swap::SwapId(0),
            out: PageLife { page: wanted, epoch: word.epoch() },
            incoming: offered,
            vacant,
            out_frame: Some(out_frame),
            in_frame,
            stale: false,
        };
        Ok((slot, record))
    }

    fn accept(&mut self, frames: &impl Frames, slot: usize, record: Record, is_written: bool) {
        let PageLife { page, epoch } = record.incoming;
        let next = |frame: Option<FrameId>, event| {
            let frame = frame?;
            Some((frame, frames.word(frame)?.apply(event).ok()?))
        };
        let reserved = next(record.in_frame, PageEvent::Reserved { page, epoch });
        let Some((frame, mut frozen)) = next(record.out_frame, PageEvent::Frozen) else { return };
        if is_written && let Ok(dirty_logged) = frozen.apply(PageEvent::DirtyLogged) {
            frozen = dirty_logged;
        }
        self.note(slot, &record);
        if let Some((frame, word)) = reserved {
            self.actions.push_back(PeerAction::StoreWord(frame, word));
        }
        self.actions.push_back(PeerAction::StoreWord(frame, frozen));
        let (swap, page, who) = (record.swap, record.out.page, Quiesce::Writers);
        self.actions.push_back(PeerAction::Quiesce { swap, frame, page, who });
        let quiesced = self.bugs.has(Bug::SkipQuiesce);
        let prepared = Prepared { quiesced, ..Prepared::default() };
        let deadline = self.now.after(self.rules.grace);
        let stage = Stage::Noted { record, step: Step::Prepare(prepared) };
        let under_way = UnderWay::new(swap, record.peer, stage, deadline);
        self.slots[slot] = Some(UnderWay { ticket: self.number(), ..under_way });
        self.send_prepared(frames, slot);
    }

    /// Sends `Prepared`, once the page's writers and leases for writing are out.
    pub(super) fn send_prepared(&mut self, frames: &impl Frames, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, ticket, .. }) = self.slots[slot]
        else {
            return;
        };
        let (Step::Prepare(Prepared { quiesced: true, .. }), Some(frame)) =
            (step, record.out_frame)
        else {
            return;
        };
        let (epoch, stale) = (record.out.epoch, self.says_stale(frames, &record));
        self.tell_peer(slot, SwapMessage::Prepared { ticket, frame, epoch, stale });
    }

    /// Returns true if the message is about this acceptance of the swap, not an earlier one.
    fn is_meant(&self, slot: usize, ticket: u64) -> bool {
        let is_home = |under_way: &UnderWay| {
            let same = under_way.ticket == ticket || self.bugs.has(Bug::IgnoreTicket);
            under_way.role() == Role::Home && same
        };
        self.slots[slot].as_ref().is_some_and(is_home)
    }

    pub(super) fn peer_asks_to_copy(
        &mut self,
        slot: usize,
        ticket: u64,
        theirs: FrameId,
        stale: bool,
    ) {
        if !self.is_meant(slot, ticket) {
            return self.tell_peer(slot, SwapMessage::Aborted);
        }
        if stale && !self.bugs.has(Bug::CopyPastTheMark) {
            self.note_stale(slot);
        }
        let Some(UnderWay { id: swap, peer, stage, copying, .. }) = &mut self.slots[slot] else {
            return;
        };
        let Stage::Noted { record, step } = stage else { return };
        match (step, record.in_frame) {
            (Step::Prepare(Prepared { quiesced: false, .. }), _) => {}
            (Step::Prepare(Prepared { copied: false, .. }), Some(ours)) => {
                if !*copying {
                    *copying = true;
                    let copy = PeerAction::Copy { swap: *swap, from: *peer, theirs, ours };
                    self.actions.push_back(copy);
                }
            }
            (Step::Prepare(_), _) => self.copied_here(slot),
            (Step::InDoubt, _) => self.tell_peer(slot, SwapMessage::Copied),
            (Step::Finish(_), _) => {}
        }
    }

    /// The incoming page is copied, or needs no copy: the home enters doubt, so the requester may
    /// have the swap committed.
    pub(super) fn copied_here(&mut self, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, .. }) = &mut self.slots[slot]
        else {
            return;
        };
        let record = *record;
        if let (true, Step::Prepare(prepared)) = (self.bugs.has(Bug::CopiedBeforeDoubt), step) {
            prepared.copied = true;
        } else {
            self.enter_doubt(slot, record);
        }
        self.tell_peer(slot, SwapMessage::Copied);
        self.prefetch_lease(&record);
    }
}
