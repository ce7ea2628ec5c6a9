//! The steps after the decision. Each examines the page words first, so it is correct regardless of
//! how many steps were done before a crash.

use rackpool_model::{FrameWord, PageEvent, PageId, PageState, PageWord, RackId};
use rackpool_wire::swap::{PageLife, SwapId, SwapMessage};

use super::forward::longer;
use super::in_flight::{Finish, Leaving, Stage, Step, UnderWay, vacated, word_of};
use super::{Frames, PeerAction, Phase, Quiesce, Record, SwapEvent, SwapPeer};
use crate::planted_bugs::{Bug, Bugs};

impl<B: Bugs> SwapPeer<B> {
    /// Advances a decided swap: brings the page words in line with the decision.
    pub(super) fn finish(&mut self, frames: &impl Frames, slot: usize) {
        let Some((record, _)) = self.finishing(slot) else { return };
        if record.phase == Phase::Committed {
            self.leave(frames, slot, &record);
            self.settle(frames, slot, &record);
        } else {
            self.undo(frames, slot, &record);
        }
        if let Some((_, Finish { out: Leaving::Done, settled: true, .. })) = self.finishing(slot) {
            self.forget(slot);
        }
    }

    fn finishing(&self, slot: usize) -> Option<(Record, Finish)> {
        match self.slots[slot]?.stage {
            Stage::Noted { record, step: Step::Finish(finish) } => Some((record, finish)),
            _ => None,
        }
    }

    fn finish_of(&mut self, slot: usize) -> Option<&mut Finish> {
        match &mut self.slots[slot].as_mut()?.stage {
            Stage::Noted { step: Step::Finish(finish), .. } => Some(finish),
            _ => None,
        }
    }

    fn set_leaving(&mut self, slot: usize, out: Leaving) {
        if let Some(finish) = self.finish_of(slot) {
            finish.out = out;
        }
    }

    fn set_settled(&mut self, slot: usize) {
        if let Some(finish) = self.finish_of(slot) {
            finish.settled = true;
        }
    }

    /// The swap is aborted: both frames get their previous state back.
    fn undo(&mut self, frames: &impl Frames, slot: usize, record: &Record) {
        let Some((_, finish)) = self.finishing(slot) else { return };
        if finish.out == Leaving::Unknown {
            self.set_leaving(slot, Leaving::Done);
            let out = word_of(frames, record.out_frame, record.out.page);
            if let Some(FrameWord { frame, word }) = out
                && let Ok(thawed) = word.apply(PageEvent::Thawed)
            {
                self.actions.push_back(PeerAction::StoreWord(frame, thawed));
            }
        }
        let lands = self.slots[slot].is_some_and(|under_way| under_way.copying);
        if lands && !self.bugs.has(Bug::FreeSpareEarly) {
            return;
        }
        self.set_settled(slot);
        let PageLife { page, epoch } = record.vacant;
        let incoming = word_of(frames, record.in_frame, record.incoming.page);
        if let Some(FrameWord { frame, word }) = incoming
            && let Ok(free) = word.apply(PageEvent::Cancelled { page, epoch })
        {
            self.actions.push_back(PeerAction::StoreWord(frame, free));
        }
    }

    /// The page that goes: when it is readable at its new home, stores *leaving* and calls the
    /// leases back.
    fn leave(&mut self, frames: &impl Frames, slot: usize, record: &Record) {
        let Some((_, Finish { out: Leaving::Unknown, .. })) = self.finishing(slot) else { return };
        let out = word_of(frames, record.out_frame, record.out.page);
        let Some(found) = out else { return self.set_leaving(slot, Leaving::Done) };
        let FrameWord { frame, word } = found;
        if word.state() != Some(PageState::Leaving) {
            if !self.hand_over(slot, record, found) || !self.may_turn_readers_away(slot) {
                return;
            }
            let Ok(leaving) = word.apply(PageEvent::Left) else {
                return self.set_leaving(slot, Leaving::Done);
            };
            self.actions.push_back(PeerAction::StoreWord(frame, leaving));
            self.actions.push_back(PeerAction::Record(SwapEvent::Departed(record.out.page)));
        }
        let (swap, page, who) = (record.swap, record.out.page, Quiesce::Holders);
        self.actions.push_back(PeerAction::Quiesce { swap, frame, page, who });
        self.set_leaving(slot, Leaving::Holders);
        if self.bugs.has(Bug::LeftBeforeReturned) {
            self.tell_peer(slot, SwapMessage::Quiesced);
        }
    }

    /// Returns true if this rack may turn its readers away. Both homes have the same bytes now, and
    /// no rack writes the page before this one has quiesced it. Readers therefore continue here
    /// until they can continue at the new home, but for one `retry` at most, since writers wait
    /// meanwhile.
    fn may_turn_readers_away(&self, slot: usize) -> bool {
        let waits_for_ever = self.bugs.has(Bug::WaitForReaders);
        self.slots[slot].is_some_and(|under_way| {
            under_way.lease_prefetched || (self.now >= under_way.deadline && !waits_for_ever)
        })
    }

    /// Records that readers of this rack can continue at the new home.
    pub(super) fn lease_prefetched(&mut self, page: PageId) {
        for under_way in self.slots.iter_mut().flatten() {
            under_way.lease_prefetched |= under_way.gives(page);
        }
    }

    /// The page that came: makes it readable once its copy is complete, and writable once its old
    /// home has quiesced it.
    fn settle(&mut self, frames: &impl Frames, slot: usize, record: &Record) {
        let Some((_, Finish { settled: false, .. })) = self.finishing(slot) else { return };
        let incoming = word_of(frames, record.in_frame, record.incoming.page);
        let Some(FrameWord { frame, mut word }) = incoming else { return self.set_settled(slot) };
        if let Ok(arrived) = word.apply(PageEvent::Arrived) {
            if !self.may_be_read(slot, record) {
                return;
            }
            word = arrived;
            if self.bugs.has(Bug::ReuseEpoch) {
                word = PageWord::new(PageState::Frozen, record.incoming.epoch, word.page());
            }
            self.actions.push_back(PeerAction::StoreWord(frame, word));
            self.actions.push_back(PeerAction::Record(SwapEvent::Arrived(word.page())));
            self.tell_peer(slot, SwapMessage::DirtyLinesApplied);
        }
        let peer_left = self.slots[slot].is_some_and(|under_way| under_way.peer_left);
        match word.apply(PageEvent::Thawed) {
            Ok(thawed) if peer_left || self.bugs.has(Bug::ThawBeforeQuiesced) => {
                self.actions.push_back(PeerAction::StoreWord(frame, thawed));
                self.actions.push_back(PeerAction::Record(SwapEvent::Thawed(word.page())));
                self.set_settled(slot);
            }
            Ok(_) => self.ask_whether_left(slot),
            // It was thawed before a crash.
            Err(_) => self.set_settled(slot),
        }
    }

    pub(super) fn ask_whether_left(&mut self, slot: usize) {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return };
        if now < under_way.send_again {
            return;
        }
        if let Stage::Noted { step: Step::Finish(finish), .. } = &mut under_way.stage {
            finish.pause = longer(finish.pause);
            under_way.send_again = now.after(retry.saturating_mul(finish.pause));
        }
        self.tell_peer(slot, SwapMessage::IsQuiesced);
    }

    /// These users have left the frame of the page that goes.
    pub(super) fn left_by(&mut self, frames: &impl Frames, slot: usize, who: Quiesce) {
        let Some((record, finish)) = self.finishing(slot) else { return };
        match (finish.out, who) {
            // Every access that loads the word from here on is turned away. An access of this rack
            // that loaded it earlier reads bytes that do not change, and takes effect at that load.
            (Leaving::Holders, Quiesce::Holders) => {
                self.set_leaving(slot, Leaving::Readers);
                self.tell_peer(slot, SwapMessage::Quiesced);
                let (swap, page, who) = (record.swap, record.out.page, Quiesce::Everyone);
                let Some(frame) = record.out_frame else { return };
                self.actions.push_back(PeerAction::Quiesce { swap, frame, page, who });
                if self.bugs.has(Bug::ReleaseBeforeQuiesce) {
                    self.release(frames, slot, &record);
                }
            }
            (Leaving::Readers, Quiesce::Everyone) => self.release(frames, slot, &record),
            _ => {}
        }
    }

    /// The vacated frame has no users any more: it becomes free under the vacant id.
    fn release(&mut self, frames: &impl Frames, slot: usize, record: &Record) {
        self.set_leaving(slot, Leaving::Done);
        let next = record.out_frame.and_then(|frame| {
            let word = vacated(frames.word(frame)?, record.vacant)?;
            Some(FrameWord { frame, word })
        });
        if let Some(FrameWord { frame, word }) = next {
            self.actions.push_back(PeerAction::StoreWord(frame, word));
        }
    }

    /// The peer asks whether this rack has quiesced the page that it gave.
    pub(super) fn asked_whether_quiesced(&mut self, rack: RackId, swap: SwapId) {
        let Some(slot) = self.slot_of(swap) else {
            // An unknown swap is over, or belongs to memory that is gone. But a damaged record may
            // be that of this swap.
            if self.has_no_record_of(swap) {
                self.tell(rack, swap, SwapMessage::Quiesced);
            }
            return;
        };
        let Some(UnderWay { peer, .. }) = self.slots[slot] else { return };
        if peer != rack {
            return;
        }
        if self.bugs.has(Bug::LeftInDoubt) && self.finishing(slot).is_none() {
            self.tell_peer(slot, SwapMessage::Quiesced);
        }
        // The swap is committed, or the peer would not ask.
        self.peer_heard(slot);
        match self.finishing(slot) {
            Some(_) if self.slots[slot].is_some_and(|swap| swap.hands_over()) => {
                self.hand_over_now(slot);
            }
            Some((record @ Record { phase: Phase::Committed, .. }, finish)) => {
                let reads_on = finish.out == Leaving::Unknown && self.bugs.has(Bug::LeftWhileRead);
                if finish.out.has_left() || reads_on {
                    self.tell_peer(slot, SwapMessage::Quiesced);
                } else if !self.bugs.has(Bug::WaitForReaders) {
                    // The page is readable at its new home, and a writer may wait there.
                    self.lease_prefetched(record.out.page);
                }
            }
            _ => {}
        }
    }

    /// The peer has quiesced the page that it gave.
    pub(super) fn peer_left(&mut self, rack: RackId, swap: SwapId) {
        for slot in 0..self.slots.len() {
            let any = self.bugs.has(Bug::TakeAnyLeft);
            if let Some(under_way) = &mut self.slots[slot]
                && under_way.peer == rack
                && (under_way.id == swap || any)
                && (under_way.is_in_doubt() || under_way.is_finishing())
            {
                under_way.peer_left = true;
                self.peer_heard(slot);
            }
        }
    }
}
