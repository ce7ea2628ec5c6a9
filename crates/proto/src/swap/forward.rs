//! Writes while a page moves: clients of the old home write the page and log its lines, or the old
//! home's data plane writes it for them (forwarded writes). After the commit the new home gets the
//! dirty lines.

use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageState, RackId};
use rackpool_wire::swap::{SwapId, SwapMessage};

use super::in_flight::{Forwarding, Handover, Leaving, Prepared, Stage, Step, UnderWay, word_of};
use super::{Frames, PeerAction, Phase, Quiesce, Record, SwapEvent, SwapPeer};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// The longest interval of an unanswered message, in retries.
const LONGEST_PAUSE: u32 = 64;

/// Doubles the interval, up to the longest.
fn longer(pause: u32) -> u32 {
    (pause * 2).clamp(1, LONGEST_PAUSE)
}

impl UnderWay {
    /// Returns true if the new home must get the dirty lines before this rack turns its readers
    /// away.
    pub(super) fn has_to_hand_over(&self, record: &Record) -> bool {
        record.phase == Phase::Committed
            && record.written
            && self.handover != Handover::DirtyLinesApplied
    }

    /// When the next step of the page that goes is due.
    pub(super) fn leaves_at(&self, record: &Record) -> Time {
        match self.handover {
            _ if !self.has_to_hand_over(record) => self.deadline,
            Handover::Open { until, .. } | Handover::Closing { until, .. } => until,
            Handover::Due { at, .. } => at,
            Handover::DirtyLinesApplied => self.deadline,
        }
    }

    /// When `CopyIncomplete` is sent again.
    pub(super) fn asks_to_note_at(&self) -> Option<Time> {
        match self.forwarding {
            Forwarding::Asked { again } if !self.is_finishing() => Some(again),
            _ => None,
        }
    }
}

impl<B: Bugs> SwapPeer<B> {
    /// Returns true if this rack's data plane executes writes of the page for all clients and racks
    /// (it also does so if the page word is dirty-logged, which the shell checks itself). The page
    /// goes and its word is frozen. Before the decision, either the peer may not copy it yet, or
    /// its record says that the copy is incomplete; after the commit, only while the page is open.
    /// The caller must remember the lines written for [`PeerAction::SendDirtyLines`], and report
    /// [`PeerEvent::WriteWanted`](super::PeerEvent::WriteWanted) if a write is [not
    /// expected](Self::expects_no_writer).
    #[must_use]
    pub fn forwards(&self, page: PageId) -> bool {
        let is_given = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, step } if record.out.page == page => match step {
                // Earlier writers are still in the page, so no peer copies it yet.
                Step::Prepare(Prepared { quiesced: false, .. }) => true,
                Step::Prepare(_) | Step::InDoubt => swap.forwarding == Forwarding::Given,
                Step::Finish(_) => {
                    let is_open = matches!(swap.handover, Handover::Open { .. });
                    swap.forwarding == Forwarding::Given
                        && record.phase == Phase::Committed
                        && (is_open || self.bugs.has(Bug::WriteOnAfterTheCommit))
                }
            },
            _ => false,
        };
        self.slots.iter().flatten().any(is_given)
    }

    /// Returns true if the shell must report
    /// [`PeerEvent::WriteWanted`](super::PeerEvent::WriteWanted) when this page, which goes, is
    /// written or to be written.
    #[must_use]
    pub fn expects_no_writer(&self, page: PageId) -> bool {
        let is_meant = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, step: Step::Prepare(_) | Step::InDoubt } => {
                record.out.page == page && swap.forwarding == Forwarding::Unwanted
            }
            _ => false,
        };
        self.slots.iter().flatten().any(is_meant)
    }

    /// Returns true if the page was to come here and is lost.
    #[must_use]
    pub fn is_lost(&self, page: PageId) -> bool {
        let is_meant = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, .. } => swap.lost && record.incoming.page == page,
            Stage::Offering(_) => false,
        };
        self.slots.iter().flatten().any(is_meant)
    }

    /// A client or rack writes a page that goes, or waits to. Before the peer may copy the page,
    /// forwarding is expected at once; afterwards it starts when the peer has recorded that its
    /// copy is incomplete.
    pub(super) fn write_wanted(&mut self, frames: &impl Frames, page: PageId) {
        let again = self.now.after(self.rules.retry);
        for slot in 0..self.slots.len() {
            let Some(under_way) = &mut self.slots[slot] else { continue };
            let Stage::Noted { record, step } = under_way.stage else { continue };
            if record.out.page != page
                || record.out_frame.is_none()
                || under_way.forwarding != Forwarding::Unwanted
            {
                continue;
            }
            match step {
                Step::Prepare(Prepared { quiesced: false, .. }) => {
                    under_way.forwarding = Forwarding::Wanted;
                    self.open(frames, slot);
                }
                Step::Prepare(_) | Step::InDoubt => {
                    let asked = Forwarding::Asked { again };
                    let early = self.bugs.has(Bug::WriteBeforeNoted);
                    self.mark_written(slot, if early { Forwarding::Given } else { asked });
                    self.tell_peer(slot, SwapMessage::CopyIncomplete);
                }
                Step::Finish(_) => {}
            }
        }
    }

    /// The writers of the page that goes are out. If forwarding is expected, the record is marked
    /// before the first message that lets the peer copy the page, and that message announces it.
    pub(super) fn may_be_copied(&mut self, frames: &impl Frames, slot: usize) {
        if self.slots[slot].is_some_and(|swap| swap.forwarding == Forwarding::Wanted) {
            self.mark_written(slot, Forwarding::Given);
            self.open(frames, slot);
        }
    }

    /// Begins dirty logging of the page that goes.
    fn open(&mut self, frames: &impl Frames, slot: usize) {
        if let Some(UnderWay { stage: Stage::Noted { record, .. }, .. }) = self.slots[slot]
            && let Some(FrameWord { frame, word }) =
                word_of(frames, record.out_frame, record.out.page)
            && let Ok(dirty_logged) = word.apply(PageEvent::DirtyLogged)
        {
            self.actions.push_back(PeerAction::StoreWord(frame, dirty_logged));
        }
    }

    /// Sets the mark *written* in the record.
    fn mark_written(&mut self, slot: usize, forwarding: Forwarding) {
        if let Some(under_way) = &mut self.slots[slot]
            && let Stage::Noted { record, .. } = &mut under_way.stage
        {
            record.written = true;
            under_way.forwarding = forwarding;
            let record = *record;
            self.note(slot, &record);
        }
    }

    /// Returns true if the messages that let the peer copy the page say that it is written.
    pub(super) fn says_stale(&self, record: &Record) -> bool {
        record.written && !self.bugs.has(Bug::SayNothingOfWriters)
    }

    /// Repeats `CopyIncomplete` when it is due.
    pub(super) fn ask_to_note_again(&mut self, slot: usize) {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return };
        if under_way.asks_to_note_at().is_some_and(|again| now >= again) {
            under_way.forwarding = Forwarding::Asked { again: now.after(retry) };
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

    /// The peer has recorded that its copy is incomplete: forwarding starts.
    pub(super) fn incomplete_is_noted(&mut self, frames: &impl Frames, slot: usize) {
        if let Some(under_way) = &mut self.slots[slot]
            && matches!(under_way.forwarding, Forwarding::Asked { .. })
        {
            under_way.forwarding = Forwarding::Given;
            if !under_way.is_finishing() {
                self.open(frames, slot);
            }
        }
    }

    /// Returns true if the new home has all dirty lines. Otherwise advances the handover: closes
    /// the page, opens it again for a stopped writer, or sends the lines.
    pub(super) fn hand_over(
        &mut self,
        slot: usize,
        record: &Record,
        FrameWord { frame, word }: FrameWord,
    ) -> bool {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return false };
        if !under_way.has_to_hand_over(record) || self.bugs.has(Bug::LeaveBeforeApplied) {
            return true;
        }
        let (swap, page, to) = (under_way.id, record.out.page, under_way.peer);
        match under_way.handover {
            Handover::Open { until, pause } if now >= until => {
                let is_restarted = under_way.forwarding == Forwarding::Never;
                let hasty = self.bugs.has(Bug::SendBeforeWritersAreOut)
                    || (is_restarted && self.bugs.has(Bug::TrustWritersOverARestart));
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
                let known = under_way.forwarding != Forwarding::Never
                    || self.bugs.has(Bug::TrustDirtyLinesOverARestart);
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

    /// Returns true if the page is still here because its new home lacks dirty lines.
    pub(super) fn still_hands_over(&self, slot: usize, record: &Record) -> bool {
        let leaves = |swap: &UnderWay| match swap.stage {
            Stage::Noted { step: Step::Finish(finish), .. } => finish.out == Leaving::Unknown,
            _ => false,
        };
        self.slots[slot].is_some_and(|swap| leaves(&swap) && swap.has_to_hand_over(record))
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
        let Some(UnderWay { peer, copying, caught_up, stage, .. }) = self.slots[slot] else {
            return;
        };
        let Stage::Noted { record, step: step @ (Step::InDoubt | Step::Finish(_)) } = stage else {
            return;
        };
        if peer != from || record.phase == Phase::GivenUp {
            return;
        }
        let incoming = word_of(frames, record.in_frame, record.incoming.page);
        let arriving = incoming.filter(|found| found.word.state() == Some(PageState::Arriving));
        let Some(FrameWord { frame, .. }) = arriving else {
            // The page is readable here already, or the frame holds another page by now.
            if step != Step::InDoubt {
                self.tell_peer(slot, SwapMessage::DirtyLinesApplied);
            }
            return;
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
        self.hurry(slot);
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

    /// The new home has applied the dirty lines of the page that this rack gave.
    pub(super) fn peer_applied(&mut self, rack: RackId, swap: SwapId) {
        let Some(slot) = self.slot_of(swap) else { return };
        let Some(under_way) = &mut self.slots[slot] else { return };
        if under_way.peer == rack && under_way.is_finishing() {
            under_way.handover = Handover::DirtyLinesApplied;
        }
    }
}
