use rackpool_model::{FrameId, FrameWord, PageEvent, PageId, PageWord, RackId};
use rackpool_wire::swap::{PageLife, SwapId};

use super::{Frames, Phase, Record, Role};
use crate::Time;

/// A swap under way: its record, and the volatile state that a crash loses.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) id: SwapId,
    pub(super) peer: RackId,
    pub(super) stage: Stage,
    /// Open: when the swap is aborted. In doubt: when the rack asks for the outcome. Committed:
    /// until when it waits for the readers of the page that goes.
    pub(super) deadline: Time,
    pub(super) send_again: Time,
    /// The home's ticket of this acceptance.
    pub(super) ticket: u64,
    /// A copy into the in frame is in flight.
    pub(super) copying: bool,
    /// The peer has sent `Quiesced` of the page that it gave, so the swap is committed.
    pub(super) peer_left: bool,
    /// Readers of this rack can continue at the new home of the page that goes. True after a
    /// restart: a restarted rack prefetches no lease.
    pub(super) lease_prefetched: bool,
    /// `CopyIncomplete` was sent and is repeated at this time; writers wait. `IncompleteNoted` or
    /// the decision ends it.
    pub(super) asked_to_note: Option<Time>,
    /// An earlier incarnation began the swap, so the dirty lines are not known.
    pub(super) restarted: bool,
    /// How far the peer has received the dirty lines.
    pub(super) handover: Handover,
    /// The copy of the incoming page has the dirty lines of its old home.
    pub(super) caught_up: bool,
    /// The incoming page is lost: the memory with its dirty lines is gone.
    pub(super) lost: bool,
}

/// How far the new home has received the dirty lines of the page that goes. After a crash the state
/// is `Open` again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handover {
    /// Not decided, or the page may still be written here as before the decision. At `until` after
    /// the commit the page is closed. Each time that a stopped writer prevented the closing, the
    /// page stays open for twice as many retries.
    Open { until: Time, pause: u32 },
    /// No write begins any more; those in progress are waited for. When the last is out the lines
    /// are due. At `until` the page is opened again, so that other writers do not wait for a
    /// stopped one; it is dirty-logged again if it was.
    Closing { until: Time, pause: u32, dirty_logged: bool },
    /// No writer is in the page, and none will be. The lines are sent at `at`, and repeated at
    /// doubling intervals until the peer has applied them.
    Due { at: Time, pause: u32 },
    /// The page is readable at the new home; this rack may turn its readers away.
    DirtyLinesApplied,
}

impl UnderWay {
    /// Makes the state of a swap that begins or was found after a restart.
    pub(super) const fn new(id: SwapId, peer: RackId, stage: Stage, deadline: Time) -> Self {
        Self {
            id,
            peer,
            stage,
            deadline,
            send_again: deadline,
            ticket: 0,
            copying: false,
            peer_left: false,
            lease_prefetched: false,
            asked_to_note: None,
            restarted: false,
            handover: Handover::Open { until: Time::ZERO, pause: 0 },
            caught_up: false,
            lost: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Requester: `Prepare` was sent and the home has not answered. There is no record yet; a crash
    /// forgets the swap.
    Offering(Offering),
    /// The swap has a record.
    Noted { record: Record, step: Step },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Offering {
    pub(super) wanted: PageId,
    pub(super) milli: u64,
    pub(super) read_hot: bool,
    pub(super) frame: FrameId,
    pub(super) word: PageWord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Open: the pages are frozen, quiesced and copied. A crash gives the swap up.
    Prepare(Prepared),
    InDoubt,
    /// Decided: the page words follow the decision.
    Finish(Finish),
}

/// The progress of a decided swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Finish {
    pub(super) out: Leaving,
    /// The in frame is done.
    pub(super) settled: bool,
    /// The interval until the peer is asked again whether it has quiesced its page, in retries.
    pub(super) pause: u32,
}

/// The progress of vacating the out frame. After a crash it is `Unknown` again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The page word says what is to be done. While it is frozen the page is read here, until
    /// readers can continue at its new home.
    #[default]
    Unknown,
    /// The word is leaving, and leases are being called back. When they are back `Quiesced` is
    /// sent.
    Holders,
    /// No access can begin. Accesses of this rack that began before may still run; when they have
    /// ended the frame is free.
    Readers,
    Done,
}

impl Leaving {
    /// Returns true if `Quiesced` may be sent: every access that loads the page word now is turned
    /// away.
    pub(super) const fn has_left(self) -> bool {
        matches!(self, Self::Readers | Self::Done)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    /// The writers of the out page are out.
    pub(super) quiesced: bool,
    /// The incoming page is copied.
    pub(super) copied: bool,
    /// Requester: the home has copied its incoming page.
    pub(super) peer_copied: bool,
}

impl UnderWay {
    pub(super) const fn role(&self) -> Role {
        match &self.stage {
            Stage::Offering(_) => Role::Requester,
            Stage::Noted { record, .. } => record.role,
        }
    }

    pub(super) fn concerns(&self, page: PageId) -> bool {
        match &self.stage {
            Stage::Offering(offering) => [offering.wanted, offering.word.page()].contains(&page),
            Stage::Noted { record, .. } => record.concerns(page),
        }
    }

    /// Returns true if this swap moves the page away.
    pub(super) fn gives(&self, page: PageId) -> bool {
        matches!(self.stage, Stage::Noted { record, .. } if record.out.page == page)
    }

    /// Returns true if this swap may bring the page here and has not made it writable yet.
    pub(super) fn takes(&self, page: PageId) -> bool {
        let Stage::Noted { record, step } = &self.stage else { return false };
        let is_coming = match step {
            Step::Prepare(_) | Step::InDoubt => true,
            Step::Finish(finish) => record.phase == Phase::Committed && !finish.settled,
        };
        is_coming && record.incoming.page == page
    }

    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self.stage, Stage::Noted { step: Step::InDoubt, .. })
    }

    pub(super) const fn is_finishing(&self) -> bool {
        matches!(self.stage, Stage::Noted { step: Step::Finish(_), .. })
    }
}

/// Returns the frame and its word if it still holds this page.
pub(super) fn word_of(
    frames: &impl Frames,
    frame: Option<FrameId>,
    page: PageId,
) -> Option<FrameWord> {
    let frame = frame?;
    let word = frames.word(frame)?;
    (word.page() == page).then_some(FrameWord { frame, word })
}

/// Returns the word of a vacated frame without users: free, under the vacant id.
pub(super) fn vacated(word: PageWord, vacant: PageLife) -> Option<PageWord> {
    let PageLife { page, epoch } = vacant;
    let events = [
        PageEvent::Quiesced,
        PageEvent::Reserved { page, epoch },
        PageEvent::Cancelled { page, epoch },
    ];
    events.into_iter().try_fold(word, |word, event| word.apply(event).ok())
}
