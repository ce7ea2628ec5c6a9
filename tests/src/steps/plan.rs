//! Which operation is killed next, and where.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::symbols::Symbols;
use super::tracer::Target;

/// What a kill inside an operation may leave in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing.
    Nothing,
    /// What `alloc` had returned, or was about to: one object.
    InHand,
    /// The same, a run of pages.
    RunInHand,
    /// The objects it had, with their contents, or with new ones.
    Objects,
    /// The objects it had, each free or in use.
    Doubtful,
    /// What the link points to, and nothing else.
    Link,
    /// What the table has, and nothing else.
    Table,
}

/// What `rackpool-test-client step` can do, and what a kill inside it may leave.
pub const OPERATIONS: [(&str, Remains); 24] = [
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
    ("put", Remains::Table),
    ("delete", Remains::Table),
    ("compare", Remains::Table),
    ("compact", Remains::Table),
    ("open", Remains::Nothing),
    ("close", Remains::Nothing),
];

impl Remains {
    /// Whether the operation is one that allocates.
    #[must_use]
    pub const fn is_in_hand(self) -> bool {
        matches!(self, Self::InHand | Self::RunInHand)
    }
}

/// What is done in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Every instruction is looked at; the kill comes at the end.
    Measure,
    /// A kill at an instruction.
    Kill(Target),
    /// A kill after so many microseconds.
    After(u64),
}

/// An operation and the rack that it is done from: 0, whose memory all use, or 1, which is full.
pub type Key = (&'static str, u16);

#[derive(Debug, Default)]
struct Progress {
    rounds: usize,
    /// Where to kill, the next one last; `None` before the operation was measured.
    steps: Option<Vec<Target>>,
    /// Instructions from mark to mark.
    length: usize,
    /// Product instructions among them.
    product: BTreeSet<u64>,
    /// Product instructions that were about to be carried out at a kill.
    hit: BTreeSet<u64>,
}

/// What has been done, and what is next.
#[derive(Debug)]
pub struct Plan {
    random: SmallRng,
    progress: BTreeMap<Key, Progress>,
}

/// An instruction of a loop is met by its breakpoint so many times at most.
const OFTEN: usize = 24;

/// Where objects and requests change hands.
const CORE: [&str; 8] = [
    "rackpool_ring",
    "client5cache",
    "client4free",
    "client6outbox",
    "client5reservation",
    "5slab",
    "5plane",
    "6window",
];

/// A kill after any number of instructions.
fn any_step(random: &mut SmallRng, most: usize) -> Task {
    let step = random.random_range(0..most);
    Task::Kill(Target { step, at: 0, times: 0, more: step })
}

/// How far one operation has been covered.
#[derive(Clone, Debug)]
pub struct Coverage {
    /// Which.
    pub key: Key,
    /// Kills.
    pub rounds: usize,
    /// Instructions from mark to mark.
    pub length: usize,
    /// Distinct instructions of the product in the measured run.
    pub product: usize,
    /// How many of these were about to be carried out at a kill.
    pub hit: usize,
}

/// Coverage in lines.
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
    /// A plan with these operations.
    #[must_use]
    pub fn new(seed: u64, keys: impl IntoIterator<Item = Key>) -> Self {
        let keys = keys.into_iter();
        Self {
            random: SmallRng::seed_from_u64(seed),
            progress: keys.map(|key| (key, Progress::default())).collect(),
        }
    }

    /// What to do next of what is wanted: the operation with the fewest rounds of those that still
    /// have steps to be killed at; when there is none, all begin anew.
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
            // Being measured by another thread, perhaps.
            None if progress.rounds > 1 => any_step(&mut self.random, 400),
            None => Task::Measure,
            Some(steps) => match steps.pop() {
                Some(target) => Task::Kill(target),
                None => any_step(&mut self.random, progress.length.max(1)),
            },
        };
        (key, task)
    }

    /// The same where nobody may trace: a kill at any time.
    pub fn next_time(&mut self, wanted: impl Fn(Key) -> bool) -> (Key, Task) {
        let of_kind = self.progress.iter_mut().filter(|(key, _)| wanted(**key));
        let (key, progress) = of_kind.min_by_key(|(_, p)| p.rounds).expect("operations");
        progress.rounds += 1;
        (*key, Task::After(self.random.random_range(0..2000)))
    }

    /// The instructions of an operation from mark to mark. The steps to be killed at are, in random
    /// order, first those at which an instruction of the rings, the caches and the reservations
    /// comes for the first time, then those of other instructions of the product, then all others
    /// between the first and the last of this project.
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
                // Further on in a long loop steps are counted from outside of it.
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

    /// Whether what is done now is one of so many, by chance.
    pub fn is_one_of(&mut self, many: u32) -> bool {
        self.random.random_ratio(1, many)
    }

    /// Nothing was killed at this target: it comes once more, last of all.
    pub fn again(&mut self, key: Key, target: Target) {
        let progress = self.progress.get_mut(&key).expect("a known operation");
        progress.steps.get_or_insert_default().insert(0, target);
    }

    /// A kill came before this instruction was carried out.
    pub fn killed(&mut self, key: Key, at: u64, symbols: &Symbols) {
        if symbols.is_product(at) {
            self.progress.get_mut(&key).expect("a known operation").hit.insert(at);
        }
    }

    /// Distinct product instructions at which something was killed.
    #[must_use]
    pub fn distinct(&self) -> usize {
        let all = self.progress.values().flat_map(|progress| &progress.hit);
        all.collect::<BTreeSet<_>>().len()
    }

    /// Whether an instruction is the product's, and nothing was killed at it yet.
    #[must_use]
    pub fn is_new(&self, at: u64, symbols: &Symbols) -> bool {
        symbols.is_product(at) && !self.progress.values().any(|p| p.hit.contains(&at))
    }

    /// How far each operation has been covered.
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
