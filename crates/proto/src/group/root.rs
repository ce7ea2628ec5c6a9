//! The root of a group.

use alloc::vec::Vec;

use super::words::{Found, GroupWords, MemberSet};
use super::{ALIGN, GroupRules};
use crate::Time;
use crate::planted_bugs::{Bug, Bugs, Sound};

/// What the root's shell does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootAction {
    /// Read the words of a member, and pass them to [`RootMachine::found`].
    Look(usize),
    /// Wait a little: no member has gone on. Then call again.
    Wait,
    /// Store the word `members`.
    StoreMembers(MemberSet),
    /// Write a gap at this position, which ends with the ring.
    WriteGap {
        /// The position of the gap.
        at: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Write the record at this position.
    WriteRecord {
        /// The position of the record.
        at: u64,
    },
    /// Store the word `have`, after all that was written.
    StoreHave(u64),
    /// The record is in the ring, or all members have taken what was waited for.
    Done,
    /// All members are lost.
    NoMember,
}

/// What a root knows of a member.
#[derive(Clone, Copy, Debug)]
struct KnownMember {
    taken: u64,
    /// When `taken` was new.
    moved_at: Time,
    /// Whether it was looked at since the last wait.
    is_fresh: bool,
}

/// What the root is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Nothing,
    /// Wait until all have taken everything before this position, for a gap and a record, if there
    /// is one.
    Room {
        until: u64,
        record: Option<u64>,
    },
    Gap {
        record: u64,
    },
    Record {
        record: u64,
    },
    Have,
}

/// Appends records to the stream as soon as all members have taken what they overwrite.
#[derive(Debug)]
pub struct RootMachine<B = Sound> {
    rules: GroupRules,
    bugs: B,
    members: Vec<KnownMember>,
    live: MemberSet,
    are_members_stored: bool,
    have: u64,
    task: Task,
    began_at: Time,
}

impl<B: Bugs> RootMachine<B> {
    /// A root whose members have all joined.
    pub fn new(now: Time, rules: GroupRules, members: usize, bugs: B) -> Self {
        let live = MemberSet::first(members);
        let member = KnownMember { taken: 0, moved_at: now, is_fresh: false };
        Self {
            rules,
            bugs,
            members: live.iter().map(|_| member).collect(),
            live,
            are_members_stored: false,
            have: 0,
            task: Task::Nothing,
            began_at: now,
        }
    }

    /// The members that are not lost.
    pub const fn members(&self) -> MemberSet {
        self.live
    }

    /// The end of the stream.
    pub const fn have(&self) -> u64 {
        self.have
    }

    /// How far a member has taken the stream, as far as it is known.
    pub fn taken(&self, member: usize) -> u64 {
        self.members.get(member).map_or(0, |member| member.taken)
    }

    /// The position before which all members that are not lost have taken everything.
    pub fn taken_by_all(&self) -> u64 {
        self.live.iter().map(|member| self.taken(member)).min().unwrap_or(self.have)
    }

    /// Begins to append a record of `bytes` bytes, which fits into the ring.
    pub fn begin(&mut self, now: Time, bytes: u64) {
        let record = bytes.next_multiple_of(ALIGN);
        let to_end = self.rules.ring - self.have % self.rules.ring;
        let gap = if record > to_end { to_end } else { 0 };
        let end = self.have + gap + record;
        self.wait_for(now, end.saturating_sub(self.rules.ring), Some(record));
    }

    /// Begins to wait until all members have taken everything before `until`.
    pub fn begin_wait(&mut self, now: Time, until: u64) {
        self.wait_for(now, until.min(self.have), None);
    }

    /// Begins to wait until all members have taken everything.
    pub fn begin_close(&mut self, now: Time) {
        self.wait_for(now, self.have, None);
    }

    fn wait_for(&mut self, now: Time, until: u64, record: Option<u64>) {
        self.began_at = now;
        self.task = Task::Room { until, record };
        self.members.iter_mut().for_each(|member| member.is_fresh = false);
    }

    /// What to do next.
    pub fn poll(&mut self) -> RootAction {
        if !self.are_members_stored {
            self.are_members_stored = true;
            return RootAction::StoreMembers(self.live);
        }
        if self.live.is_empty() {
            return RootAction::NoMember;
        }
        let to_end = self.rules.ring - self.have % self.rules.ring;
        match self.task {
            Task::Nothing => RootAction::Done,
            Task::Room { until, record } => {
                let is_sound = !self.bugs.has(Bug::OverwriteUntaken) || record.is_none();
                if is_sound && self.taken_by_all() < until {
                    return self.look(until);
                }
                self.task = match record {
                    None => Task::Nothing,
                    Some(record) if record > to_end => Task::Gap { record },
                    Some(record) => Task::Record { record },
                };
                self.poll()
            }
            Task::Gap { record } => {
                let at = self.have;
                self.have += to_end;
                self.task = Task::Record { record };
                RootAction::WriteGap { at, bytes: to_end }
            }
            Task::Record { record } => {
                let at = self.have;
                self.have += record;
                self.task = Task::Have;
                RootAction::WriteRecord { at }
            }
            Task::Have => {
                self.task = Task::Nothing;
                RootAction::StoreHave(self.have)
            }
        }
    }

    /// The next of those that have not taken enough, or a pause if all were looked at.
    fn look(&mut self, until: u64) -> RootAction {
        for member in self.live.iter() {
            let Some(known) = self.members.get_mut(member) else { continue };
            if known.taken < until && !known.is_fresh {
                known.is_fresh = true;
                return RootAction::Look(member);
            }
        }
        self.members.iter_mut().for_each(|member| member.is_fresh = false);
        RootAction::Wait
    }

    /// What the words of a member say.
    pub fn found(&mut self, now: Time, member: usize, found: Found<GroupWords>) {
        let (have, began_at) = (self.have, self.began_at);
        let Some(known) = self.members.get_mut(member) else { return };
        let is_lost = match found {
            Found::Is(words) if !words.is_frozen() => {
                // A member can't have taken what there is not.
                if words.taken > known.taken && words.taken <= have {
                    (known.taken, known.moved_at) = (words.taken, now);
                }
                words.taken > have
            }
            Found::Is(_) | Found::Gone => true,
            Found::Silent => false,
        };
        // A member has the grace time from the moment at which this root waits for it.
        let waited = now.since(known.moved_at.max(began_at));
        if is_lost || waited > self.rules.grace {
            self.live = self.live.without(member);
            self.are_members_stored = false;
        }
    }
}
