//! Common parts of tests that switch, stop and kill clients at every memory operation.

use std::ops::Range;
use std::sync::Arc;

use super::heap::Heap;
use super::scheduler::{Fate, Scheduler};

/// The work of one client.
pub type Client<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Prints how to repeat a schedule that failed.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with RACKPOOL_SEED={}", self.0);
        }
    }
}

/// The seeds to run: `count` or `RACKPOOL_SEEDS` of them, or only the one in `RACKPOOL_SEED`.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse().ok());
    let first: Option<u64> = number("RACKPOOL_SEED");
    first.map_or(0..number("RACKPOOL_SEEDS").unwrap_or(count), |first| first..first + 1)
}

/// A scheduler of the clients with these fates, and of the daemon.
pub fn scheduler(seed: u64, fates: &[Fate], faults: u64) -> Arc<Scheduler> {
    let with_daemon = [fates, &[Fate::Lives]].concat();
    Arc::new(Scheduler::new(seed, &with_daemon).with_faults(faults))
}

/// Runs the clients, and beside them a daemon that resolves the reservations of killed clients and
/// calls `meanwhile` from time to time.
pub fn run<'a>(
    heap: &'a Heap,
    time: &'a Arc<Scheduler>,
    mut clients: Vec<Client<'a>>,
    mut meanwhile: impl FnMut() + Send + 'a,
) {
    heap.schedule(Arc::clone(time));
    let is_gone = |client: Option<usize>| client.is_some_and(|client| time.is_gone(client));
    let resolve = move || {
        heap.recover(is_gone, || {
            time.step(false);
        })
    };
    clients.push(Box::new(move || {
        while time.others_go_on() {
            time.step(false);
            resolve();
            meanwhile();
        }
    }));
    time.run(clients);
    resolve();
}
