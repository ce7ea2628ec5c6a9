//! The dirty lines of pages that move: those of clients' dirty logs, and those that this rack's
//! shell writes for others (forwarded writes).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

use rackpool_model::{FrameId, FrameWord, PageState, PageWord};

use super::{PageWords, RackMachine};
use crate::planted_bugs::{Bug, Bugs};

/// Lines of a page, and limits of how many are dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRules {
    /// The number of lines in a page.
    pub in_page: u32,
    /// The number of dirty lines from which further forwarded writes wait for the decision.
    pub forwarded: usize,
    /// The most lines that are sent to the new home. If more are dirty, it copies the page again.
    pub sent: usize,
}

/// The dirty lines by frame.
#[derive(Debug, Default)]
pub(super) struct DirtyLines {
    written: BTreeMap<FrameId, BTreeSet<u32>>,
}

impl DirtyLines {
    /// Forgets the lines of a frame whose page does not move any more.
    pub(super) fn word_stored(&mut self, frame: FrameId, word: PageWord) {
        if word.state() != Some(PageState::Frozen) {
            self.written.remove(&frame);
        }
    }
}

impl<B: Bugs> RackMachine<B> {
    /// Counts lines of a client's dirty log as dirty, if the page in the frame moves. The range is
    /// not trusted.
    pub fn note_dirty(
        &mut self,
        words: &impl PageWords,
        frame: FrameId,
        lines: RangeInclusive<u32>,
    ) {
        let moves = |word: PageWord| word.state() == Some(PageState::Frozen);
        if words.word(frame).is_some_and(moves) {
            let last = self.rules.lines.in_page.saturating_sub(1).min(*lines.end());
            self.dirty.written.entry(frame).or_default().extend(*lines.start()..=last);
        }
    }

    /// The shell writes lines of a page under [`PageAccess::Forwarded`](super::PageAccess).
    pub fn note_forwarded(&mut self, found: FrameWord, lines: RangeInclusive<u32>) {
        if !self.bugs.has(Bug::ForgetOneWrite) {
            self.dirty.written.entry(found.frame).or_default().extend(lines);
        }
    }

    /// Returns the dirty lines of a frame; `None` if they are too many to send.
    #[must_use]
    pub fn dirty_lines(&self, frame: FrameId) -> Option<Vec<u32>> {
        let written = self.dirty.written.get(&frame);
        let lines: Vec<u32> = written.into_iter().flatten().copied().collect();
        (lines.len() <= self.rules.lines.sent).then_some(lines)
    }

    /// Returns true if this rack executes writes to a page that moves: the page is dirty-logged,
    /// and there is room for more lines. After the decision the limit on lines does not apply:
    /// rather than make writers wait, the page is copied again.
    pub(super) fn writes_for_others(&self, found: FrameWord) -> bool {
        let FrameWord { frame, word } = found;
        let is_decided = || self.swap.waits().any(|waits| waits.goes == Some(word.page()));
        let may_write =
            word.is_dirty_logged() || (self.bugs.has(Bug::WriteOnAfterTheCommit) && is_decided());
        let most = self.rules.lines.forwarded;
        let has_room = || self.dirty.written.get(&frame).is_none_or(|lines| lines.len() < most);
        may_write && (has_room() || is_decided())
    }
}
