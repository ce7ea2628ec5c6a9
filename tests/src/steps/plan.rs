//! Chooses the next operation to be killed, and the instruction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::symbols::Symbols;
use super::tracer::Target;

/// What may stay in use after a kill inside an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// No object.
    Nothing,
    /// One object that `alloc` had returned, or was about to return.
    InHand,
    /// One run of pages that `alloc` had returned, or was about to return.
    RunInHand,
    /// The client's objects, with their old contents or new ones.
    Objects,
    /// The client's objects, each of them free or in use.
    Doubtful,
    /// Only the object to which the link points.
    Link,
    /// Only the entries of the table.
    Table,
    /// Only objects of the store, the client's among them or not.
    Store,
    /// Only objects of the store, the client's among them.
    Stored,
    /// Only objects of the store whose objects move to files, the client's among them.
    Moved,
}

/// The operations of `rackpool-test-client step`, and what may stay in use after a kill inside
/// each.
pub const OPERATIONS: [(&str, Remains); 28] = [
    ("alloc", Remains::InHand),
    ("refill", Remains::InHand),
    ("run", Remains::RunInHand),
    ("free", Remains::Doubtful),
    ("drain", Remains::Doubtful),
    ("free-run", Remains::Doubtful),
    ("read", Remains::Objects),
    ("miss", Remains::Objects),
    ("write", Remains::Objects),
    ("add", Remains::Objects),
    ("ping", Remains::Nothing),
    ("reservation", Remains::Nothing),
    ("abandon", Remains::Nothing),
    ("publish", Remains::Link),
    ("publish-far", Remains::Link),
    ("finish", Remains::Link),
    ("tombstone", Remains::Link),
    ("tombstone-far", Remains::Link),
    ("lock", Remains::Nothing),
    ("lock-far", Remains::Nothing),
    ("unlock", Remains::Nothing),
    ("unlock-far", Remains::Nothing),
    ("put", Remains::Table),
    ("delete", Remains::Table),
    ("compare", Remains::Table),
    ("compact", Remains::Table),
    ("open", Remains::Nothing),
    ("close", Remains::Nothing),
];

/// Operations on fixed memory and on objects of a store, which clients of a full rack can't carry
/// out.
pub const OWN_RACK: [(&str, Remains); 19] = [
    ("fixed", Remains::Nothing),
    ("fixed-refill", Remains::Nothing),
    ("extents", Remains::Nothing),
    ("free-head", Remains::Nothing),
    ("pin", Remains::Nothing),
    ("free-pinned", Remains::Nothing),
    ("reserve-owned", Remains::Nothing),
    ("publish-owned", Remains::Link),
    ("store-create", Remains::Nothing),
    ("store-create-large", Remains::Nothing),
    ("store-seal", Remains::Store),
    ("store-seal-large", Remains::Store),
    ("store-get", Remains::Stored),
    ("store-get-large", Remains::Stored),
    ("store-far-get", Remains::Stored),
    ("store-delete-large", Remains::Store),
    ("store-far-delete", Remains::Store),
    ("store-spill", Remains::Moved),
    ("store-restore-large", Remains::Moved),
];

/// All operations, each with the racks of its clients.
pub fn operations() -> impl Iterator<Item = (&'static str, Remains, &'static [u16])> {
    let everywhere = OPERATIONS.map(|(name, remains)| (name, remains, &[0, 1][..]));
    let here = OWN_RACK.map(|(name, remains)| (name, remains, &[0][..]));
    everywhere.into_iter().chain(here)
}

impl Remains {
    /// Returns true for operations that allocate.
    #[must_use]
    pub const fn is_in_hand(self) -> bool {
        matches!(self, Self::InHand | Self::RunInHand)
    }
}

/// The work of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Execute all instructions one by one, and kill at the end.
    Measure,
    /// Kill at an instruction.
    Kill(Target),
    /// Kill after this number of microseconds.
    After(u64),
}

/// An operation, and the rack of its client: 0, whose memory all use, or 1, which is full.
pub type Key = (&'static str, u16);

#[derive(Debug, Default)]
struct Progress {
    rounds: usize,
    /// Targets that remain, the next one last; `None` until the operation was measured.
    steps: Option<Vec<Target>>,
    /// Number of instructions from mark to mark.
    length: usize,
    /// The product's instructions among them.
    product: BTreeSet<u64>,
    /// The product's instructions before which a client was killed.
    hit: BTreeSet<u64>,
}

/// The progress of each operation, and the random choices.
#[derive(Debug)]
pub struct Plan {
    random: SmallRng,
    progress: BTreeMap<Key, Progress>,
}

/// The most times that a breakpoint at an instruction of a loop is hit on the way to a target.
const OFTEN: usize = 24;

/// Functions through which objects and requests change owners.
const CORE: [&str; 11] = [
    "rackpool_ring",
    "client5cache",
    "client4free",
    "client6outbox",
    "client5reservation",
    "client5fixed",
    "client5locks",
    "10lock_words",
    "5slab",
    "5plane",
    "6window",
];

/// A kill after a random number of instructions.
fn any_step(random: &mut SmallRng, most: usize) -> Task {
    let step = random.random_range(0..most);
    Task::Kill(Target { step, at: 0, times: 0, more: step })
}

/// The coverage of one operation.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// The operation and its rack.
    pub key: Key,
    /// Kills.
    pub rounds: usize,
    /// Instructions from mark to mark.
    pub length: usize,
    /// Distinct instructions of the product in the measured run.
    pub product: usize,
    /// The number of these before which a client was killed.
    pub hit: usize,
}

/// Displays coverage as a table.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a>(pub &'a [Coverage]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "operation       rack   kills   steps  product instructions")?;
        for Coverage { key: (name, rack), rounds, length, product, hit } in self.0 {
            writeln!(f, "{name:<16}{rack:>4}{rounds:>8}{length:>8}  {hit} of {product}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// A plan for these operations.
    #[must_use]
    pub fn new(seed: u64, keys: impl IntoIterator<Item = Key>) -> Self {
        let keys = keys.into_iter();
        Self {
            random: SmallRng::seed_from_u64(seed),
            progress: keys.map(|key| (key, Progress::default())).collect(),
        }
    }

    /// The next operation among the `wanted` ones, and its task: the operation with the fewest
    /// rounds among those with targets left, or among all of them when none has targets left.
    pub fn next(&mut self, wanted: impl Fn(Key) -> bool) -> (Key, Task) {
        let is_left = |progress: &Progress| {
            progress.steps.as_ref().map_or(progress.rounds == 0, |steps| !steps.is_empty())
        };
        let candidates = self.progress.iter().filter(|(key, p)| wanted(**key) && is_left(p));
        let fewest = candidates.min_by_key(|(_, progress)| progress.rounds).map(|(key, _)| *key);
        let any = self.progress.iter().filter(|(key, _)| wanted(**key));
        let key = fewest.or_else(|| any.min_by_key(|(_, p)| p.rounds).map(|(key, _)| *key));
        let key = key.expect("operations of this kind");
        let progress = self.progress.get_mut(&key).expect("a known operation");
        progress.rounds += 1;
        let task = match &mut progress.steps {
            // Another thread may be measuring the operation.
            None if progress.rounds > 1 => any_step(&mut self.random, 400),
            None => Task::Measure,
            Some(steps) => match steps.pop() {
                Some(target) => Task::Kill(target),
                None => any_step(&mut self.random, progress.length.max(1)),
            },
        };
        (key, task)
    }

    /// As [`Self::next`], where tracing is forbidden: a kill at a random time.
    pub fn next_time(&mut self, wanted: impl Fn(Key) -> bool) -> (Key, Task) {
        let of_kind = self.progress.iter_mut().filter(|(key, _)| wanted(**key));
        let (key, progress) = of_kind.min_by_key(|(_, p)| p.rounds).expect("operations");
        progress.rounds += 1;
        (*key, Task::After(self.random.random_range(0..2000)))
    }

    /// Takes the instructions of an operation from mark to mark, and derives the targets. Their
    /// order is random within each group: first occurrences of instructions of the rings, caches
    /// and reservations; first occurrences of the product's other instructions; all other
    /// instructions between the first and the last of this project.
    pub fn measured(&mut self, key: Key, trace: &[u64], symbols: &Symbols) {
        let is_own = |at: &u64| symbols.function(*at).is_some();
        let begin = trace.iter().position(is_own).unwrap_or(0);
        let end = trace.iter().rposition(is_own).map_or(trace.len(), |last| last + 1);
        let mut seen = HashMap::new();
        let mut tiers = [Vec::new(), Vec::new(), Vec::new()];
        let mut target = Target { step: 0, at: 0, times: 0, more: 0 };
        for (step, at) in trace.iter().enumerate().take(end) {
            target = Target { step, more: target.more + 1, ..target };
            let times = seen.entry(*at).or_insert(0);
            if symbols.is_product(*at) {
                *times += 1;
                // Far into a long loop, steps are counted from outside of the loop.
                if *times <= OFTEN {
                    target = Target { step, at: *at, times: *times, more: 0 };
                }
            }
            let name = symbols.function(*at).unwrap_or_default();
            let tier = match *times {
                1 if CORE.iter().any(|core| name.contains(core)) => 2,
                1 => 1,
                _ => 0,
            };
            if step >= begin {
                tiers[tier].push(target);
            }
        }
        tiers.iter_mut().for_each(|tier| tier.shuffle(&mut self.random));
        let steps = tiers.into_iter().flatten().collect();
        let progress = self.progress.get_mut(&key).expect("a known operation");
        progress.length = trace.len();
        progress.steps = Some(steps);
        progress.product = seen.into_keys().filter(|at| symbols.is_product(*at)).collect();
    }

    /// Returns true with a probability of 1 in `many`.
    pub fn is_one_of(&mut self, many: u32) -> bool {
        self.random.random_ratio(1, many)
    }

    /// The kill missed this target; it is tried again after all others.
    pub fn again(&mut self, key: Key, target: Target) {
        let progress = self.progress.get_mut(&key).expect("a known operation");
        progress.steps.get_or_insert_default().insert(0, target);
    }

    /// Notes that a kill came before this instruction.
    pub fn killed(&mut self, key: Key, at: u64, symbols: &Symbols) {
        if symbols.is_product(at) {
            self.progress.get_mut(&key).expect("a known operation").hit.insert(at);
        }
    }

    /// Distinct instructions of the product at which a program was killed.
    #[must_use]
    pub fn distinct(&self) -> usize {
        let all = self.progress.values().flat_map(|progress| &progress.hit);
        all.collect::<BTreeSet<_>>().len()
    }

    /// Returns true if the instruction is the product's and no program was killed at it yet.
    #[must_use]
    pub fn is_new(&self, at: u64, symbols: &Symbols) -> bool {
        symbols.is_product(at) && !self.progress.values().any(|p| p.hit.contains(&at))
    }

    /// The coverage of each operation.
    pub fn coverage(&self) -> impl Iterator<Item = Coverage> {
        self.progress.iter().map(|(key, progress)| Coverage {
            key: *key,
            rounds: progress.rounds,
            length: progress.length,
            product: progress.product.len(),
            hit: progress.product.intersection(&progress.hit).count(),
        })
    }
}
