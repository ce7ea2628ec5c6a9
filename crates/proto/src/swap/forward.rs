//! Writes go on while a page moves: its old home's clients note them and carry them out, or its
//! processor does; and the new home gets what its copy lacks when the swap is committed.

use rackpool_model::{FrameId, PageEvent, PageId, PageState, PageWord, RackId};
use rackpool_wire::swap::{SwapId, SwapMessage};

use super::under_way::{Forwarding, Handover, Leaving, Prepared, Stage, Step, UnderWay, word_of};
use super::{Frames, Phase, Quiesce, RackAction, Record, SwapEvent, SwapPeer};
use crate::Time;
use crate::planted::{Bug, Bugs};

/// What is not answered is sent ever less often, down to once in so many retries.
const LONGEST_PAUSE: u32 = 64;

/// Twice as many retries.
fn longer(pause: u32) -> u32 {
    (pause * 2).clamp(1, LONGEST_PAUSE)
}

impl UnderWay {
    /// Whether the new home has to get what was written here before this rack turns its readers
    /// away.
    pub(super) fn has_to_hand_over(&self, record: &Record) -> bool {
        record.phase == Phase::Committed
            && record.written
            && self.handover != Handover::DirtyLinesApplied
    }

    /// When something is due of a page that is to leave.
    pub(super) fn leaves_at(&self, record: &Record) -> Time {
        match self.handover {
            _ if !self.has_to_hand_over(record) => self.deadline,
            Handover::Open { until, .. } | Handover::Closing { until, .. } => until,
            Handover::Due { at, .. } => at,
            Handover::DirtyLinesApplied => self.deadline,
        }
    }

    /// When the peer is asked again to note that its copy lacks something.
    pub(super) fn asks_to_note_at(&self) -> Option<Time> {
        match self.forwarding {
            Forwarding::Asked { again } if !self.is_finishing() => Some(again),
            _ => None,
        }
    }
}

impl<B: Bugs> SwapPeer<B> {
    /// Whether this rack's processor writes the page for everybody: it goes, its word is frozen,
    /// and it is not known to be gone; and the peer may not copy it yet, or must have recorded that
    /// its copy lacks something. Also when it is decided, while the page is open because somebody
    /// is stopped in the midst of a write. What is written must be remembered for
    /// [`RackAction::SendDirtyLines`], and told with
    /// [`RackEvent::WriteWanted`](super::RackEvent::WriteWanted) if it is [not
    /// expected](Self::expects_no_writer).
    #[must_use]
    pub fn forwards(&self, page: PageId) -> bool {
        let is_given = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, step } if record.out.page == page => match step {
                // Writers of before are in it still, so nobody copies it.
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

    /// Whether [`RackEvent::WriteWanted`](super::RackEvent::WriteWanted) has to be told when this
    /// page, which goes, is written or to be written.
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

    /// Whether the page was to come here and is lost.
    #[must_use]
    pub fn is_lost(&self, page: PageId) -> bool {
        let is_meant = |swap: &UnderWay| match swap.stage {
            Stage::Noted { record, .. } => swap.lost && record.incoming.page == page,
            Stage::Offering(_) => false,
        };
        self.slots.iter().flatten().any(is_meant)
    }

    /// Somebody writes a page that goes, or wants to. Before it may be copied that is done at once,
    /// afterwards when the peer has noted that its copy is stale.
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

    /// Nobody but this rack writes the page that goes any more. If somebody wants to, the first
    /// message that lets the peer copy it says so: no copy is made without a record that it lacks
    /// something.
    pub(super) fn may_be_copied(&mut self, frames: &impl Frames, slot: usize) {
        if self.slots[slot].is_some_and(|swap| swap.forwarding == Forwarding::Wanted) {
            self.mark_written(slot, Forwarding::Given);
            self.open(frames, slot);
        }
    }

    /// Clients may write the page that goes, if they note what.
    fn open(&mut self, frames: &impl Frames, slot: usize) {
        if let Some(UnderWay { stage: Stage::Noted { record, .. }, .. }) = self.slots[slot]
            && let Some((frame, word)) = word_of(frames, record.out_frame, record.out.page)
            && let Ok(dirty_logged) = word.apply(PageEvent::DirtyLogged)
        {
            self.actions.push_back(RackAction::StoreWord(frame, dirty_logged));
        }
    }

    /// Sets the mark: the page that goes is written.
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

    /// Whether the messages that let the peer copy the page say that it is written.
    pub(super) fn says_stale(&self, record: &Record) -> bool {
        record.written && !self.bugs.has(Bug::SayNothingOfWriters)
    }

    /// Repeats what the peer has not answered.
    pub(super) fn ask_to_note_again(&mut self, slot: usize) {
        let (now, retry) = (self.now, self.rules.retry);
        let Some(under_way) = &mut self.slots[slot] else { return };
        if under_way.asks_to_note_at().is_some_and(|again| now >= again) {
            under_way.forwarding = Forwarding::Asked { again: now.after(retry) };
            self.tell_peer(slot, SwapMessage::CopyIncomplete);
        }
    }

    /// The peer writes the page that it gives: the copy lacks that, and the record says so.
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

    /// The peer asks for that to be noted.
    pub(super) fn copy_is_incomplete(&mut self, slot: usize) {
        let Some(UnderWay { stage, .. }) = &self.slots[slot] else { return };
        let Stage::Noted { record, step: Step::Prepare(_) | Step::InDoubt } = stage else { return };
        if record.in_frame.is_some() {
            self.note_stale(slot);
            self.tell_peer(slot, SwapMessage::IncompleteNoted);
        }
    }

    /// The peer knows: this rack may write the page that it gives.
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

    /// Whether the new home has all that was written here; if not it is sent when that is due, and
    /// nobody writes any more.
    pub(super) fn hand_over(
        &mut self,
        slot: usize,
        record: &Record,
        (frame, word): (FrameId, PageWord),
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
                    self.actions.push_back(RackAction::StoreWord(frame, closed));
                }
                let who = Quiesce::DirtyLoggers;
                self.actions.push_back(RackAction::Quiesce { swap, frame, page, who });
            }
            Handover::Closing { until, pause, dirty_logged } if now >= until => {
                let pause = longer(pause);
                let until = now.after(retry.saturating_mul(pause));
                under_way.handover = Handover::Open { until, pause };
                self.actions.push_back(RackAction::CancelQuiesce(swap, page));
                if let Ok(open) = word.apply(PageEvent::DirtyLogged)
                    && dirty_logged
                {
                    self.actions.push_back(RackAction::StoreWord(frame, open));
                }
            }
            Handover::Due { at, pause } if now >= at => {
                let pause = longer(pause);
                let at = now.after(retry.saturating_mul(pause));
                under_way.handover = Handover::Due { at, pause };
                let known = under_way.forwarding != Forwarding::Never
                    || self.bugs.has(Bug::TrustDirtyLinesOverARestart);
                self.actions.push_back(RackAction::SendDirtyLines { swap, to, frame, known });
            }
            _ => {}
        }
        false
    }

    /// Nobody writes the page any more that was closed: its new home gets what it lacks.
    pub(super) fn closed(&mut self, slot: usize) {
        let at = self.now;
        if let Some(under_way) = &mut self.slots[slot]
            && matches!(under_way.handover, Handover::Closing { .. })
        {
            under_way.handover = Handover::Due { at, pause: 0 };
        }
    }

    /// Whether the page is still here because its new home lacks something.
    pub(super) fn still_hands_over(&self, slot: usize, record: &Record) -> bool {
        let leaves = |swap: &UnderWay| match swap.stage {
            Stage::Noted { step: Step::Finish(finish), .. } => finish.out == Leaving::Unknown,
            _ => false,
        };
        self.slots[slot].is_some_and(|swap| leaves(&swap) && swap.has_to_hand_over(record))
    }

    /// The new home asks for what it lacks: it is sent with what follows.
    pub(super) fn hand_over_now(&mut self, slot: usize) {
        let now = self.now;
        if let Some(UnderWay { handover: Handover::Due { at, .. }, .. }) = &mut self.slots[slot] {
            *at = now;
        }
    }

    /// What the copy lacks has come: so the swap is committed, and nobody writes the page at its
    /// old home any more.
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
        let arriving = incoming.filter(|(_, word)| word.state() == Some(PageState::Arriving));
        let Some((frame, _)) = arriving else {
            // It was read here already, or is another page's by now.
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
                self.actions.push_back(RackAction::ApplyDirtyLines { swap, frame });
            } else {
                under_way.copying = true;
                let copy = RackAction::Copy { swap, from, theirs, ours: frame };
                self.actions.push_back(copy);
            }
        }
        self.hurry(slot);
    }

    /// Whether the page that came can be read: its copy has everything. Until then its old home is
    /// asked for the rest.
    pub(super) fn may_be_read(&mut self, slot: usize, record: &Record) -> bool {
        let Some(under_way) = &mut self.slots[slot] else { return false };
        if !record.stale || under_way.caught_up || self.bugs.has(Bug::ReadStaleCopy) {
            return true;
        }
        if !under_way.peer_left {
            self.ask_whether_left(slot);
        } else if !core::mem::replace(&mut under_way.lost, true) {
            // Who has left, or knows nothing, has nothing to send: its memory is another one.
            self.actions.push_back(RackAction::Record(SwapEvent::Lost(record.incoming.page)));
        }
        false
    }

    /// The new home of the page that this rack gave has all that was written here.
    pub(super) fn peer_applied(&mut self, rack: RackId, swap: SwapId) {
        let Some(slot) = self.slot_of(swap) else { return };
        let Some(under_way) = &mut self.slots[slot] else { return };
        if under_way.peer == rack && under_way.is_finishing() {
            under_way.handover = Handover::DirtyLinesApplied;
        }
    }
}
