use rackpool_model::{FrameId, PageEvent, PageId, PageWord, RackId};
use rackpool_wire::swap::{PageLife, SwapId};

use super::{Frames, Record, Role};
use crate::Time;

/// A swap under way, with what is lost in a crash.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) id: SwapId,
    pub(super) peer: RackId,
    pub(super) stage: Stage,
    /// When an open one is given up; when one in doubt asks for the outcome; until when a committed
    /// one waits for the readers of the page that goes.
    pub(super) deadline: Time,
    pub(super) send_again: Time,
    /// The home's number for its acceptance.
    pub(super) ticket: u64,
    /// A copy into the in frame has been posted and has not ended.
    pub(super) copying: bool,
    /// The peer has said that nobody uses the page that it gave: so the swap is committed.
    pub(super) peer_left: bool,
    /// Readers of this rack know how to go on at the new home of the page that it gives, or nobody
    /// has asked for them: a restarted rack does not.
    pub(super) lease_prefetched: bool,
    /// Whether this rack goes on to write the page that goes when it may be copied.
    pub(super) forwarding: Forwarding,
    /// How the peer gets what was written so.
    pub(super) handover: Handover,
    /// The copy of the page that comes has all that was written in it at its old home.
    pub(super) caught_up: bool,
    /// It never will have: the memory in which that was written is no more.
    pub(super) lost: bool,
}

/// Whether a rack's processor writes a page that goes once the peer may copy it. Before that it
/// always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forwarding {
    /// It does not, and never will: what an earlier life of this rack has written is not known.
    Never,
    /// Nobody has asked for it so far.
    Unwanted,
    /// It will, and the message that lets the peer copy the page will say so.
    Wanted,
    /// It will when the peer has noted that its copy lacks something; asked again then.
    Asked { again: Time },
    /// It does, for everybody.
    Given,
}

/// How far the new home has heard what was written in the page that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handover {
    /// It is not decided, or the page may be written here if it could before; from then on not any
    /// more. Every time somebody is stopped in the midst of a write it stays open for twice as many
    /// retries.
    Open { until: Time, pause: u32 },
    /// Nobody begins to write it any more, and those who have begun are waited for; if they are
    /// still there then, others must not wait for them. It is opened again if it was.
    Closing { until: Time, pause: u32, dirty_logged: bool },
    /// The lines are due then, and every time they are sent once more after twice as many retries.
    Due { at: Time, pause: u32 },
    /// It has everything.
    DirtyLinesApplied,
}

impl UnderWay {
    /// A swap that begins now, or was found after a restart.
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
            forwarding: Forwarding::Unwanted,
            handover: Handover::Open { until: Time::ZERO, pause: 0 },
            caught_up: false,
            lost: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Requester: the home has not answered.
    Offering(Offering),
    /// What follows has a record.
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
    /// Open: pages are frozen, quiesced, copied.
    Prepare(Prepared),
    InDoubt,
    /// The words follow what was decided.
    Finish(Finish),
}

/// How far the words have followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Finish {
    pub(super) out: Leaving,
    /// Nothing is left to be done in the in frame.
    pub(super) settled: bool,
    /// So many retries until the peer is asked again whether it has left.
    pub(super) pause: u32,
}

/// How far the frame that the page goes out of is vacated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Its word says what is to be done. While it is frozen it is read here, until readers can go
    /// on at its new home.
    #[default]
    Unknown,
    /// Leases are called back.
    Holders,
    /// Nobody can enter; somebody of this rack is still in it.
    Readers,
    Done,
}

impl Leaving {
    /// Whether nobody can see the page here any more who has not looked at its word before.
    pub(super) const fn has_left(self) -> bool {
        matches!(self, Self::Readers | Self::Done)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Prepared {
    /// Nobody writes the out page.
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

    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self.stage, Stage::Noted { step: Step::InDoubt, .. })
    }

    pub(super) const fn is_finishing(&self) -> bool {
        matches!(self.stage, Stage::Noted { step: Step::Finish(_), .. })
    }
}

/// The word of a frame that still has this page.
pub(super) fn word_of(
    frames: &impl Frames,
    frame: Option<FrameId>,
    page: PageId,
) -> Option<(FrameId, PageWord)> {
    let frame = frame?;
    let word = frames.word(frame)?;
    (word.page() == page).then_some((frame, word))
}

/// The word of the vacated frame, once nobody is in it: free, under the vacant id.
pub(super) fn vacated(word: PageWord, vacant: PageLife) -> Option<PageWord> {
    let PageLife { page, epoch } = vacant;
    let events = [
        PageEvent::Quiesced,
        PageEvent::Reserved { page, epoch },
        PageEvent::Cancelled { page, epoch },
    ];
    events.into_iter().try_fold(word, |word, event| word.apply(event).ok())
}
