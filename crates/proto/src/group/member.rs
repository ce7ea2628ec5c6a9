//! A member of a group.

use super::agreement::{Agreement, AgreementStep};
use super::words::{Decision, Found, GroupWords, MemberSet, Survivors};
use super::{ALIGN, GroupRules};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// From whom a member reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The root.
    Root,
    /// The member of this number.
    Member(usize),
}

/// What the member's shell does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberAction {
    /// Store the word `have`. The bytes before it are in the ring, and count.
    StoreHave(u64),
    /// Store the word `frozen`: from now on this member goes on without the root.
    Freeze,
    /// Decide that the group has ended with these survivors, unless its end is decided already, and
    /// pass what is decided to [`MemberMachine::decided`].
    Decide(Survivors),
    /// Find out what is decided, and pass it to [`MemberMachine::decided`].
    Learn,
    /// Read the words of this program, and pass them to [`MemberMachine::found`].
    Look(Source),
    /// Read the stream from another ring into the own one, and pass to [`MemberMachine::read`]
    /// whether that could be done.
    Read {
        /// Whose ring.
        from: Source,
        /// The first position to read.
        begin: u64,
        /// The position after the last one.
        end: u64,
    },
    /// Wait a little, then call again.
    Wait,
    /// The group has ended for this member.
    End(GroupEnd),
}

/// How a group has ended for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd {
    /// The root has closed the group, and this member has taken everything.
    Closed,
    /// The root is lost. These members, of which this is one, have the same messages.
    RootLost(MemberSet),
    /// The others go on without this member: it did not answer for the grace time.
    Lost,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Reads what the root appends. The root has the stream up to `there`.
    Following {
        there: u64,
    },
    /// The root is lost.
    Agreeing(Agreement),
    /// All was taken. Waits until the root has seen it.
    Closing,
    /// The root has seen it, or is lost.
    Closed,
    Ended(GroupEnd),
}

/// Follows the root, and agrees with the other members when it is lost.
#[derive(Debug)]
pub struct MemberMachine<B = Sound> {
    rules: GroupRules,
    bugs: B,
    own: usize,
    members: MemberSet,
    have: u64,
    stored_have: u64,
    taken: u64,
    /// The root's last beat, and when it was new.
    beat: (u64, Time),
    /// When the root's words were read last, or were to be.
    looked_at: Time,
    /// The root's beat when this member had frozen.
    frozen_beat: Option<u64>,
    has_looked: bool,
    has_taken_all: bool,
    phase: Phase,
}

impl<B: Bugs> MemberMachine<B> {
    /// The member of this number in a group of `members` members, all of which have joined.
    pub fn new(now: Time, rules: GroupRules, own: usize, members: usize, bugs: B) -> Self {
        Self {
            rules,
            bugs,
            own,
            members: MemberSet::first(members),
            have: 0,
            stored_have: 0,
            taken: 0,
            beat: (0, now),
            looked_at: now,
            frozen_beat: None,
            has_looked: false,
            has_taken_all: false,
            phase: Phase::Following { there: 0 },
        }
    }

    /// The stream is in the own ring up to this position, and counts.
    pub const fn have(&self) -> u64 {
        self.have
    }

    /// The program has used all messages before `position`, and its word `taken` says so.
    pub fn take(&mut self, position: u64) {
        self.taken = self.taken.max(position.min(self.have));
    }

    /// The program has taken the record that ends the stream.
    pub fn close(&mut self) {
        self.has_taken_all = true;
        if matches!(self.phase, Phase::Following { .. }) {
            self.phase = Phase::Closing;
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> MemberAction {
        if let Phase::Agreeing(agreement) = &self.phase {
            self.have = agreement.have();
        }
        if self.stored_have != self.have {
            self.stored_have = self.have;
            return MemberAction::StoreHave(self.have);
        }
        if let Phase::Agreeing(agreement) = &mut self.phase {
            let step = agreement.poll(&self.rules, self.taken, self.bugs);
            return self.agree(step);
        }
        match &self.phase {
            Phase::Ended(end) => MemberAction::End(*end),
            Phase::Closed => MemberAction::Learn,
            Phase::Following { there } if self.have < *there => {
                MemberAction::Read { from: Source::Root, begin: self.have, end: *there }
            }
            _ if self.has_looked => {
                self.has_looked = false;
                MemberAction::Wait
            }
            _ => MemberAction::Look(Source::Root),
        }
    }

    fn agree(&mut self, step: AgreementStep) -> MemberAction {
        match step {
            AgreementStep::Freeze => {
                self.has_looked = false;
                MemberAction::Freeze
            }
            AgreementStep::Look(member) => MemberAction::Look(Source::Member(member)),
            AgreementStep::Read { from, end } => {
                MemberAction::Read { from: Source::Member(from), begin: self.have, end }
            }
            // The root may live after all.
            AgreementStep::Wait if !self.has_looked => MemberAction::Look(Source::Root),
            AgreementStep::Wait => {
                self.has_looked = false;
                MemberAction::Wait
            }
            AgreementStep::Decide(survivors) if self.bugs.has(Bug::EndUndecided) => {
                self.end(GroupEnd::RootLost(survivors.members))
            }
            AgreementStep::Decide(survivors) => MemberAction::Decide(survivors),
            AgreementStep::Lost => self.end(GroupEnd::Lost),
        }
    }

    fn end(&mut self, end: GroupEnd) -> MemberAction {
        self.phase = Phase::Ended(end);
        MemberAction::End(end)
    }

    /// What is decided; `None` if nothing is.
    pub fn decided(&mut self, now: Time, decision: Option<Decision>) {
        let Some(decision) = decision else {
            if matches!(self.phase, Phase::Closed) {
                // The root was lost before it had closed the group.
                self.phase = Phase::Agreeing(self.agreement(now));
            }
            return;
        };
        let is_wrong = self.bugs.has(Bug::EndThoughLeftOut);
        self.phase = Phase::Ended(match decision {
            Decision::Closed if self.has_taken_all || is_wrong => GroupEnd::Closed,
            // A member that others have named may have read more since, from one that they left
            // out.
            Decision::RootLost(Survivors { end, members })
                if members.contains(self.own) && end == self.taken || is_wrong =>
            {
                GroupEnd::RootLost(members)
            }
            Decision::Closed | Decision::RootLost(_) => GroupEnd::Lost,
        });
    }

    fn agreement(&self, now: Time) -> Agreement {
        Agreement::new(now, self.own, self.members, self.have)
    }

    /// What the words of a program say.
    pub fn found(&mut self, now: Time, of: Source, found: Found<GroupWords>) {
        match (&mut self.phase, of) {
            (Phase::Agreeing(agreement), Source::Member(member)) => {
                agreement.found(now, &self.rules, member, found);
            }
            (Phase::Agreeing(_), Source::Root) => self.of_lost_root(found),
            (Phase::Following { .. } | Phase::Closing, Source::Root) => self.of_root(now, found),
            _ => {}
        }
    }

    /// If a root that was taken for lost goes on, the other members go on with it.
    fn of_lost_root(&mut self, found: Found<GroupWords>) {
        self.has_looked = true;
        if let Found::Is(words) = found
            && *self.frozen_beat.get_or_insert(words.beat) != words.beat
        {
            self.phase = Phase::Ended(GroupEnd::Lost);
        }
    }

    fn of_root(&mut self, now: Time, found: Found<GroupWords>) {
        if now.since(self.looked_at) > self.rules.grace / 2 {
            // The program was busy: it knows nothing of the root's beats meanwhile.
            self.beat.1 = now;
        }
        self.looked_at = now;
        let words = match found {
            Found::Is(words) => Some(words),
            Found::Gone => return self.root_is_lost(now),
            Found::Silent => None,
        };
        if let Some(words) = words {
            if !words.members().contains(self.own) {
                self.phase = Phase::Ended(GroupEnd::Lost);
                return;
            }
            if words.beat != self.beat.0 {
                self.beat = (words.beat, now);
            }
        }
        if now.since(self.beat.1) > self.rules.grace {
            return self.root_is_lost(now);
        }
        self.has_looked = true;
        let (Phase::Following { there }, Some(words)) = (&mut self.phase, words) else { return };
        let most = self.taken + self.rules.ring;
        if words.have < self.have || words.have > most || !words.have.is_multiple_of(ALIGN) {
            // No root stores such words: the memory may be another program's.
            return;
        }
        *there = words.have;
        self.has_looked = self.have == *there;
    }

    fn root_is_lost(&mut self, now: Time) {
        self.phase = match self.phase {
            Phase::Closing => Phase::Closed,
            _ => Phase::Agreeing(self.agreement(now)),
        };
    }

    /// The stream up to `end` was read from a ring. It is [`Found::Gone`] unless each record is one
    /// of this group and position, with the right checksum: the ring is another program's by now,
    /// or the root has left this member out.
    pub fn read(&mut self, now: Time, from: Source, end: u64, mut found: Found<()>) {
        if found == Found::Gone && self.bugs.has(Bug::CountUnverified) {
            found = Found::Is(());
        }
        match (&mut self.phase, from) {
            (Phase::Following { .. }, Source::Root) if found == Found::Is(()) => self.have = end,
            (Phase::Following { there }, Source::Root) => {
                (*there, self.has_looked) = (self.have, true);
            }
            (Phase::Agreeing(agreement), Source::Member(member)) => {
                agreement.read(now, member, end, found);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const RULES: GroupRules = GroupRules { ring: 256, grace: Duration::from_secs(1) };

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn words(beat: u64, have: u64, frozen: u64) -> Found<GroupWords> {
        Found::Is(GroupWords { beat, have, taken: 0, members: 3, frozen })
    }

    #[test]
    fn a_member_that_has_more_and_does_not_answer_is_left_out() {
        let mut machine = MemberMachine::new(at(0), RULES, 0, 2, Sound);
        machine.found(at(0), Source::Root, Found::Gone);
        let mut now = 0;
        let survivors = loop {
            match machine.poll() {
                MemberAction::Look(Source::Member(1)) if now == 0 => {
                    machine.found(at(now), Source::Member(1), words(0, 64, 1));
                }
                MemberAction::Look(of) => machine.found(at(now), of, Found::Silent),
                MemberAction::Read { from, end, .. } => {
                    machine.read(at(now), from, end, Found::Silent);
                }
                MemberAction::Wait => now += 10,
                MemberAction::Decide(survivors) => break survivors,
                MemberAction::Freeze => {}
                other => panic!("{other:?}"),
            }
            assert!(now < 2000, "it waits for ever");
        };
        assert_eq!(survivors, Survivors { end: 0, members: MemberSet::first(1) });
    }

    #[test]
    fn a_program_that_was_busy_does_not_take_the_root_for_lost() {
        let mut machine = MemberMachine::new(at(0), RULES, 0, 2, Sound);
        machine.found(at(0), Source::Root, words(1, 0, 0));
        // For a minute it uses a message. Then a daemon restarts.
        machine.found(at(60_000), Source::Root, Found::Silent);
        machine.found(at(60_400), Source::Root, Found::Silent);
        machine.found(at(60_800), Source::Root, Found::Silent);
        assert!(matches!(machine.phase, Phase::Following { .. }));
        machine.found(at(61_100), Source::Root, Found::Silent);
        assert!(matches!(machine.phase, Phase::Agreeing(_)));
    }

    #[test]
    fn a_member_that_took_a_living_root_for_lost_ends_alone() {
        let mut machine = MemberMachine::new(at(0), RULES, 0, 2, Sound);
        for millis in [0, 400, 800, 1200] {
            machine.found(at(millis), Source::Root, Found::Silent);
        }
        assert_eq!(machine.poll(), MemberAction::Freeze);
        let (mut now, mut beat) = (1200, 40);
        let end = loop {
            match machine.poll() {
                MemberAction::Look(Source::Root) => {
                    beat += 1;
                    machine.found(at(now), Source::Root, words(beat, 0, 0));
                }
                // The other one follows the root.
                MemberAction::Look(of) => machine.found(at(now), of, words(0, 0, 0)),
                MemberAction::Wait => now += 10,
                MemberAction::End(end) => break end,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end, GroupEnd::Lost);
        assert!(now < 1300, "at its second look, {now}");
    }
}
