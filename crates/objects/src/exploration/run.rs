use super::trouble::Trouble;
use super::world::{Entry, RegistrationBytes, World};

/// The answer of a step: all that a program learns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Done,
    Flag(bool),
    Entry(Option<Entry>),
    Registration(Option<RegistrationBytes>),
    Words(u32, bool),
    Cell(usize),
    Bytes(u64),
    /// How many pieces a replica has; `None` if it is gone.
    Pieces(Option<usize>),
    /// The page of the address is gone.
    Gone,
    /// The rack of the entry is away, or has lost its memory.
    Unreadable(Trouble),
}

/// Why a call ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The next step is not made yet.
    Stopped,
    /// An access to an address whose page is gone.
    Gone,
    /// An access to an entry whose rack is away, or has lost its memory.
    Unreadable(Trouble),
    /// Bytes with another checksum.
    Damaged,
    /// The object is in a file of another rack.
    Spilled,
}

/// How many steps a call makes beyond those that it has answers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    One,
    All,
}

/// A call of a program in a world.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) world: World,
    pub(super) program: usize,
    /// The answers of the steps that the call has made.
    pub(super) log: Vec<Answer>,
    /// The name of the last one.
    pub(super) last: &'static str,
    /// How many of them were repeated.
    at: usize,
    budget: Budget,
    has_stepped: bool,
    pub(super) is_stopped: bool,
    /// Whether it was stopped because it waits for another program.
    pub(super) is_waiting: bool,
    /// Whether a program with `PublishBeforeRegister` has published its replica.
    pub(super) early: Option<bool>,
}

impl Run {
    pub(super) const fn new(
        world: World,
        program: usize,
        log: Vec<Answer>,
        budget: Budget,
    ) -> Self {
        Self {
            world,
            program,
            log,
            last: "",
            at: 0,
            budget,
            has_stepped: false,
            is_stopped: false,
            is_waiting: false,
            early: None,
        }
    }

    /// Makes a step that is possible only when `is_over`.
    pub(super) fn wait(
        &mut self,
        name: &'static str,
        is_over: impl FnOnce(&World) -> bool,
    ) -> Result<(), Failure> {
        self.wait_for(name, is_over, |_, _| Answer::Done).map(drop)
    }

    /// The same, with work to do then.
    pub(super) fn wait_for(
        &mut self,
        name: &'static str,
        is_over: impl FnOnce(&World) -> bool,
        work: impl FnOnce(&mut World, usize) -> Answer,
    ) -> Result<Answer, Failure> {
        let is_next =
            self.at == self.log.len() && !(self.has_stepped && self.budget == Budget::One);
        if !self.is_stopped && is_next && !is_over(&self.world) {
            (self.is_stopped, self.is_waiting) = (true, true);
        }
        self.step(name, false, work)
    }

    /// Makes a step. One that commutes with all steps of others (`is_local`) follows the one before
    /// at once.
    pub(super) fn step(
        &mut self,
        name: &'static str,
        is_local: bool,
        work: impl FnOnce(&mut World, usize) -> Answer,
    ) -> Result<Answer, Failure> {
        if self.is_stopped {
            return Err(Failure::Stopped);
        }
        if let Some(answer) = self.log.get(self.at) {
            self.at += 1;
            return Ok(answer.clone());
        }
        if self.has_stepped && self.budget == Budget::One && !is_local {
            self.is_stopped = true;
            return Err(Failure::Stopped);
        }
        self.world.begin_step(self.program);
        let answer = work(&mut self.world, self.program);
        self.world.check();
        self.log.push(answer.clone());
        (self.last, self.has_stepped) = (name, true);
        self.at += 1;
        Ok(answer)
    }
}
