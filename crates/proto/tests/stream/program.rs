//! The programs of a group, which make one access to memory at a time.

use rackpool_proto::Time;
use rackpool_proto::group::member::{GroupEnd, MemberAction, MemberMachine, Source};
use rackpool_proto::group::root::{RootAction, RootMachine};
use rackpool_proto::group::words::{Decision, Found, GroupWords};
use rackpool_proto::group::{ALIGN, GroupRules};
use rackpool_sync::SplitMix64;

use super::{NUMBER, Seen, UNITS};
use crate::plant::Plant;

/// What 32 B of the stream are: their position, which stands for the checksum of a record, and the
/// number of their message, of a gap, or of the record that ends the stream.
type Unit = (u64, u64);
const GAP: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

/// The words and the ring of a program.
pub(crate) struct Memory {
    words: [u64; GroupWords::COUNT],
    ring: Vec<Unit>,
}

const BEAT: usize = 1;
const HAVE: usize = 2;
const TAKEN: usize = 3;
const MEMBERS: usize = 4;
const FROZEN: usize = 5;

impl Shared {
    /// Some of a program's memory becomes something else.
    pub(crate) fn reuse(&mut self, program: usize) {
        self.memories[program].reuse(&mut self.draw);
    }

    fn append(&mut self, at: u64, end: u64, value: u64) {
        assert_eq!(self.stream.len() as u64, at / ALIGN);
        self.stream.resize(usize::try_from(end / ALIGN).unwrap(), value);
    }
}

impl Memory {
    pub(crate) fn new(members: usize) -> Self {
        let mut words = [GroupWords::stored(0, NUMBER); GroupWords::COUNT];
        words[0] = NUMBER;
        // A root that all members have joined.
        words[MEMBERS] = GroupWords::stored((1 << members) - 1, NUMBER);
        Self { words, ring: vec![(0, 0); usize::try_from(UNITS).unwrap()] }
    }

    fn store(&mut self, word: usize, value: u64) {
        self.words[word] = GroupWords::stored(value, NUMBER);
    }

    /// Its program has left.
    fn leave(&mut self) {
        self.words[0] = 0;
    }

    /// Some word or unit becomes something else.
    fn reuse(&mut self, draw: &mut SplitMix64) {
        let at = usize::try_from(draw.draw() % (UNITS + 6)).unwrap();
        match at.checked_sub(GroupWords::COUNT) {
            Some(unit) => self.ring[unit] = (draw.draw(), draw.draw()),
            None => self.words[at] = if draw.draw().is_multiple_of(2) { 0 } else { draw.draw() },
        }
    }

    fn unit(&mut self, position: u64) -> &mut Unit {
        &mut self.ring[usize::try_from(position / ALIGN % UNITS).unwrap()]
    }
}

/// What all programs can access.
pub(crate) struct Shared {
    /// The memory of each member, then that of the root.
    pub(crate) memories: Vec<Memory>,
    /// How the group has ended.
    pub(crate) decision: Option<Decision>,
    /// The racks that answer nobody any more.
    pub(crate) is_cut: Vec<bool>,
    /// What the root has appended, by units.
    pub(crate) stream: Vec<u64>,
    pub(crate) seen: Seen,
    pub(crate) draw: SplitMix64,
}

/// A read of the words of another program, one after the other.
struct Look {
    of: usize,
    words: [u64; GroupWords::COUNT],
    next: usize,
}

impl Look {
    const fn new(of: usize) -> Self {
        Self { of, words: [0; GroupWords::COUNT], next: 0 }
    }

    /// Reads one word. Returns what was found after the last one.
    fn step(&mut self, shared: &Shared, is_silent: bool) -> Option<Found<GroupWords>> {
        if is_silent || shared.is_cut[self.of] {
            return Some(Found::Silent);
        }
        self.words[self.next] = shared.memories[self.of].words[self.next];
        self.next += 1;
        (self.next == self.words.len()).then(|| GroupWords::found(self.words, NUMBER))
    }
}

/// What the root does before it asks its machine again.
enum RootTask {
    Look { member: usize, look: Look },
    Write { at: u64, end: u64, value: u64 },
}

pub(crate) struct RootProgram {
    machine: RootMachine<Plant>,
    task: Option<RootTask>,
    own: usize,
    beats: u64,
    messages_left: u64,
    /// The units of the record that is being appended.
    units: u64,
    state: RootState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RootState {
    Sending,
    Ending,
    Closing,
    Ended,
}

impl RootProgram {
    pub(crate) fn new(
        now: Time,
        rules: GroupRules,
        members: usize,
        messages_left: u64,
        bugs: Plant,
    ) -> Self {
        let machine = RootMachine::new(now, rules, members, bugs);
        let state = RootState::Sending;
        Self { machine, task: None, own: members, beats: 0, messages_left, units: 1, state }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == RootState::Ended
    }

    pub(crate) fn step(&mut self, now: Time, shared: &mut Shared, is_silent: bool) {
        if self.has_ended() {
            return;
        }
        // Another thread.
        self.beats += 1;
        shared.memories[self.own].store(BEAT, self.beats);
        match &mut self.task {
            Some(RootTask::Look { member, look }) => {
                if let Some(found) = look.step(shared, is_silent) {
                    let (member, before) = (*member, self.machine.members());
                    self.task = None;
                    self.machine.found(now, member, found);
                    shared.seen.left_out += u32::from(before != self.machine.members());
                }
                return;
            }
            Some(RootTask::Write { at, end, value }) => {
                *shared.memories[self.own].unit(*at) = (*at, *value);
                *at += ALIGN;
                if at == end {
                    self.task = None;
                }
                return;
            }
            None => {}
        }
        match self.machine.poll() {
            RootAction::Look(member) => {
                self.task = Some(RootTask::Look { member, look: Look::new(member) });
            }
            RootAction::Wait => {}
            RootAction::StoreMembers(members) => {
                shared.memories[self.own].store(MEMBERS, members.to_raw());
            }
            RootAction::WriteGap { at, bytes } => {
                shared.append(at, at + bytes, GAP);
                self.task = Some(RootTask::Write { at, end: at + bytes, value: GAP });
            }
            RootAction::WriteRecord { at } => {
                let is_end = self.state == RootState::Ending;
                let value = if is_end { END } else { 1000 + self.messages_left };
                let end = at + self.units * ALIGN;
                shared.append(at, end, value);
                self.task = Some(RootTask::Write { at, end, value });
            }
            RootAction::StoreHave(have) => shared.memories[self.own].store(HAVE, have),
            RootAction::Done => self.next(now, shared),
            RootAction::NoMember => {
                self.state = RootState::Closing;
                self.next(now, shared);
            }
        }
    }

    fn next(&mut self, now: Time, shared: &mut Shared) {
        match self.state {
            RootState::Sending if self.messages_left > 0 => {
                self.messages_left -= 1;
                self.units = 1 + shared.draw.draw() % 3;
                self.machine.begin(now, self.units * ALIGN);
            }
            RootState::Sending => {
                (self.state, self.units) = (RootState::Ending, 1);
                self.machine.begin(now, ALIGN);
            }
            RootState::Ending => {
                self.state = RootState::Closing;
                self.machine.begin_close(now);
            }
            RootState::Closing | RootState::Ended => {
                self.state = RootState::Ended;
                shared.decision.get_or_insert(Decision::Closed);
                shared.memories[self.own].leave();
            }
        }
    }
}

/// What a member does before it asks its machine again.
enum MemberTask {
    Look { of: Source, look: Look },
    Read { from: Source, at: u64, end: u64, is_whole: bool },
}

pub(crate) struct MemberProgram {
    machine: MemberMachine<Plant>,
    task: Option<MemberTask>,
    own: usize,
    /// The root's place among the memories.
    root: usize,
    taken: u64,
    pub(crate) end: Option<GroupEnd>,
}

impl MemberProgram {
    pub(crate) fn new(
        now: Time,
        rules: GroupRules,
        own: usize,
        members: usize,
        bugs: Plant,
    ) -> Self {
        let machine = MemberMachine::new(now, rules, own, members, bugs);
        Self { machine, task: None, own, root: members, taken: 0, end: None }
    }

    /// How far it has taken the stream.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    fn place(&self, of: Source) -> usize {
        match of {
            Source::Root => self.root,
            Source::Member(member) => member,
        }
    }

    /// Takes a unit of the stream, or makes a step of the machine.
    pub(crate) fn step(
        &mut self,
        now: Time,
        shared: &mut Shared,
        is_silent: bool,
    ) -> Result<(), String> {
        if self.end.is_some() {
            return Ok(());
        }
        if self.task.is_none() && self.taken < self.machine.have() {
            return if shared.draw.draw().is_multiple_of(3) { self.take(shared) } else { Ok(()) };
        }
        match &mut self.task {
            Some(MemberTask::Look { of, look }) => {
                if let Some(found) = look.step(shared, is_silent) {
                    let of = *of;
                    self.task = None;
                    self.machine.found(now, of, found);
                }
                return Ok(());
            }
            Some(MemberTask::Read { from, at, end, is_whole }) => {
                let (from, end) = (*from, *end);
                let of = match from {
                    Source::Root => self.root,
                    Source::Member(member) => member,
                };
                if is_silent || shared.is_cut[of] {
                    self.task = None;
                    self.machine.read(now, from, end, Found::Silent);
                    return Ok(());
                }
                let unit = *shared.memories[of].unit(*at);
                *shared.memories[self.own].unit(*at) = unit;
                *is_whole &= unit.0 == *at;
                *at += ALIGN;
                if *at == end {
                    let found = if *is_whole { Found::Is(()) } else { Found::Gone };
                    self.task = None;
                    self.machine.read(now, from, end, found);
                }
                return Ok(());
            }
            None => {}
        }
        let memory = &mut shared.memories[self.own];
        match self.machine.poll() {
            MemberAction::StoreHave(have) => memory.store(HAVE, have),
            MemberAction::Freeze => memory.store(FROZEN, 1),
            MemberAction::Decide(survivors) if !is_silent => {
                let own = Decision::RootLost(survivors);
                let decided = *shared.decision.get_or_insert(own);
                self.machine.decided(now, Some(decided));
            }
            MemberAction::Learn if !is_silent => self.machine.decided(now, shared.decision),
            MemberAction::Decide(_) | MemberAction::Learn => {}
            MemberAction::Look(of) => {
                self.task = Some(MemberTask::Look { of, look: Look::new(self.place(of)) });
            }
            MemberAction::Read { from, begin, end } => {
                shared.seen.caught_up += u32::from(from != Source::Root);
                self.task = Some(MemberTask::Read { from, at: begin, end, is_whole: true });
            }
            MemberAction::Wait => {}
            MemberAction::End(end) => {
                self.end = Some(end);
                memory.leave();
            }
        }
        Ok(())
    }

    fn take(&mut self, shared: &mut Shared) -> Result<(), String> {
        let (own, at) = (self.own, self.taken);
        let unit = at / ALIGN;
        let expected = shared.stream.get(usize::try_from(unit).unwrap()).copied();
        let (_, found) = *shared.memories[own].unit(at);
        if Some(found) != expected {
            return Err(format!("member {own} takes other bytes at {at}: {found}, {expected:?}"));
        }
        self.taken += ALIGN;
        shared.memories[own].store(TAKEN, self.taken);
        self.machine.take(self.taken);
        if found == END {
            self.machine.close();
        }
        Ok(())
    }
}
