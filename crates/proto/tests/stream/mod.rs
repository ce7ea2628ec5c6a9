//! A root and 1 to 4 members. Each access to a word and to 32 B of a ring is a step of its own, and
//! the programs make their steps in any order. A run follows from its seed.

mod program;

use std::time::Duration;

use program::{MemberProgram, Memory, RootProgram, Shared};
use rackpool_proto::Time;
use rackpool_proto::group::member::GroupEnd;
use rackpool_proto::group::{ALIGN, GroupRules};
use rackpool_proto::planted_bugs::Bug;
use rackpool_sync::SplitMix64;

use crate::plant::Plant;

/// Whether programs are killed and stopped, and reads fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    None,
    /// The root is killed.
    Root,
    Some,
}

/// A step takes a microsecond.
const STEP: u64 = 1_000;
const GRACE: Duration = Duration::from_micros(400);
/// The number of steps in which faults happen.
const FAULTY: u64 = 4_000;
/// The number of steps within which all programs have ended.
const LIMIT: u64 = 60_000;
/// The number of the group.
const NUMBER: u64 = 0x9876_5432_10fe_dcba;
/// The length of a ring in units of 32 B.
const UNITS: u64 = 8;

/// What a run went through, in members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Took everything until the root had closed the group.
    pub(crate) closed: u32,
    /// Ended without the root.
    pub(crate) agreed: u32,
    /// Read from another member when the root was lost.
    pub(crate) caught_up: u32,
    /// Lost, though they live.
    pub(crate) lost: u32,
    /// Left out by the root.
    pub(crate) left_out: u32,
}

impl Seen {
    pub(crate) const fn add(&mut self, more: &Self) {
        self.closed += more.closed;
        self.agreed += more.agreed;
        self.caught_up += more.caught_up;
        self.lost += more.lost;
        self.left_out += more.left_out;
    }
}

pub(crate) struct World {
    faults: Faults,
    now: u64,
    root: RootProgram,
    members: Vec<MemberProgram>,
    shared: Shared,
    /// A program makes no step before this time.
    stopped_until: Vec<u64>,
    is_killed: Vec<bool>,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults, bug: Option<Bug>) -> Self {
        let mut draw = SplitMix64::new(seed);
        let count = usize::try_from(1 + draw.draw() % 4).unwrap();
        let rules = GroupRules { ring: UNITS * ALIGN, grace: GRACE };
        let messages = 3 + draw.draw() % 30;
        let now = Time::ZERO;
        Self {
            faults,
            now: 0,
            root: RootProgram::new(now, rules, count, messages, Plant(bug)),
            members: (0..count)
                .map(|own| MemberProgram::new(now, rules, own, count, Plant(bug)))
                .collect(),
            shared: Shared {
                memories: (0..=count).map(|_| Memory::new(count)).collect(),
                decision: None,
                is_cut: vec![false; count + 1],
                stream: Vec::new(),
                seen: Seen::default(),
                draw,
            },
            stopped_until: vec![0; count + 1],
            is_killed: vec![false; count + 1],
        }
    }

    pub(crate) fn members(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap()
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.shared.draw.draw().is_multiple_of(one_in)
    }

    /// Runs until all programs have ended. Returns what was violated.
    pub(crate) fn run(mut self) -> Result<Seen, String> {
        while !self.has_ended() {
            self.now += 1;
            if self.now > LIMIT {
                return Err("programs go on for ever".into());
            }
            let is_faulty = self.faults == Faults::Some && self.now < FAULTY;
            if is_faulty && self.chance(500) {
                self.fault();
            }
            if self.faults == Faults::Root && self.chance(1000) {
                self.is_killed[self.members.len()] = true;
            }
            let programs = self.shared.memories.len();
            let program = usize::try_from(self.shared.draw.draw() % programs as u64).unwrap();
            if self.is_killed[program] {
                if self.chance(200) {
                    // Another program gets the memory.
                    self.shared.reuse(program);
                }
                continue;
            }
            if self.stopped_until[program] > self.now {
                continue;
            }
            let is_silent = is_faulty && self.chance(50) || self.shared.is_cut[program];
            self.step(program, is_silent)?;
        }
        self.check()
    }

    fn fault(&mut self) {
        let program =
            usize::try_from(self.shared.draw.draw() % self.shared.memories.len() as u64).unwrap();
        if self.chance(2) {
            self.is_killed[program] = true;
        } else if self.chance(5) {
            self.shared.is_cut[program] = true;
        } else {
            let graces = 1 + self.shared.draw.draw() % 4;
            let steps = u64::try_from(GRACE.as_nanos()).unwrap() / STEP;
            self.stopped_until[program] = self.now + graces * steps / 2;
        }
    }

    fn step(&mut self, program: usize, is_silent: bool) -> Result<(), String> {
        let now = Time::from_nanos(self.now * STEP);
        match self.members.get_mut(program) {
            Some(member) => member.step(now, &mut self.shared, is_silent),
            None => {
                self.root.step(now, &mut self.shared, is_silent);
                Ok(())
            }
        }
    }

    fn has_ended(&self) -> bool {
        let root = self.members.len();
        // A rack that is cut off reads nothing and learns nothing.
        let is_out = |at: usize| self.is_killed[at] || self.shared.is_cut[at];
        let mut members = self.members.iter().enumerate();
        (is_out(root) || self.root.has_ended())
            && members.all(|(at, member)| is_out(at) || member.end.is_some())
    }

    /// All that have agreed have the same messages.
    fn check(mut self) -> Result<Seen, String> {
        let mut survivor = None;
        for (at, member) in self.members.iter().enumerate() {
            let seen = &mut self.shared.seen;
            match member.end {
                None => continue,
                Some(GroupEnd::Lost) if self.faults != Faults::Some => {
                    return Err(format!("member {at} is lost, and lives"));
                }
                Some(GroupEnd::Lost) => {
                    seen.lost += 1;
                    continue;
                }
                Some(GroupEnd::Closed) => seen.closed += 1,
                Some(GroupEnd::RootLost(_)) => seen.agreed += 1,
            }
            let (other, end) = *survivor.get_or_insert((at, member.taken()));
            if end != member.taken() {
                let taken = member.taken();
                return Err(format!("member {at} ends at {taken}, {other} at {end}"));
            }
        }
        Ok(self.shared.seen)
    }
}
