//! Looks and reads: a block is read when its source's map has it.

use rackpool_model::RackId;

use super::{Member, State};
use crate::Time;
use crate::multicast::block_map::BlockMap;
use crate::multicast::event::MulticastAction;
use crate::multicast::plan::Receive;
use crate::multicast::{Block, Version};
use crate::planted_bugs::{Bug, Bugs};

impl<B: Bugs> Member<B> {
    /// Begins the next read if its source has the block, and looks for the block after it, so that
    /// the look takes no time of its own.
    pub(super) fn advance(&mut self, now: Time) {
        let is_wedged = self.state == State::Wedged && !self.bugs.has(Bug::ReadWhileWedged);
        let may_read = matches!(self.state, State::Receiving | State::Wedged) && !is_wedged;
        if !may_read || self.ending.is_some() {
            return;
        }
        if self.reading.is_none()
            && let Some(next) = self.list.front().copied()
            && self.knows(next)
        {
            self.reading = Some(next);
            self.wait = self.rules.first_look;
            let Receive { block, from } = next;
            self.actions.push_back(MulticastAction::Read { from, block });
            if self.bugs.has(Bug::CountBlockBeforeBytes) {
                self.mark(block);
            }
        }
        let ahead = usize::from(self.reading.is_some());
        let looked_for = self.list.get(ahead).copied().filter(|next| !self.knows(*next));
        if let Some(Receive { block, from }) = looked_for
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
                let ahead = usize::from(self.reading.is_some());
                let is_there = self.list.get(ahead).is_none_or(|next| self.knows(*next));
                if !is_there && self.state == State::Receiving {
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
        let Some(read) = self.reading.take() else { return };
        let is_expected = read == Receive { block, from };
        if is_expected && found == Some(self.version) {
            if !self.bugs.has(Bug::CountBlockBeforeBytes) {
                self.mark(block);
            }
            if self.list.front() == Some(&read) {
                self.list.pop_front();
            }
            if self.state == State::Receiving {
                self.go_on(now);
            }
            if self.state == State::Verifying {
                self.report(now);
            }
        } else {
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

    fn knows(&self, receive: Receive) -> bool {
        self.known.get(&receive.from).is_some_and(|map| map.has(receive.block))
    }

    fn mark(&mut self, block: Block) {
        self.map.add(block);
        self.actions.push_back(MulticastAction::MarkReceived(block));
    }
}
