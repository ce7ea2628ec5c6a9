//! How members end at the same position when the root is lost.

use alloc::vec::Vec;

use super::words::{Found, GroupWords, MemberSet, Survivors};
use super::{GroupRules, MOST_MEMBERS};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs};

/// What a member does next without the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgreementStep {
    Freeze,
    Look(usize),
    Read {
        from: usize,
        end: u64,
    },
    Decide(Survivors),
    Wait,
    /// The member lacks messages that no ring has any more.
    Lost,
}

/// A member that reads the words of the others, round after round, until all that it waits for have
/// the same stream. It then decides that the group has ended with them, unless another one has
/// decided before.
#[derive(Clone, Debug)]
pub(super) struct Agreement {
    own: usize,
    /// The members that this one waits for, and itself.
    live: MemberSet,
    is_frozen: bool,
    have: u64,
    /// What each member's words said when they were read last.
    seen: Vec<Option<GroupWords>>,
    to_look: MemberSet,
    /// When the words of each member were new.
    waits_since: Vec<Time>,
    /// When each member could be read last.
    answered_at: Vec<Time>,
    /// The last read of a ring got no answer.
    is_unanswered: bool,
}

impl Agreement {
    pub(super) fn new(now: Time, own: usize, members: MemberSet, have: u64) -> Self {
        Self {
            own,
            live: members,
            is_frozen: false,
            have,
            seen: alloc::vec![None; MOST_MEMBERS],
            to_look: members.without(own),
            waits_since: alloc::vec![now; MOST_MEMBERS],
            answered_at: alloc::vec![now; MOST_MEMBERS],
            is_unanswered: false,
        }
    }

    pub(super) const fn have(&self) -> u64 {
        self.have
    }

    /// What to do next, once the words of this member say what it has. The program has used all
    /// messages before `taken`.
    pub(super) fn poll<B: Bugs>(
        &mut self,
        rules: &GroupRules,
        taken: u64,
        bugs: B,
    ) -> AgreementStep {
        if !self.is_frozen {
            self.is_frozen = true;
            return AgreementStep::Freeze;
        }
        if core::mem::take(&mut self.is_unanswered) {
            return AgreementStep::Wait;
        }
        if let Some(member) = self.to_look.iter().next() {
            return AgreementStep::Look(member);
        }
        self.to_look = self.live.without(self.own);
        self.decide(rules, taken, bugs)
    }

    /// What follows from a round.
    fn decide<B: Bugs>(&mut self, rules: &GroupRules, taken: u64, bugs: B) -> AgreementStep {
        let others = self.live.without(self.own);
        let seen: Vec<_> = others
            .iter()
            .filter_map(|member| {
                self.seen.get(member).copied().flatten().map(|it| (it.have, member))
            })
            .collect();
        if seen.len() < others.iter().count() {
            return AgreementStep::Wait;
        }
        let survivors = Survivors { end: self.have, members: self.live };
        match seen.iter().max().copied().filter(|(end, _)| *end > self.have) {
            Some((end, _)) if end - self.have > rules.ring => AgreementStep::Lost,
            Some((end, _)) if end > taken + rules.ring => AgreementStep::Wait,
            Some((end, from)) => AgreementStep::Read { from, end },
            None if bugs.has(Bug::DecideBeforeReading) => AgreementStep::Decide(survivors),
            None if seen.iter().any(|(end, _)| *end < self.have) => AgreementStep::Wait,
            None => AgreementStep::Decide(survivors),
        }
    }

    /// What the words of a member say.
    pub(super) fn found(
        &mut self,
        now: Time,
        rules: &GroupRules,
        member: usize,
        found: Found<GroupWords>,
    ) {
        let (Some(seen), Some(since), Some(answered_at)) = (
            self.seen.get_mut(member),
            self.waits_since.get_mut(member),
            self.answered_at.get_mut(member),
        ) else {
            return;
        };
        self.to_look = self.to_look.without(member);
        match found {
            Found::Is(words) => {
                *answered_at = now;
                if words.is_frozen() && *seen != Some(words) {
                    (*seen, *since) = (Some(words), now);
                }
            }
            Found::Gone => {
                self.live = self.live.without(member);
                return;
            }
            Found::Silent => {}
        }
        let lacks_nothing = seen.is_some_and(|words| words.have >= self.have);
        let is_stopped = now.since(*since) > rules.grace && !lacks_nothing;
        if is_stopped || now.since(*answered_at) > rules.grace {
            self.live = self.live.without(member);
        }
    }

    /// The stream up to `end` was read from a member's ring, if it was there.
    pub(super) fn read(&mut self, now: Time, member: usize, end: u64, found: Found<()>) {
        match found {
            Found::Is(()) => {
                self.have = end;
                if let Some(answered_at) = self.answered_at.get_mut(member) {
                    *answered_at = now;
                }
            }
            Found::Gone => self.live = self.live.without(member),
            Found::Silent => self.is_unanswered = true,
        }
    }
}
