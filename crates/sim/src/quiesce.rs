//! Quiesces that a machine waits for.

use rackpool_model::{FrameId, PageId};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_proto::share;
use rackpool_proto::swap::{Quiesce, RackEvent};
use rackpool_wire::swap::SwapId;

use crate::daemon::Input;
use crate::memory::{Memory, Use};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) whose: Whose,
    pub(crate) frame: FrameId,
    pub(crate) page: PageId,
    pub(crate) who: Quiesce,
    /// No lease is out.
    pub(crate) clean: bool,
}

/// The machine that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Swap(SwapId),
    Share,
}

impl Waiter {
    /// The event that reports the quiescence.
    pub(crate) const fn event(&self) -> Input {
        match self.whose {
            Whose::Swap(swap) => Input::Swap(RackEvent::Quiesced(swap, self.who)),
            Whose::Share => Input::Shares(share::ShareEvent::Quiesced(self.page)),
        }
    }

    /// Returns true if the users waited for are out of the frame.
    pub(crate) fn is_over(&self, memory: &Memory, bugs: impl Bugs) -> bool {
        let is_dirty_logged = memory.frames[self.frame.0 as usize].word.is_dirty_logged();
        self.clean
            && match self.who {
                // Other writers log their lines.
                Quiesce::Writers if is_dirty_logged || bugs.has(Bug::OverlookDirtyLoggers) => {
                    memory.is_quiesced(self.frame, |usage| usage == Use::Write)
                }
                Quiesce::Writers | Quiesce::DirtyLoggers => {
                    memory.is_quiesced(self.frame, |usage| usage != Use::Read)
                }
                Quiesce::Holders => true,
                Quiesce::Everyone => memory.is_quiesced(self.frame, |_| true),
            }
    }
}
