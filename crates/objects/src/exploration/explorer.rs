use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

use xxhash_rust::xxh3::Xxh3;

use super::calls::Call;
use super::planted::Bug;
use super::run::{Answer, Budget, Run};
use super::witness::Outcome;
use super::world::{RACKS, World};

/// A program: its rack, and the calls that it makes one after the other.
pub(super) type Program = (usize, &'static [Call]);

/// The calls that programs make at the same time, from the state that others have left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    /// These programs run one after the other, before the others.
    pub(super) before: &'static [Program],
    pub(super) programs: &'static [Program],
    /// The most programs that are killed in a schedule.
    pub(super) kills: u32,
    /// Whether accesses to freed memory fail, as if its page was gone.
    pub(super) forgets_pages: bool,
    /// Whether racks bring the object along a chain.
    pub(super) has_chains: bool,
}

/// How much was explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Explored {
    pub(super) states: usize,
    /// The number of different schedules, of which many lead through the same states.
    pub(super) schedules: u128,
}

/// What is wrong after a schedule.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    what: String,
    /// The program of each step, and what it does.
    schedule: Vec<(usize, &'static str)>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after", self.what)?;
        self.schedule.iter().try_for_each(|(program, step)| writeln!(f, "  {program}: {step}"))
    }
}

/// Where a program is.
#[derive(Clone, Debug, Default, Hash)]
struct Position {
    /// The calls that it has ended.
    calls: usize,
    /// The answers of the steps that it has made in the next one.
    log: Vec<Answer>,
    is_killed: bool,
}

#[derive(Clone, Debug, Hash)]
struct State {
    world: World,
    positions: Vec<Position>,
    kills: u32,
}

struct Explorer<'a> {
    scenario: &'a Scenario,
    bug: Option<Bug>,
    /// The number of schedules that go on from a state.
    known: HashMap<u128, u128>,
    schedule: Vec<(usize, &'static str)>,
}

impl Scenario {
    /// Follows all schedules of programs of which each has a bug, or none.
    pub(super) fn explore(&self, bug: Option<Bug>) -> Result<Explored, Violation> {
        let mut world = World::new(self.programs.len() + 1);
        world.forgets_pages = self.forgets_pages;
        world.has_chains = self.has_chains;
        for (rack, calls) in self.before {
            for call in *calls {
                world = self.run_alone(world, *rack, *call, None);
            }
        }
        world.ignores_pins = bug == Some(Bug::IgnorePins);
        let positions = vec![Position::default(); self.programs.len()];
        let state = State { world, positions, kills: self.kills };
        let (known, schedule) = (HashMap::new(), Vec::new());
        let mut explorer = Explorer { scenario: self, bug, known, schedule };
        match explorer.follow(&state) {
            Ok(schedules) => Ok(Explored { states: explorer.known.len(), schedules }),
            Err(what) => Err(Violation { what, schedule: explorer.schedule }),
        }
    }

    /// Runs a call that nothing interrupts.
    fn run_alone(&self, world: World, rack: usize, call: Call, bug: Option<Bug>) -> World {
        let program = self.programs.len();
        let is_due = world.has_object();
        let run = RefCell::new(Run::new(world, program, Vec::new(), Budget::All));
        let result = call.execute(&run, rack, bug);
        let mut world = run.into_inner().world;
        match result {
            Ok(outcome) => world.end_call(program, outcome),
            Err(failure) => world.violate(format!("{call:?} alone fails: {failure:?}")),
        }
        if call == Call::Delete && result != Ok(Outcome::Deleted(is_due)) {
            world.violate(format!("a delete alone returns {result:?}"));
        }
        world
    }

    /// Removes what killed programs left, checks the rest, and deletes the object.
    fn check_end(&self, mut world: World, bug: Option<Bug>) -> Option<String> {
        world.tick();
        for call in [Call::Back, Call::Repair] {
            world = self.run_alone(world, 0, call, bug);
        }
        world = self.run_alone(world, 0, Call::Sweep, bug);
        for rack in 0..RACKS {
            world = self.run_alone(world, rack, Call::List, bug);
        }
        world.check_rest();
        world.check_files();
        world = self.run_alone(world, 0, Call::Delete, bug);
        world.check_empty();
        world.check_files();
        world.violation
    }
}

impl Explorer<'_> {
    /// Follows all schedules from a state. Returns their number, or what is wrong after the one of
    /// `self.schedule`.
    fn follow(&mut self, state: &State) -> Result<u128, String> {
        let key = fingerprint(state);
        if let Some(schedules) = self.known.get(&key) {
            return Ok(*schedules);
        }
        if let Some(what) = &state.world.violation {
            return Err(what.clone());
        }
        let (mut schedules, mut is_any_waiting, mut has_moved) = (0_u128, false, false);
        for program in 0..state.positions.len() {
            if !state.is_running(program, self.scenario) {
                continue;
            }
            if let Some((next, step)) = self.step(state, program) {
                has_moved = true;
                schedules = schedules.saturating_add(self.follow_to(&next, program, step)?);
            } else {
                is_any_waiting = true;
            }
            // A kill before the first step of a call is one after the last step of another.
            if state.kills > 0 && !state.positions[program].log.is_empty() {
                let next = state.kill(program);
                schedules = schedules.saturating_add(self.follow_to(&next, program, "killed")?);
            }
        }
        if is_any_waiting && !has_moved {
            schedules = schedules.saturating_add(self.let_time_pass(state)?);
        } else if schedules == 0 {
            let mut world = state.world.clone();
            if state.kills == self.scenario.kills && !world.troubles.were_any {
                // Nobody has to clean up after programs that were not killed.
                world.check_rest();
            }
            if let Some(what) = self.scenario.check_end(world, self.bug) {
                return Err(format!("{what}, when all programs have ended"));
            }
            schedules = 1;
        }
        self.known.insert(key, schedules);
        Ok(schedules)
    }

    fn follow_to(
        &mut self,
        next: &State,
        program: usize,
        step: &'static str,
    ) -> Result<u128, String> {
        self.schedule.push((program, step));
        let schedules = self.follow(next)?;
        self.schedule.pop();
        Ok(schedules)
    }

    /// All programs wait, perhaps for one that was killed.
    fn let_time_pass(&mut self, state: &State) -> Result<u128, String> {
        let mut next = state.clone();
        next.world.tick();
        let mut running =
            (0..next.positions.len()).filter(|program| next.is_running(*program, self.scenario));
        if running.all(|program| self.step(&next, program).is_none()) {
            return Err("programs wait for ever".to_owned());
        }
        self.follow_to(&next, state.positions.len(), "two seconds pass")
    }

    /// Makes the next step of a program; `None` if it waits.
    fn step(&self, state: &State, program: usize) -> Option<(State, &'static str)> {
        let (rack, calls) = self.scenario.programs[program];
        let mut next = state.clone();
        let position = &mut next.positions[program];
        let log = std::mem::take(&mut position.log);
        let run = RefCell::new(Run::new(next.world, program, log, Budget::One));
        let call = calls[position.calls];
        let result = call.execute(&run, rack, self.bug);
        let run = run.into_inner();
        if run.is_waiting {
            return None;
        }
        next.world = run.world;
        if run.is_stopped {
            position.log = run.log;
        } else {
            position.calls += 1;
            match result {
                Ok(outcome) => next.world.end_call(program, outcome),
                Err(failure) => next.world.violate(format!("{call:?} fails: {failure:?}")),
            }
        }
        Some((next, run.last))
    }
}

impl State {
    fn is_running(&self, program: usize, scenario: &Scenario) -> bool {
        let position = &self.positions[program];
        !position.is_killed && position.calls < scenario.programs[program].1.len()
    }

    fn kill(&self, program: usize) -> Self {
        let mut next = self.clone();
        next.world.kill(program);
        next.positions[program] = Position { is_killed: true, ..Position::default() };
        next.kills -= 1;
        next
    }
}

/// States with equal fingerprints of 128 bits are taken for equal.
fn fingerprint(state: &State) -> u128 {
    let mut hasher = Xxh3::new();
    state.hash(&mut hasher);
    hasher.digest128()
}
