//! Writes while a page moves. While its word is dirty-logged, clients of the old home write the
//! page and log its lines, and the old home's data plane writes it for others (forwarded writes).
//! After the commit the new home gets the dirty lines.

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState, PageWord, RackId};
use rackpool_wire::swap::{SwapId, SwapMessage};

use super::in_flight::{Finish, Handover, Leaving, Prepared, Stage, Step, UnderWay, word_of};
use super::{Frames, PeerAction, Phase, Quiesce, Record, SwapEvent, SwapPeer};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// The longest interval of an unanswered message, in retries.
const LONGEST_PAUSE: u32 = 64;

/// Doubles the interval, up to the longest.
pub(super) fn longer(pause: u32) -> u32 {
    (pause * 2).clamp(1, LONGEST_PAUSE)
}

impl UnderWay {
    /// When the next step of the page that goes is due.
    pub(super) const fn leaves_at(&self) -> Time {
        match self.handover {
            Handover::Open { until, .. } | Handover::Closing { until, .. } => until,
            Handover::Due { at, .. } => at,
            Handover::DirtyLinesApplied => self.deadline,
        }
    }

    /// Returns true if the page that goes is still here because it is not known to be readable at
    /// its new home.
    pub(super) fn hands_over(&self) -> bool {
        self.handover != Handover::DirtyLinesApplied
            && matches!(
                self.stage,
                Stage::Noted { step: Step::Finish(Finish { out: Leaving::Unknown, .. }), .. }
            )
    }

    /// When `CopyIncomplete` is sent again.
    pub(super) fn asks_to_note_at(&self) -> Option<Time> {
        self.asked_to_note.filter(|_| !self.is_finishing())
    }
}

impl<B: Bugs> SwapPeer<B> {
    /// Returns true if the page was to come here and is lost.
    #[must_use]
    pub fn is_lost(&self, page: PageId) -> bool {
        let is_meant = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, .. } => swap.lost && record.incoming.page == page,
            Stage::Offering(_) => false,
        };
        self.slots.iter().flatten().any(is_meant)
    }

    /// A client or rack waits to write a page that goes. Before the peer may copy the page, dirty
    /// logging begins at once; afterwards it begins when the peer has recorded that its copy is
    /// incomplete.
    pub(super) fn write_wanted(&mut self, frames: &impl Frames, page: PageId) {
        let again = self.now.after(self.rules.retry);
        for slot in 0..self.slots.len() {
            let Some(under_way) = &mut self.slots[slot] else { continue };
            let Stage::Noted { record, step } = under_way.stage else { continue };
            let out = word_of(frames, record.out_frame, record.out.page);
            let unlogged = out.is_some_and(|found| !found.word.is_dirty_logged());
            if record.out.page != page || !unlogged {
                continue;
            }
            match step {
                Step::Prepare(Prepared { quiesced: false, .. }) => self.log_writes(frames, slot),
                Step::Prepare(_) | Step::InDoubt if under_way.asked_to_note.is_none() => {
                    under_way.asked_to_note = Some(again);
                    if self.bugs.has(Bug::WriteBeforeNoted) {
                        self.log_writes(frames, slot);
                    }
                    self.tell_peer(slot, SwapMessage::CopyIncomplete);
                }
                _ => {}
            }
        }
    }

    /// Begins dirty logging of the page that goes.
    fn log_writes(&mut self, frames: &impl Frames, slot: usize) {
        if let Some(UnderWay { stage: Stage::Noted { record, .. }, .. }) = self.slots[slot]
            && let Some(FrameWord { frame, word }) =
                word_of(frames, record.out_frame, record.out.page)
            && let Ok(dirty_logged) = word.apply(PageEvent::DirtyLogged)
        {
            self.actions.push_back(PeerAction::StoreWord(frame, dirty_logged));
        }
    }

    /// Returns true if the messages that let the peer copy the page say that it is written. The
    /// first of them says so if later ones do, unless the peer has recorded it meanwhile.
    pub(super) fn says_stale(&self, frames: &impl Frames, record: &Record) -> bool {
        let word = record.out_frame.and_then(|frame| frames.word(frame));
        word.is_some_and(PageWord::is_dirty_logged) && !self.bugs.has(Bug::SayNothingOfWriters)
    }

    /// Repeats `CopyIncomplete` when it is due.
    pub(super) fn ask_to_note_again(&mut self, slot: usize) {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return };
        if under_way.asks_to_note_at().is_some_and(|again| now >= again) {
            under_way.asked_to_note = Some(now.after(retry));
            self.tell_peer(slot, SwapMessage::CopyIncomplete);
        }
    }

    /// The peer writes the page that it gives: records that the copy here is incomplete.
    pub(super) fn note_stale(&mut self, slot: usize) {
        let Some(UnderWay { stage: Stage::Noted { record, step }, .. }) = &mut self.slots[slot]
        else {
            return;
        };
        let may_be = record.in_frame.is_some() && !record.stale;
        if may_be && !matches!(step, Step::Finish(_)) && !self.bugs.has(Bug::ForgetStale) {
            record.stale = true;
            let record = *record;
            self.note(slot, &record);
        }
    }

    /// The peer sent `CopyIncomplete`.
    pub(super) fn copy_is_incomplete(&mut self, slot: usize) {
        let Some(UnderWay { stage, .. }) = &self.slots[slot] else { return };
        let Stage::Noted { record, step: Step::Prepare(_) | Step::InDoubt } = stage else { return };
        if record.in_frame.is_some() {
            self.note_stale(slot);
            self.tell_peer(slot, SwapMessage::IncompleteNoted);
        }
    }

    /// The peer has recorded that its copy is incomplete: the page may be written.
    pub(super) fn incomplete_is_noted(&mut self, frames: &impl Frames, slot: usize) {
        if let Some(under_way) = &mut self.slots[slot]
            && under_way.asked_to_note.take().is_some()
            && !under_way.is_finishing()
        {
            self.log_writes(frames, slot);
        }
    }

    /// Returns true if the page is readable at the new home. Otherwise advances the handover:
    /// closes the page, opens it again for a stopped writer, or sends the lines.
    pub(super) fn hand_over(
        &mut self,
        slot: usize,
        record: &Record,
        FrameWord { frame, word }: FrameWord,
    ) -> bool {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return false };
        let (swap, page, to) = (under_way.id, record.out.page, under_way.peer);
        match under_way.handover {
            _ if self.bugs.has(Bug::LeaveBeforeApplied) => return true,
            Handover::DirtyLinesApplied => return true,
            Handover::Open { until, pause } if now >= until => {
                let hasty = self.bugs.has(Bug::SendBeforeWritersAreOut)
                    || (under_way.restarted && self.bugs.has(Bug::TrustWritersOverARestart));
                under_way.handover = if hasty || self.bugs.has(Bug::SendWhileOpen) {
                    Handover::Due { at: now, pause }
                } else {
                    Handover::Closing {
                        until: now.after(retry),
                        pause,
                        dirty_logged: word.is_dirty_logged(),
                    }
                };
                if let Ok(closed) = word.apply(PageEvent::Closed)
                    && !self.bugs.has(Bug::SendWhileOpen)
                {
                    self.actions.push_back(PeerAction::StoreWord(frame, closed));
                }
                let who = Quiesce::DirtyLoggers;
                self.actions.push_back(PeerAction::Quiesce { swap, frame, page, who });
            }
            Handover::Closing { until, pause, dirty_logged } if now >= until => {
                let pause = longer(pause);
                let until = now.after(retry.saturating_mul(pause));
                under_way.handover = Handover::Open { until, pause };
                self.actions.push_back(PeerAction::CancelQuiesce(swap, page));
                if let Ok(open) = word.apply(PageEvent::DirtyLogged)
                    && dirty_logged
                {
                    self.actions.push_back(PeerAction::StoreWord(frame, open));
                }
            }
            Handover::Due { at, pause } if now >= at => {
                let pause = longer(pause);
                let at = now.after(retry.saturating_mul(pause));
                under_way.handover = Handover::Due { at, pause };
                let known = !under_way.restarted || self.bugs.has(Bug::TrustDirtyLinesOverARestart);
                self.actions.push_back(PeerAction::SendDirtyLines { swap, to, frame, known });
            }
            _ => {}
        }
        false
    }

    /// The last writer of a closed page is out: the dirty lines are due.
    pub(super) fn closed(&mut self, slot: usize) {
        let at = self.now;
        if let Some(under_way) = &mut self.slots[slot]
            && matches!(under_way.handover, Handover::Closing { .. })
        {
            under_way.handover = Handover::Due { at, pause: 0 };
        }
    }

    /// The new home asks for the dirty lines: they are sent with the next step if they are due.
    pub(super) fn hand_over_now(&mut self, slot: usize) {
        let now = self.now;
        if let Some(UnderWay { handover: Handover::Due { at, .. }, .. }) = &mut self.slots[slot] {
            *at = now;
        }
    }

    /// The dirty lines of the incoming page were received. So the swap is committed, and the page
    /// is not written at its old home any more.
    pub(super) fn dirty_lines_received(
        &mut self,
        frames: &impl Frames,
        from: RackId,
        swap: SwapId,
        theirs: FrameId,
        known: bool,
    ) {
        let Some(slot) = self.slot_of(swap) else {
            if self.has_no_record_of(swap) {
                self.tell(from, swap, SwapMessage::DirtyLinesApplied);
            }
            return;
        };
        if self.slots[slot].is_none_or(|under_way| under_way.peer != from) {
            return;
        }
        self.peer_heard(slot);
        let Some(UnderWay { copying, caught_up, stage, .. }) = self.slots[slot] else { return };
        let Stage::Noted { record: record @ Record { phase: Phase::Committed, .. }, .. } = stage
        else {
            return;
        };
        let incoming = word_of(frames, record.in_frame, record.incoming.page);
        let arriving = incoming.filter(|found| found.word.state() == Some(PageState::Arriving));
        let Some(FrameWord { frame, .. }) = arriving else {
            // The page is readable here already, or the frame holds another page by now.
            return self.tell_peer(slot, SwapMessage::DirtyLinesApplied);
        };
        if let Some(under_way) = &mut self.slots[slot]
            && record.stale
            && !copying
            && !caught_up
        {
            if known {
                under_way.caught_up = true;
                self.actions.push_back(PeerAction::ApplyDirtyLines { swap, frame });
            } else {
                under_way.copying = true;
                let copy = PeerAction::Copy { swap, from, theirs, ours: frame };
                self.actions.push_back(copy);
            }
        }
    }

    /// Returns true if the copy of the incoming page is complete. Otherwise its old home is asked
    /// for the dirty lines.
    pub(super) fn may_be_read(&mut self, slot: usize, record: &Record) -> bool {
        let Some(under_way) = &mut self.slots[slot] else { return false };
        if !record.stale || under_way.caught_up || self.bugs.has(Bug::ReadStaleCopy) {
            return true;
        }
        if !under_way.peer_left {
            self.ask_whether_left(slot);
        } else if !core::mem::replace(&mut under_way.lost, true) {
            // A peer that has quiesced the page, or has no record, has no lines to send: its memory
            // is another one.
            self.actions.push_back(PeerAction::Record(SwapEvent::Lost(record.incoming.page)));
        }
        false
    }

    /// The page that this rack gave is readable at its new home.
    pub(super) fn peer_applied(&mut self, slot: usize) {
        self.peer_heard(slot);
        if let Some(under_way) = &mut self.slots[slot]
            && under_way.is_finishing()
        {
            under_way.handover = Handover::DirtyLinesApplied;
        }
    }
}
