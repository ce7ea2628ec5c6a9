//! Runs clients as threads, one of them at a time. A seed decides which.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use rackpool_sync::SplitMix64;

/// What happens to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Lives,
    /// It is killed at the beginning of its `n`th memory operation.
    KilledAt(u64),
    /// It stops there until all others are done.
    StoppedAt(u64),
    /// It stops at the first and is killed at the second.
    StoppedAndKilledAt(u64, u64),
}

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// A compare-and-swap without an answer, which was not made.
    Unapplied,
    /// A compare-and-swap without an answer, which was made.
    Applied,
    /// An error of any operation, which was made: a write, or like `Applied`.
    Done,
    /// An error of any operation, which was not made.
    Refused,
    /// No memory is left for an allocation.
    Full,
}

/// The panic payload of a killed client.
struct Killed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    Stopped,
    Done,
}

#[derive(Debug)]
pub struct Scheduler {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

#[derive(Debug)]
struct State {
    random: SplitMix64,
    /// Switches clients in one of this number of steps.
    calm: u64,
    /// Gives no answer to one of this number of compare-and-swaps; 0: answers all.
    faults: u64,
    clock: u64,
    current: usize,
    clients: Vec<(Fate, Status, u64)>,
}

thread_local! {
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The client that runs on this thread.
pub fn me() -> Option<usize> {
    ME.get()
}

impl State {
    /// The client that continues after a step of `me`.
    fn choose(&mut self, me: usize) -> usize {
        if self.clients[me].1 == Status::Ready && !self.random.draw().is_multiple_of(self.calm) {
            return me;
        }
        if self.clients.iter().all(|client| client.1 != Status::Ready) {
            for client in &mut self.clients {
                if client.1 == Status::Stopped {
                    client.1 = Status::Ready;
                }
            }
        }
        let ready: Vec<usize> =
            (0..self.clients.len()).filter(|at| self.clients[*at].1 == Status::Ready).collect();
        if ready.is_empty() { me } else { ready[self.random.draw() as usize % ready.len()] }
    }
}

impl Scheduler {
    pub fn new(seed: u64, fates: &[Fate]) -> Self {
        let mut state = State {
            // Not the sequence that a test draws from the same seed.
            random: SplitMix64::new(!seed),
            calm: 1,
            faults: 0,
            clock: 0,
            current: 0,
            clients: fates.iter().map(|fate| (*fate, Status::Ready, 0)).collect(),
        };
        state.calm = [2, 8, 32, 128][state.random.draw() as usize % 4];
        Self { state: Mutex::new(state), turns: fates.iter().map(|_| Condvar::new()).collect() }
    }

    /// Makes one of `faults` compare-and-swaps give no answer.
    pub fn with_faults(self, faults: u64) -> Self {
        self.state.lock().unwrap().faults = faults;
        self
    }

    /// Switches clients only when one stops or ends.
    pub fn never_switching(self: Arc<Self>) -> Arc<Self> {
        self.state.lock().unwrap().calm = u64::MAX;
        self
    }

    /// A time later than all earlier ones.
    pub fn now(&self) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.clock += 1;
        state.clock
    }

    /// Runs the clients to their ends. Returns whether each was killed.
    pub fn run(&self, clients: Vec<Box<dyn FnOnce() + Send + '_>>) -> Vec<bool> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = clients
                .into_iter()
                .enumerate()
                .map(|(me, client)| scope.spawn(move || self.run_one(me, client)))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        })
    }

    fn run_one(&self, me: usize, client: Box<dyn FnOnce() + Send + '_>) -> bool {
        drop(self.wait_turn(me, self.state.lock().unwrap()));
        ME.set(Some(me));
        let result = catch_unwind(AssertUnwindSafe(client));
        ME.set(None);
        let mut state = self.state.lock().unwrap();
        state.clients[me].1 = Status::Done;
        let next = state.choose(me);
        state.current = next;
        self.turns[next].notify_one();
        drop(state);
        match result {
            Ok(()) => false,
            Err(panic) if panic.is::<Killed>() => true,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn wait_turn<'a>(&self, me: usize, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.current != me {
            state = self.turns[me].wait(state).unwrap();
        }
        state
    }

    /// A point at which the thread may be switched, stopped or killed.
    pub fn step(&self, operation: bool) -> Fault {
        let Some(me) = ME.get() else { return Fault::None };
        let mut state = self.state.lock().unwrap();
        state.clock += 1;
        if operation {
            state.clients[me].2 += 1;
            let (fate, _, operations) = state.clients[me];
            let (stop, kill) = match fate {
                Fate::Lives => (0, 0),
                Fate::KilledAt(kill) => (0, kill),
                Fate::StoppedAt(stop) => (stop, 0),
                Fate::StoppedAndKilledAt(stop, kill) => (stop, kill),
            };
            if operations == kill {
                drop(state);
                resume_unwind(Box::new(Killed));
            }
            if operations == stop {
                state.clients[me].1 = Status::Stopped;
            }
        }
        let next = state.choose(me);
        if next != me {
            state.current = next;
            self.turns[next].notify_one();
            state = self.wait_turn(me, state);
        }
        let faults = state.faults;
        if faults == 0 || !state.random.draw().is_multiple_of(faults) {
            Fault::None
        } else if state.random.draw().is_multiple_of(2) {
            Fault::Applied
        } else {
            Fault::Unapplied
        }
    }

    /// Whether a client has ended, or was killed.
    pub fn is_gone(&self, client: usize) -> bool {
        self.state.lock().unwrap().clients[client].1 == Status::Done
    }

    /// Whether a client other than this thread's is running.
    pub fn others_go_on(&self) -> bool {
        let state = self.state.lock().unwrap();
        let others = state.clients.iter().enumerate().filter(|(client, _)| Some(*client) != me());
        others.into_iter().any(|(_, (_, status, _))| *status == Status::Ready)
    }

    /// The number of memory operations of a client.
    pub fn operations(&self, client: usize) -> u64 {
        self.state.lock().unwrap().clients[client].2
    }
}

/// A scheduler in an `Arc`, as the heap needs it.
pub fn scheduler(seed: u64, fates: &[Fate]) -> Arc<Scheduler> {
    Arc::new(Scheduler::new(seed, fates))
}
