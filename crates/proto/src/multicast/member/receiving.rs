//! Looks and reads: a block is read when its source's map has it.

use rackpool_model::RackId;

use super::{Member, State};
use crate::Time;
use crate::multicast::block_map::BlockMap;
use crate::multicast::event::MulticastAction;
use crate::multicast::plan::Receive;
use crate::multicast::{Block, Version};
use crate::planted_bugs::{Bug, Bugs};

/// The most reads under way. While the bytes of one block come the next is asked for; a third one
/// would only wait.
const READS: usize = 2;

impl<B: Bugs> Member<B> {
    /// Begins the next reads as far as their sources have the blocks, and looks for the block after
    /// them, so that the look takes no time of its own.
    pub(super) fn advance(&mut self, now: Time) {
        let is_wedged = self.state == State::Wedged && !self.bugs.has(Bug::ReadWhileWedged);
        let may_read = matches!(self.state, State::Receiving | State::Wedged) && !is_wedged;
        if !may_read || self.ending.is_some() {
            return;
        }
        while self.reading.len() < READS
            && let Some(next) = self.list.front().copied()
            && self.knows(next)
        {
            self.list.pop_front();
            self.reading.push(next);
            self.wait = self.rules.first_look;
            let Receive { block, from } = next;
            self.actions.push_back(MulticastAction::Read { from, block });
            if self.bugs.has(Bug::CountBlockBeforeBytes) {
                self.mark(block);
            }
        }
        if let Some(Receive { block, from }) = self.unknown()
            && self.looking.is_none()
            && self.look_at.is_none_or(|at| at <= now)
        {
            let word = BlockMap::word_of(block);
            self.look_at = None;
            self.looking = Some((from, word));
            self.actions.push_back(MulticastAction::Look { from, word });
        }
    }

    pub(in crate::multicast) fn looked(
        &mut self,
        now: Time,
        from: RackId,
        word: u32,
        found: Option<(Version, u64)>,
    ) {
        if self.looking != Some((from, word)) {
            return;
        }
        self.looking = None;
        match found {
            Some((version, bits)) if version == self.version => {
                let blocks = self.map.blocks();
                let known = self.known.entry(from).or_insert_with(|| BlockMap::empty(blocks));
                known.add_word(word, bits);
                if self.unknown().is_some() && self.state == State::Receiving {
                    self.look_at = Some(now.after(self.wait));
                    self.wait = (self.wait * 2).min(self.rules.longest_look);
                }
                self.advance(now);
            }
            // The rack is gone, or receives another object by now.
            _ => self.source_failed(now, from),
        }
    }

    pub(in crate::multicast) fn block_read(
        &mut self,
        now: Time,
        from: RackId,
        block: Block,
        found: Option<Version>,
    ) {
        let read = Receive { block, from };
        let Some(at) = self.reading.iter().position(|reading| *reading == read) else { return };
        self.reading.remove(at);
        if found == Some(self.version) {
            if !self.bugs.has(Bug::CountBlockBeforeBytes) {
                self.mark(block);
            }
            if self.state == State::Receiving {
                self.go_on(now);
            }
            if self.state == State::Verifying {
                self.report(now);
            }
        } else {
            self.list.push_front(read);
            self.source_failed(now, from);
        }
        if self.state == State::Wedged {
            self.advance(now);
            self.report(now);
        }
        self.end_when_idle(now);
    }

    /// Waits for a new epoch if the plan needs this source.
    fn source_failed(&mut self, now: Time, from: RackId) {
        let is_needed = self.list.iter().any(|receive| receive.from == from);
        if self.state == State::Receiving && is_needed && self.ending.is_none() {
            self.state = State::Stuck(from);
            self.look_at = None;
            self.report(now);
        } else {
            self.advance(now);
        }
    }

    /// The next block to be read, if its source is not known to have it.
    fn unknown(&self) -> Option<Receive> {
        self.list.front().copied().filter(|next| !self.knows(*next))
    }

    fn knows(&self, receive: Receive) -> bool {
        self.known.get(&receive.from).is_some_and(|map| map.has(receive.block))
    }

    fn mark(&mut self, block: Block) {
        self.map.add(block);
        self.actions.push_back(MulticastAction::MarkReceived(block));
    }
}
