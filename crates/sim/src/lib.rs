//! The simulator: the production machines of metadata server and daemons in a world of faults.
//!
//! A run is determined by its seed. Racks, metadata server, clients, network, clocks, memory and
//! disk are simulated; the machines are those of `rackpool-proto`. What is checked and what is not
//! simulated stands in docs/design/swap-planted-bugs.md.
#![forbid(unsafe_code)]

mod alloc;
mod calls;
mod check;
mod choice;
mod client;
mod connection;
mod daemon;
mod damage;
mod disk;
mod fabric;
mod faults;
mod forward;
mod history;
mod link;
mod lookups;
mod memory;
mod message;
mod objects;
mod promises;
mod queue;
mod rng;
mod roots;
mod rules;
mod searches;
mod server;
mod sharing;
mod trace;
mod world;

use std::fmt;
use std::ops::AddAssign;

pub use rackpool_proto::planted_bugs::{Bug, Bugs, Sound};

/// The statistics of a run. Two runs of one seed have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A hash of all events in order; the same on every computer.
    pub trace: u64,
    /// Events executed.
    pub events: u64,
    /// Operations of clients that were acknowledged.
    pub acknowledged: u64,
    /// Operations that may or may not have been executed.
    pub indeterminate: u64,
    /// Swaps committed.
    pub moved: u64,
    /// Aborted swaps.
    pub given_up: u64,
    /// Crashes of racks, clients and the metadata server.
    pub crashes: u64,
    /// Endpoints fenced by the home of a page.
    pub fenced: u64,
    /// Records of swaps that were damaged.
    pub damaged: u64,
    /// Pages that clients have freed.
    pub freed: u64,
    /// Reads of replicas.
    pub copies: u64,
    /// Forwarded writes.
    pub forwarded: u64,
    /// Dirty-logged writes of clients.
    pub dirty_logged: u64,
    /// Expired memberships.
    pub expired: u64,
    /// Answers about named addresses.
    pub named: u64,
    /// Objects that clients have allocated.
    pub allocated: u64,
    /// Freed objects.
    pub returned: u64,
    /// Publications and deletions of objects that clients have completed.
    pub published: u64,
    /// Records of dead clients that were resolved.
    pub resolved: u64,
    /// Calls for which a rack searched a page of another one.
    pub searched: u64,
    /// Those that did not get the page.
    pub unfound: u64,
}

impl AddAssign for Seen {
    /// Adds the counts, and combines the hashes.
    fn add_assign(&mut self, other: Self) {
        self.trace = rng::mix(self.trace) ^ other.trace;
        self.events += other.events;
        self.acknowledged += other.acknowledged;
        self.indeterminate += other.indeterminate;
        self.moved += other.moved;
        self.given_up += other.given_up;
        self.crashes += other.crashes;
        self.fenced += other.fenced;
        self.damaged += other.damaged;
        self.freed += other.freed;
        self.copies += other.copies;
        self.forwarded += other.forwarded;
        self.dirty_logged += other.dirty_logged;
        self.expired += other.expired;
        self.named += other.named;
        self.allocated += other.allocated;
        self.returned += other.returned;
        self.published += other.published;
        self.resolved += other.resolved;
        self.searched += other.searched;
        self.unfound += other.unfound;
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, events, acknowledged, indeterminate, moved, .. } = self;
        let Self { given_up, crashes, fenced, damaged, freed, copies, .. } = self;
        let Self { forwarded, dirty_logged, .. } = self;
        let Self { expired, named, searched, unfound, allocated, returned, .. } = self;
        let Self { published, resolved, .. } = self;
        write!(
            f,
            "{events} events, {acknowledged} operations acknowledged, {indeterminate} \
             indeterminate, {moved} swaps committed, given up {given_up} times, {crashes} crashes, \
             {fenced} endpoints fenced, {damaged} records damaged, {freed} pages freed, \
             {copies} reads of copies, {forwarded} forwarded and {dirty_logged} dirty_logged writes, {expired} memberships \
             expired, {named} answers about names, {searched} searches, {unfound} in vain, \
             {allocated} objects allocated and {returned} freed, {published} publications, {resolved} \
             records resolved, trace {trace:016x}"
        )
    }
}

/// A run in which a check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed, to repeat the run.
    pub seed: u64,
    /// The check that failed.
    pub what: String,
    /// The statistics up to then.
    pub seen: Seen,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what, seen } = self;
        write!(f, "seed {seed}, event {}: {what}\n(again: cargo x sim --seed {seed})", seen.events)
    }
}

/// Runs one seed with sound machines.
///
/// # Errors
/// When a check fails.
pub fn run(seed: u64) -> Result<Seen, Box<Failure>> {
    run_with(seed, Sound)
}

/// Runs one seed with machines that have these bugs.
///
/// # Errors
/// When a check fails.
pub fn run_with<B: Bugs>(seed: u64, bugs: B) -> Result<Seen, Box<Failure>> {
    world::World::new(seed, bugs).run()
}
