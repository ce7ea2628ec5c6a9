//! What tests that switch, stop and kill clients at every memory operation have in common.

use std::ops::Range;
use std::sync::Arc;

use super::heap::Heap;
use super::scheduler::{Fate, Scheduler};

/// Does what one client does.
pub type Client<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Says how a schedule that failed is repeated.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with RACKPOOL_SEED={}", self.0);
        }
    }
}

/// A random stream of a test's own.
pub fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// The seeds to run: so many, or `RACKPOOL_SEEDS`; or the one that `RACKPOOL_SEED` names.
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

/// Runs the clients, beside the daemon that decides what becomes of killed clients' reservations
/// and does `meanwhile` now and then.
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
